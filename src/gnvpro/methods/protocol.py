"""The protocols of training methods and solvers.

A `Method` is a frozen dataclass: its fields are its settings, and checkpoints compare its repr. It is two functions of
values: `begin` evaluates the first model of a problem (a network and samples) and returns a `MethodState`; `step` returns the
next state, and a report of what it tried. The state is the method's whole memory, so a checkpoint is a state and nothing else.
Results that can be computed again are in a `Cache` that belongs to the run.

    GNvpro          trust region on the reduced objective                    head eliminated at every point
    GaussNewton     the same trust region on the full objective              theta and W together
    LBFGSvpro       L-BFGS with a strong-Wolfe search, reduced objective
    AdamVPro        stochastic gradients, reduced loss of each batch
    TorchOptimizer  stochastic gradients, full objective

A `Solver` makes the steps of GNvpro: exact steps, steps from Krylov spaces, quasi-Newton steps, or a user's.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.eliminator import Eliminator, WarmStart
from gnvpro.methods.cache import Cache
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound
from gnvpro.minimize.trust_region import StepReport
from gnvpro.network.work import WorkMeter
from gnvpro.objectives.problem import Problem
from gnvpro.state import State

USUAL_WORK = 600.0  # default limit of methods that do not end by themselves


@dataclass(frozen=True)
class Start(State):
    """The start of a method: theta, and results of an earlier batch or level.

    Args:
        theta: parameters of the features, shape (n_theta,).
        W: head of an earlier batch or level, shape (n_targets, n_features), its bias counted as the last feature.
        bound: radius or damping of an earlier batch, if the method has one.
        follows_batch: whether the start follows another batch of the same level.
        seed: seed of all random choices.

    >>> import torch
    >>> start = Start(torch.zeros(3), W=torch.ones(1, 2))
    >>> start.warm.W.shape, Start(torch.zeros(3)).warm is None
    (torch.Size([1, 2]), True)
    """

    theta: Tensor
    W: Tensor | None = None
    bound: Bound | None = None
    follows_batch: bool = False
    seed: int = 0

    @property
    def warm(self) -> WarmStart | None:
        """Return the given head as a start for the first elimination."""
        return None if self.W is None else WarmStart(self.W)


@dataclass(frozen=True)
class Budget:
    """Work and seconds left, by the meter and the clock; infinite without a limit.

    A run makes it and passes it to `Method.begin` and `Method.step`.

    Args:
        meter: counts the passes over the samples.
        limit: reading of the meter, in work units, at which to stop.
        share: share of the training set that is trained on.
        seconds: reading of the clock at which to stop.
        clock: returns the seconds of the run, including those before a resume.
        smallest: returns the smallest of a number in all processes, whose clocks differ.

    >>> meter = WorkMeter(100)  # samples
    >>> meter.count(100, passes=4)
    >>> budget = Budget(meter, limit=10)
    >>> budget.passes_left, budget.products_left, budget.seconds_left
    (6.0, 2.0, inf)
    """

    meter: WorkMeter
    limit: float
    share: float = 1.0
    seconds: float = math.inf
    clock: Callable[[], float] = time.perf_counter
    smallest: Callable[[float], float] = float

    @property
    def seconds_left(self) -> float:
        """Seconds left by the clock; infinite without a limit."""
        return self.seconds - self.clock()

    @property
    def passes_left(self) -> float:
        """Passes left over the samples trained on."""
        return (self.limit - self.meter.sample_passes / self.meter.total_samples) / self.share

    @property
    def products_left(self) -> float:
        """Products with the curvature that are affordable after a trial and its gradient, by work and by the last passes."""
        by_work = (self.passes_left - 2) / 2
        if self.seconds == math.inf:
            return by_work
        each, trial = (self.share * self.meter.seconds_of(*kind) for kind in ((1, 0), (0, 1)))
        return min(by_work, self.smallest((self.seconds_left - trial) / max(each, 1e-12)))


@dataclass(frozen=True)
class Iterate(State):
    """A model during training, and its values on the samples trained on.

    `iterate_at` makes one from a point of an objective.

    Args:
        theta: parameters of the features, shape (n_theta,).
        W: the head, shape (n_targets, n_features), its bias counted as the last feature.
        value: the objective Phi.
        misfit: the mean loss.
        accuracy: share of samples classified correctly; None if the loss does not classify.
        provisional: whether the head is still to be eliminated over all samples.

    >>> import torch, gnvpro
    >>> X, model = torch.rand(9, 2).double(), gnvpro.networks.MLP(2, [4], n_outputs=1, dtype=torch.float64)
    >>> problem = gnvpro.Problem(model, X, X[:, :1], loss="least_squares")
    >>> iterate = iterate_at(problem.reduced.at(problem.theta()))
    >>> iterate.theta.shape, iterate.W.shape, iterate.accuracy
    (torch.Size([12]), torch.Size([1, 5]), None)
    """

    theta: Tensor
    W: Tensor
    value: float
    misfit: float
    accuracy: float | None
    provisional: bool = False


@dataclass(frozen=True, kw_only=True)
class MethodState(State):
    """The state of a method between two steps: subclass it, as a frozen dataclass, to add what the method needs to store.

    Args:
        iterate: the last accepted model.
        gradient_norm: the norm of the objective's gradient there; None if it is unknown.
        next_passes: passes over the samples that the next step needs at least.
        bound: the first radius or damping for a following batch, if the method has one.
        settles: whether a standstill of the objective ends the run; False if better steps are still to come.

    >>> import torch
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Length(MethodState):
    ...     length: float
    >>> iterate = Iterate(torch.zeros(3), torch.zeros(1, 2), value=0.5, misfit=0.5, accuracy=None)
    >>> Length(iterate=iterate, length=0.1).next_passes
    2.0
    """

    iterate: Iterate
    gradient_norm: float | None = None
    next_passes: float = 2.0
    bound: Bound | None = None
    settles: bool = True


class Reached(Protocol):
    """An evaluated point of either objective."""

    def reached(self) -> tuple[Tensor, Tensor, float, float, float | None]:
        """Return theta, W, Phi, the mean loss and the share of samples classified correctly."""


def iterate_at(point: Reached) -> Iterate:
    """Return the model at a point, without the data for its derivatives.

    Args:
        point: a point of an objective, such as `problem.reduced.at(theta)`.

    >>> import torch, gnvpro
    >>> X, model = torch.rand(9, 2).double(), gnvpro.networks.MLP(2, [4], n_outputs=1, dtype=torch.float64)
    >>> problem = gnvpro.Problem(model, X, X[:, :1], loss="least_squares")
    >>> point = problem.reduced.at(problem.theta())
    >>> iterate_at(point).value == point.value
    True
    """
    return Iterate(*point.reached())


@dataclass(frozen=True)
class Batches:
    """Train on random parts of the training set one after another, each for a few iterations.

    Args:
        size: samples per batch.
        iterations: number of iterations on each batch.
        sweeps: number of passes over all batches, reshuffled each time. Default: as many as the work budget allows.

    >>> Batches(10_000, sweeps=2).iterations
    3
    """

    size: int
    iterations: int = 3
    sweeps: int | None = None

    def __post_init__(self) -> None:
        check_count("Batches: size", self.size, 1)
        check_count("Batches: iterations", self.iterations, 1)
        if self.sweeps is not None:
            check_count("Batches: sweeps", self.sweeps, 1)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A training method; subclass it, as a frozen dataclass, to write another one.

    Args:
        head: name of the last layer. Default: found by running the model.
        eliminator: how the head is eliminated. Default: chosen by the loss and the size of the head.
        levels: number of trainings; between two, `prolongated()` of the network refines it (see `gnvpro.networks.NeuralODE`).
            `result.model` is then the deepest network; the given model stays as trained on the first level.
        memory: bytes for passes over samples and for the solver. If a forward pass does not fit, a part of it is computed
            again for every derivative instead of stored: slower, with the same result. Default: an eighth of the machine's
            memory, or half of the free memory if that is less. The data, and features and outputs in float64, are extra.
        seed: seed of all random choices, that is, the order of batches.

    A subclass with a `__post_init__` calls `super().__post_init__()` in it, which checks these settings.

    >>> import torch, gnvpro
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Descent(Method):  # gradient steps of one length on the reduced objective
    ...     length: float = 0.1
    ...     def begin(self, problem, start, budget, cache):
    ...         point = problem.reduced.at(start.theta)
    ...         return MethodState(iterate=iterate_at(point), gradient_norm=float(point.gradient().norm()))
    ...     def step(self, problem, state, budget, cache):
    ...         theta = state.iterate.theta
    ...         gradient = problem.reduced.at(theta).gradient()
    ...         start = Start(theta - self.length * gradient)
    ...         return self.begin(problem, start, budget, cache), StepReport(True)
    >>> x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    >>> model = gnvpro.networks.MLP(1, [4], n_outputs=1, dtype=torch.float64)
    >>> result = gnvpro.train(model, x, x**2, loss="least_squares", method=Descent(), work=20)
    >>> result.history[-1].loss < result.history[0].loss
    True
    """

    head: str | None = None
    eliminator: Eliminator | None = None
    levels: int = 1
    memory: float | None = None
    seed: int = 0
    name: ClassVar[str] = "own"
    whole_set: ClassVar[bool] = True  # whether a step uses all samples that it is given

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_count(f"{kind}: levels", self.levels, 1)
        check_count(f"{kind}: seed", self.seed, 0)
        if self.memory is not None:
            check_number(f"{kind}: memory", self.memory, 0.0, strict=True)

    @abstractmethod
    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> Any:
        """Evaluate the first model; return a `MethodState`. Raise ValueError if the model cannot be evaluated."""

    @abstractmethod
    def step(self, problem: Problem, state: Any, budget: Budget, cache: Cache) -> tuple[Any, StepReport | Status]:
        """Take one step from a state; return the next one and what was tried, or a `Status` if nothing more can be done.

        The next state depends on the arguments alone. The cache saves time and nothing else: it may be empty at any call.
        """

    def parts(self) -> Batches | None:
        """Return the parts of the samples to train on; None for all samples, or if the method draws batches itself."""
        return None

    def plan(self, problem: Problem) -> tuple[str, ...]:
        """Return the choices made for this problem, one sentence per rule."""
        return ()

    def why_not(self, problem: Problem) -> str | None:
        """Return why this method cannot train the problem, before any work; None if it can."""
        return None

    def usual_work(self, by_seconds: bool = False) -> float:
        """Return the default limit in work units; `by_seconds` if seconds are given.

        Infinite: the run ends when its objective has settled. On random batches an objective never settles.
        """
        return math.inf if by_seconds or self.parts() is None else USUAL_WORK


