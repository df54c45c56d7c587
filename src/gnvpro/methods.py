"""The methods that train: each moves theta and W by one iteration at a time, and all look the same from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnvpro.head import Eliminator, WarmStart
from gnvpro.krylov import Krylov
from gnvpro.objective import FullObjective, FullPoint, Problem, ReducedObjective, ReducedPoint
from gnvpro.status import Status
from gnvpro.trust_region import LocalModel, TrustRegion


@dataclass(frozen=True)
class Trial:
    """What an iteration has to tell beyond the model it left behind."""

    accepted: bool
    radius: float | None = None
    ratio: float | None = None
    rank: int | None = None


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

    def gradient(self) -> Tensor:
        """The gradient of Phi in the variables of the method."""
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
    def next_passes(self) -> int:
        """Passes over the batch that the next iteration needs at least."""
        ...

    def iterate(self) -> Trial | None:
        """One iteration; None where there is nothing more to do."""
        ...


@dataclass(frozen=True)
class Settings:
    """What the trust-region methods are told."""

    max_rank: int
    rtol: float
    passes_left: Callable[[], float]  # passes over the batch that the budget still allows


class TrustRegionMethod:
    """GNvpro and full Gauss-Newton: the same loop and the same Krylov space, on the reduced or on the full objective."""

    def __init__(self, region: TrustRegion[ReducedPoint] | TrustRegion[FullPoint]) -> None:
        self.region = region

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.region.status

    @property
    def point(self) -> ReducedPoint | FullPoint:
        """The last accepted model."""
        return self.region.point

    @property
    def next_passes(self) -> int:
        """A trial and the gradient after it, and a Krylov space where there is none yet."""
        return 2 if self.region.model is not None else 4

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        return None if done is None else Trial(done.accepted, done.radius, done.ratio, done.rank)


def gnvpro(
    problem: Problem, eliminator: Eliminator, theta: Tensor, start: WarmStart | None, settings: Settings
) -> TrustRegionMethod:
    """The trust region on the reduced objective."""
    objective = ReducedObjective(problem, eliminator)
    return TrustRegionMethod(TrustRegion(objective, krylov_within_budget(settings), objective.start(theta, start)))


def gauss_newton(
    problem: Problem, eliminator: Eliminator, theta: Tensor, start: WarmStart | None, settings: Settings
) -> TrustRegionMethod:
    """The trust region on the full objective, from the eliminated head."""
    first = ReducedObjective(problem, eliminator).start(theta, start)
    if first.fit is None:
        return TrustRegionMethod(
            TrustRegion(ReducedObjective(problem, eliminator), krylov_within_budget(settings), first)
        )
    # The forward pass that eliminated the head is the one the full objective needs at the same theta.
    point = FullPoint(problem, torch.cat([theta, first.W.reshape(-1)]), theta, first.W, first.linearization, first.Z)
    return TrustRegionMethod(TrustRegion(FullObjective(problem), krylov_within_budget(settings), point))


def krylov_within_budget(settings: Settings) -> Callable[[ReducedPoint | FullPoint], LocalModel]:
    """Krylov spaces no larger than the work budget leaves room for, the trial and its gradient counted."""

    def build(point: ReducedPoint | FullPoint) -> LocalModel:
        affordable = max(1, int((settings.passes_left() - 2) // 2))
        return Krylov(min(settings.max_rank, affordable), settings.rtol)(point)

    return build


METHODS = {"gnvpro": gnvpro, "gauss-newton": gauss_newton}
