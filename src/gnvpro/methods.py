"""The methods that train: each moves theta and W by one iteration at a time, and all look the same from outside.

    gnvpro         trust region on the reduced objective                    head eliminated at every point
    gauss-newton   the same trust region on the full objective              theta and W together
    lbfgs-vpro     L-BFGS with a strong-Wolfe search, reduced objective     see `first_order`
    adam, nesterov stochastic gradients, full objective                     see `first_order`

A method is made for one problem (a network and a batch) from a `Start`, and can be put aside as a `State` - plain tensors
and numbers - from which it goes on to the last bit as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from gnvpro.dense import Dense
from gnvpro.head import Eliminator, WarmStart
from gnvpro.krylov import Krylov
from gnvpro.objective import FullObjective, FullPoint, Problem, ReducedObjective, ReducedPoint
from gnvpro.solvers import DenseSettings, make_assembler, pick_dense
from gnvpro.status import Status
from gnvpro.step_rules import Damping, LocalModel, NielsenRule, RadiusRule
from gnvpro.trust_region import TrustRegion

State = dict[str, Any]  # tensors, numbers, and dictionaries of them


@dataclass(frozen=True)
class Start:
    """Where a method begins: theta, and what an earlier batch or level left for it."""

    theta: Tensor
    W: Tensor | None = None
    bound: float | Damping | None = None  # the radius or damping to begin with


@dataclass(frozen=True)
class Settings:
    """What the methods are told."""

    eliminator: Eliminator
    max_rank: int
    rtol: float
    learning_rate: float
    batch_size: int
    seed: int
    passes_left: Callable[[], float]  # over the batch, that the budget still allows
    solver: str = "auto"
    dense: DenseSettings = field(default_factory=DenseSettings)


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
    def bound(self) -> float | Damping | None:
        """What a following batch should start with, where the method has a radius or a damping."""
        ...

    @property
    def next_passes(self) -> int:
        """Passes over the batch that the next iteration needs at least."""
        ...

    def gradient_norm(self) -> float | None:
        """The norm of the objective's gradient; one backward pass the first time. None where the budget lacks its price."""
        ...

    def iterate(self) -> Trial | None:
        """One iteration; None where there is nothing more to do."""
        ...

    def state(self) -> State:
        """Everything that `resume` needs."""
        ...


class TrustRegionMethod:
    """GNvpro and full Gauss-Newton: the same loop and the same Krylov space, on the reduced or on the full objective."""

    def __init__(
        self, region: TrustRegion[ReducedPoint] | TrustRegion[FullPoint], builder: KrylovWithinBudget | DenseBuilder
    ) -> None:
        self.region, self.builder = region, builder

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.region.status

    @property
    def point(self) -> ReducedPoint | FullPoint:
        """The last accepted model."""
        return self.region.point

    @property
    def bound(self) -> float | Damping | None:
        """The radius, or damping, of the next trial."""
        return self.region.bound

    @property
    def next_passes(self) -> int:
        """A trial and the gradient after it, and a Krylov space where there is none yet."""
        return 2 if self.region.model is not None else 4

    def gradient_norm(self) -> float | None:
        """The norm of the gradient."""
        return float(torch.linalg.vector_norm(self.point.gradient()))

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        return None if done is None else Trial(done.accepted, done.radius, done.ratio, done.rank, solver="krylov")

    def state(self) -> State:
        """The point, how its head was found, the radius, and the size of the Krylov space in use."""
        region, start = self.region, getattr(self.point, "start", None)
        return {
            "x": region.point.x,
            "start_W": start.W if start else None,
            "start_factor": start.factor if start else None,
            "bound": saved_bound(region.bound),
            "below_rounding": region.below_rounding,
            "rank_cap": self.builder.cap if region.model is not None else None,
        }

    def resume(self, state: State) -> None:
        """Build again what a run that was put aside had: the model of a point whose last trial was rejected."""
        self.region.bound = bound_of(state["bound"])
        self.region.below_rounding = state["below_rounding"]
        if state["rank_cap"] is not None:
            self.builder.cap = state["rank_cap"]
            self.region.model = self.builder.build(self.point)


