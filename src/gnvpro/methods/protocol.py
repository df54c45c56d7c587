"""What training methods look like from outside: each moves theta and W by one iteration at a time.

    gnvpro         trust region on the reduced objective                    head eliminated at every point
    gauss-newton   the same trust region on the full objective              theta and W together
    lbfgs-vpro     L-BFGS with a strong-Wolfe search, reduced objective     see `first_order`
    adam, nesterov stochastic gradients, full objective                     see `first_order`

The first two are put together in `gauss_newton_methods`. A method is made for one problem (a network and a batch) from a
`Start`, and can be put aside as a `State` - plain tensors and numbers - from which it goes on to the last bit as if it had
not been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gnvpro.head.eliminator import Eliminator, WarmStart
from gnvpro.methods.choose_solver import DenseSettings
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound

State = dict[str, Any]  # tensors, numbers, and dictionaries of them


@dataclass(frozen=True)
class Start:
    """Where a method begins: theta, and what an earlier batch or level left for it."""

    theta: Tensor
    W: Tensor | None = None
    bound: Bound | None = None
    later: bool = False  # whether it follows another batch of the same level


@dataclass(frozen=True)
class Settings:
    """What the methods are told."""

    eliminator: Eliminator
    solver: str
    dense: DenseSettings
    max_rank: int
    rtol: float
    learning_rate: float
    batch_size: int
    seed: int
    passes_left: Callable[[], float]  # over the batch, that the budget still allows
    by_work: bool = False  # whether work is scarce, rather than time: levels have a budget each


@dataclass(frozen=True)
class Trial:
    """What an iteration has to tell beyond the model it left behind."""

    accepted: bool
    radius: float | None = None
    ratio: float | None = None
    rank: int | None = None
    damping: float | None = None
    solver: str | None = None


class Iterate(Protocol):
    """A model on the way: theta, W and what they achieve on the batch."""

    @property
    def theta(self) -> Tensor:
        """The parameters of the features."""
        ...

    @property
    def W(self) -> Tensor:
        """The head, its bias as last column."""
        ...

    @property
    def outputs(self) -> Tensor:
        """The outputs on the batch."""
        ...

    @property
    def value(self) -> float:
        """Phi."""
        ...

    @property
    def misfit(self) -> float:
        """The mean loss."""
        ...


class Method(Protocol):
    """One way to train."""

    @property
    def status(self) -> Status:
        """Why `iterate` returned None."""
        ...

    @property
    def point(self) -> Iterate:
        """The last accepted model."""
        ...

    @property
    def bound(self) -> Bound | None:
        """The radius or damping that a following batch should start with, where the method has one."""
        ...

    @property
    def next_passes(self) -> int:
        """Passes over the batch that the next iteration needs at least."""
        ...

    def gradient_norm(self) -> float | None:
        """The norm of the objective's gradient, where it is known or the budget allows for what it costs."""
        ...

    def iterate(self) -> Trial | None:
        """One iteration; None where there is nothing more to do."""
        ...

    def state(self) -> State:
        """Everything that `resume` needs."""
        ...


def warm_start_of(state: State) -> WarmStart | None:
    """Where the elimination at the point of that state began."""
    return None if state["start_W"] is None else WarmStart(state["start_W"], state["start_factor"])