@dataclass(frozen=True, kw_only=True)
class BatchedMethod(Method):
    """A method that may train on parts of the training set in turn."""

    batches: Batches | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batches is not None and not isinstance(self.batches, Batches):
            kind = type(self).__name__
            raise TypeError(
                f"{kind}: batches must be an object such as gnvpro.methods.Batches(10_000), got {self.batches!r}"
            )

    def parts(self) -> Batches | None:
        """Return the batches."""
        return self.batches


class Solver(Protocol):
    """Makes the steps of GNvpro; a frozen dataclass, whose repr a checkpoint compares.

    The solvers of `gnvpro.solvers` have this form. Subclass `gnvpro.extend.ModelSolver` for one with a model around each point.

    >>> import torch, gnvpro
    >>> X, model = torch.rand(9, 2).double(), gnvpro.networks.MLP(2, [4], n_outputs=1, dtype=torch.float64)
    >>> problem = gnvpro.Problem(model, X, X[:, :1], loss="least_squares")
    >>> solver = gnvpro.solvers.Dense()
    >>> solver.name, solver.why_not(problem)
    ('dense', None)
    """

    @property
    def name(self) -> str:
        """Name of its steps in the history."""

    def why_not(self, problem: Problem) -> str | None:
        """Return why this solver cannot be used for the problem; None if it can."""

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> Any:
        """Evaluate the first model, like `Method.begin`."""

    def step(self, problem: Problem, state: Any, budget: Budget, cache: Cache) -> tuple[Any, StepReport | Status]:
        """Take one step, like `Method.step`."""