class DenseMethod(TrustRegionMethod):
    """GNvpro with the exact step: the gradient comes with the matrix."""

    region: TrustRegion[ReducedPoint]
    builder: DenseBuilder

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
        return 1 + self.builder.dense.geodesic + self._matrix_passes

    def gradient_norm(self) -> float | None:
        """Free with the matrix; not told where the budget has no room for another one."""
        if self._matrix_passes > self.builder.settings.passes_left():
            return None
        return super().gradient_norm()

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        if done is None:
            return None
        return Trial(done.accepted, done.radius, done.ratio, done.rank, done.damping, "dense")

    def state(self) -> State:
        """Also whether the matrix was there already, which may have been more than the budget has left now."""
        return {**super().state(), "assembled": "gauss_newton" in self.region.point.__dict__}

    def resume(self, state: State) -> None:
        """Build it again then."""
        if state["assembled"]:
            self.region.point.gradient()
        super().resume(state)


@dataclass
class DenseBuilder:
    """Dense models; nothing about them depends on the budget."""

    settings: Settings
    dense: Dense
    cap: int = 0  # whatever it is: there is no rank to cap

    def __call__(self, point: ReducedPoint | FullPoint) -> LocalModel:
        """The local model at a point."""
        assert isinstance(point, ReducedPoint)
        return self.dense(point)

    build = __call__


@dataclass
class KrylovWithinBudget:
    """Krylov spaces no larger than the work budget leaves room for, the trial and its gradient counted."""

    settings: Settings
    cap: int = 0

    def __call__(self, point: ReducedPoint | FullPoint) -> LocalModel:
        """The local model at a point."""
        affordable = max(1, int((self.settings.passes_left() - 2) // 2))
        self.cap = min(self.settings.max_rank, affordable)
        return self.build(point)

    def build(self, point: ReducedPoint | FullPoint) -> LocalModel:
        """The local model with the cap as it is."""
        return Krylov(self.cap, self.settings.rtol)(point)


def gnvpro(problem: Problem, start: Start, settings: Settings, state: State | None) -> TrustRegionMethod:
    """The trust region on the reduced objective, with dense or Krylov steps."""
    theta, warm = start.theta, None if start.W is None else WarmStart(start.W)
    if state is not None:
        theta, warm = state["x"], warm_start_of(state)
    dense = pick_dense(settings.solver, problem, settings.eliminator, settings.dense)
    method: TrustRegionMethod
    if dense is not None:
        objective = ReducedObjective(problem, settings.eliminator, make_assembler(problem, theta, dense))
        rule = NielsenRule() if dense.damping else RadiusRule()
        build = DenseBuilder(settings, Dense(objective, bool(dense.geodesic)))
        method = DenseMethod(TrustRegion(objective, build, objective.start(theta, warm), start.bound, rule), build)
    else:
        objective, builder = ReducedObjective(problem, settings.eliminator), KrylovWithinBudget(settings)
        method = TrustRegionMethod(TrustRegion(objective, builder, objective.start(theta, warm), start.bound), builder)
    if state is not None:
        method.resume(state)
    return method


def saved_bound(bound: float | Damping | None) -> Any:
    """A radius or a damping as plain numbers."""
    return list(bound) if isinstance(bound, Damping) else bound


def bound_of(saved: Any) -> float | Damping | None:
    """A radius or a damping, as it was put aside."""
    return Damping(*saved) if isinstance(saved, tuple | list) else saved


def warm_start_of(state: State) -> WarmStart | None:
    """Where the elimination at the point of that state began."""
    return None if state["start_W"] is None else WarmStart(state["start_W"], state["start_factor"])


def gauss_newton(problem: Problem, start: Start, settings: Settings, state: State | None) -> TrustRegionMethod:
    """The trust region on the full objective; the head is a variable, and eliminated only to have a first value."""
    objective, builder = FullObjective(problem), KrylovWithinBudget(settings)
    if state is not None:
        point = objective.at(state["x"], None)
    elif start.W is None:
        point = full_point(ReducedObjective(problem, settings.eliminator).start(start.theta, None))
    else:
        point = objective.at(torch.cat([start.theta, start.W.reshape(-1)]), None)
    method = TrustRegionMethod(TrustRegion(objective, builder, point, start.bound), builder)
    if state is not None:
        method.resume(state)
    return method


def full_point(point: ReducedPoint) -> FullPoint:
    """The same theta and W as a point of the full objective, which shares the forward pass."""
    x = torch.cat([point.theta, point.W.reshape(-1)])
    return FullPoint(point.problem, x, point.theta, point.W, point.linearization, point.Z)


def with_passes_left(settings: Settings, passes_left: Callable[[], float]) -> Settings:
    """The settings with another view of the budget."""
    return replace(settings, passes_left=passes_left)
