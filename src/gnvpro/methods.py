"""The methods that train: each moves theta and W by one iteration at a time, and all look the same from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnvpro.dense import Dense
from gnvpro.head import Eliminator, WarmStart
from gnvpro.krylov import Krylov
from gnvpro.objective import FullObjective, FullPoint, Problem, ReducedObjective, ReducedPoint
from gnvpro.solvers import DenseSettings, make_assembler
from gnvpro.status import Status
from gnvpro.step_rules import LocalModel, NielsenRule, RadiusRule
from gnvpro.trust_region import TrustRegion


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
    def next_passes(self) -> int:
        """Passes over the batch that the next iteration needs at least."""
        ...

    def gradient_norm(self) -> float | None:
        """The norm of the objective's gradient, where the budget allows for what it costs."""
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
    dense: DenseSettings | None = None  # None: Krylov spaces


class TrustRegionMethod:
    """GNvpro and full Gauss-Newton: the same loop and the same Krylov space, on the reduced or on the full objective."""

    def __init__(self, region: TrustRegion[ReducedPoint] | TrustRegion[FullPoint], settings: Settings) -> None:
        self.region, self.settings = region, settings

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

    def gradient_norm(self) -> float | None:
        """One backward pass the first time, which `next_passes` has reserved except at the start."""
        if "_gradient" not in self.point.__dict__ and self.settings.passes_left() < 1:
            return None
        return float(torch.linalg.vector_norm(self.point.gradient()))

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        if done is None:
            return None
        radius = done.bound if isinstance(done.bound, float) else None
        return Trial(done.accepted, radius, done.ratio, done.rank, solver="krylov")


class DenseMethod(TrustRegionMethod):
    """GNvpro with the exact step: the gradient comes with the matrix."""

    region: TrustRegion[ReducedPoint]

    @property
    def _matrix_passes(self) -> int:
        point = self.region.point
        if "gauss_newton" in point.__dict__ or point.assembler is None:
            return 0
        network = point.problem.network
        return point.assembler.passes(network.n_features, network.n_targets, point.problem.misfit.isotropic)

    @property
    def next_passes(self) -> int:
        """A trial, the probe of the geodesic correction, and a matrix where there is none yet."""
        assert self.settings.dense is not None
        return 1 + bool(self.settings.dense.geodesic) + self._matrix_passes

    def gradient_norm(self) -> float | None:
        """Free with the matrix; not told where the budget has no room for another one."""
        if self._matrix_passes > self.settings.passes_left():
            return None
        return float(torch.linalg.vector_norm(self.point.gradient()))

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        if done is None:
            return None
        radius = done.bound if isinstance(done.bound, float) else None
        return Trial(done.accepted, radius, done.ratio, done.rank, done.damping, "dense")


def gnvpro(
    problem: Problem, eliminator: Eliminator, theta: Tensor, start: WarmStart | None, settings: Settings
) -> TrustRegionMethod:
    """The trust region on the reduced objective."""
    if settings.dense is not None:
        objective = ReducedObjective(problem, eliminator, make_assembler(problem, theta, settings.dense))
        rule = NielsenRule() if settings.dense.damping else RadiusRule()
        build = Dense(objective, bool(settings.dense.geodesic))
        return DenseMethod(TrustRegion(objective, build, objective.start(theta, start), None, rule), settings)
    objective = ReducedObjective(problem, eliminator)
    region = TrustRegion(objective, krylov_within_budget(settings), objective.start(theta, start))
    return TrustRegionMethod(region, settings)


def gauss_newton(
    problem: Problem, eliminator: Eliminator, theta: Tensor, start: WarmStart | None, settings: Settings
) -> TrustRegionMethod:
    """The trust region on the full objective, from the eliminated head."""
    first = ReducedObjective(problem, eliminator).start(theta, start)
    if first.fit is None:
        region = TrustRegion(ReducedObjective(problem, eliminator), krylov_within_budget(settings), first)
        return TrustRegionMethod(region, settings)
    # The forward pass that eliminated the head is the one the full objective needs at the same theta.
    point = FullPoint(problem, torch.cat([theta, first.W.reshape(-1)]), theta, first.W, first.linearization, first.Z)
    return TrustRegionMethod(TrustRegion(FullObjective(problem), krylov_within_budget(settings), point), settings)


def krylov_within_budget(settings: Settings) -> Callable[[ReducedPoint | FullPoint], LocalModel]:
    """Krylov spaces no larger than the work budget leaves room for, the trial and its gradient counted."""

    def build(point: ReducedPoint | FullPoint) -> LocalModel:
        affordable = max(1, int((settings.passes_left() - 2) // 2))
        return Krylov(min(settings.max_rank, affordable), settings.rtol)(point)

    return build


METHODS = {"gnvpro": gnvpro, "gauss-newton": gauss_newton}
