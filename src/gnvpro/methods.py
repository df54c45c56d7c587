"""The methods that train: each moves theta and W by one iteration at a time, and all look the same from outside.

    gnvpro         trust region on the reduced objective                    head eliminated at every point
    gauss-newton   the same trust region on the full objective              theta and W together
    lbfgs-vpro     L-BFGS with a strong-Wolfe search, reduced objective     see `first_order`
    adam, nesterov stochastic gradients, full objective                     see `first_order`

A method is made for one problem (a network and a batch) from a `Start`, and can be put aside as a `State` - plain tensors
and numbers - from which it goes on to the last bit as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from gnvpro.dense import Dense
from gnvpro.head import Eliminator, WarmStart
from gnvpro.hybrid import Hybrid
from gnvpro.krylov import Krylov, KrylovModel
from gnvpro.objective import FullObjective, FullPoint, Problem, ReducedObjective, ReducedPoint
from gnvpro.search import SHORTEST, LineModel, SearchRule
from gnvpro.solvers import DenseSettings, exact_price, make_assembler, pick_solver
from gnvpro.status import Status
from gnvpro.step_rules import Bound, Damping, NielsenRule, RadiusRule, Search
from gnvpro.trust_region import Point, TrustRegion

State = dict[str, Any]  # tensors, numbers, and dictionaries of them
FIRST_STEPS = 5  # of quasi-Newton, before anything can be said about them
ENOUGH = 0.5  # times the objective, after quasi-Newton steps in the time of an exact one


@dataclass(frozen=True)
class Start:
    """Where a method begins: theta, and what an earlier batch or level left for it."""

    theta: Tensor
    W: Tensor | None = None
    bound: Bound | None = None


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


class TrustRegionMethod:
    """GNvpro and full Gauss-Newton: the same loop and the same Krylov space, on the reduced or on the full objective."""

    solver = "krylov"
    bound_type: type[Damping] | type[Search] = Damping  # where the bound is not a plain radius

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
    def bound(self) -> Bound | None:
        """What bounds the next trial."""
        return self.region.bound

    @property
    def builder(self) -> KrylovWithinBudget | Hybrid | None:
        """What builds the local models, where it remembers something."""
        build: object = self.region.build_model
        return build if isinstance(build, KrylovWithinBudget | Hybrid) else None

    @property
    def next_passes(self) -> int:
        """A trial and the gradient after it, and a Krylov space where there is none yet."""
        return 2 if self.region.model is not None else 4

    @property
    def gradient_passes(self) -> int:
        """Passes that the gradient still costs: one, until it was asked for."""
        return 0 if "_gradient" in self.point.__dict__ else 1

    def gradient_norm(self) -> float | None:
        """The norm of the gradient; not told where the budget has no room for it."""
        if self.gradient_passes > self.settings.passes_left():
            return None
        return float(torch.linalg.vector_norm(self.point.gradient()))

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        if done is None:
            return None
        radius = done.bound.radius if isinstance(done.bound, Search) else done.bound
        damping = done.damping if self.solver == "dense" else None
        return Trial(
            done.accepted,
            radius if isinstance(radius, float) else None,
            done.ratio,
            done.rank,
            damping,
            self.solver,
        )

    def state(self) -> State:
        """The point, how its head was found, the bound on the step, and whether gradient and model were built."""
        region, start = self.region, getattr(self.point, "start", None)
        return {
            "x": region.point.x,
            "start_W": start.W if start else None,
            "start_factor": start.factor if start else None,
            "bound": list(region.bound) if isinstance(region.bound, tuple) else region.bound,
            "below_rounding": region.below_rounding,
            "has_gradient": self.gradient_passes == 0,
            "has_model": region.model is not None,
            "builder": self.builder.state() if self.builder else None,
        }

    def resume(self, state: State) -> None:
        """Build again what a run that was put aside had built at its point."""
        bound = state["bound"]
        self.region.bound = self.bound_type(*bound) if isinstance(bound, list) else bound
        self.region.below_rounding = state["below_rounding"]
        if state["has_gradient"]:
            self.point.gradient()
        if self.builder:
            self.builder.resume(state["builder"])
        if state["has_model"]:
            again = self.builder.build if self.builder else self.region.build_model
            self.region.model = again(self.point)  # type: ignore[arg-type]


class DenseMethod(TrustRegionMethod):
    """GNvpro with the exact step: the gradient comes with the matrix."""

    solver = "dense"
    region: TrustRegion[ReducedPoint]

    def __init__(self, region: TrustRegion[ReducedPoint], settings: Settings, geodesic: bool, begun_at: Tensor) -> None:
        super().__init__(region, settings)
        self.geodesic = geodesic
        self.begun_at = begun_at  # theta that decided on the directions of all matrices

    @property
    def gradient_passes(self) -> int:
        """Passes that the matrix still costs."""
        point = self.region.point
        if "gauss_newton" in point.__dict__ or point.assembler is None:
            return 0
        network = point.problem.network
        return point.assembler.passes(network.n_features, network.n_targets, point.problem.misfit.isotropic)

    @property
    def next_passes(self) -> int:
        """A trial, the probe of the geodesic correction, and a matrix where there is none yet."""
        return 1 + self.geodesic + self.gradient_passes

    def state(self) -> State:
        """And where it began."""
        return {**super().state(), "begun_at": self.begun_at}


class HybridMethod(TrustRegionMethod):
    """GNvpro with quasi-Newton steps between Krylov spaces."""

    solver = "hybrid"
    bound_type = Search
    region: TrustRegion[ReducedPoint]

    def iterate(self) -> Trial | None:
        """One trial step; a quasi-Newton direction that only leads up is given up for a Krylov space."""
        region, bound = self.region, self.region.bound
        too_short = isinstance(bound, Search) and bound.fraction < SHORTEST
        if too_short and isinstance(region.model, LineModel) and isinstance(self.builder, Hybrid):
            region.model = self.builder.renew(self.point)
        return super().iterate()


class QuickStart:
    """Quasi-Newton steps as long as they pay, then exact ones.

    Far from a minimum they gain as much for a fraction of the time. They pay while those in the time of one exact step
    (`exact_price`) halve the objective, or, when there were fewer, are on the way to.
    """

    def __init__(self, quick: HybridMethod, exact: Callable[..., DenseMethod], price: float) -> None:
        self.current: HybridMethod | DenseMethod = quick
        self.exact = exact
        self.window = max(FIRST_STEPS, math.ceil(price / 2))  # a step is a trial and the gradient after it
        self.values: list[float] = [quick.point.value]  # as many as matter

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.current.status

    @property
    def point(self) -> ReducedPoint:
        """The last accepted model."""
        return self.current.region.point

    @property
    def bound(self) -> Bound | None:
        """The damping, once there were exact steps."""
        return None if isinstance(self.current, HybridMethod) else self.current.bound

    @property
    def next_passes(self) -> int:
        """Those of the next step, of either kind."""
        return self.current.next_passes

    def gradient_norm(self) -> float | None:
        """The norm of the gradient."""
        return self.current.gradient_norm()

    def iterate(self) -> Trial | None:
        """One trial step."""
        if isinstance(self.current, HybridMethod):
            trial = self.current.iterate()
            self.values = [*self.values[-self.window :], self.point.value]
            steps = len(self.values) - 1
            pays = steps < FIRST_STEPS or self.values[-1] <= ENOUGH ** (steps / self.window) * self.values[0]
            if trial is None or not pays:
                self.current = self.exact(self.point)
            if trial is not None:
                return trial
        return self.current.iterate()

    def state(self) -> State:
        """That of the steps at hand."""
        return {**self.current.state(), "quick": isinstance(self.current, HybridMethod), "values": self.values}

    def resume(self, state: State) -> None:
        """Go on with the same kind of steps."""
        self.values = state["values"]
        if not state["quick"]:
            self.current = self.exact(self.point, state["begun_at"])
        self.current.resume(state)


@dataclass
class KrylovWithinBudget:
    """Krylov spaces no larger than the work budget leaves room for, the trial and its gradient counted."""

    settings: Settings
    cap: int = 0

    def __call__(self, point: Point) -> KrylovModel:
        """The local model at a point."""
        affordable = max(1, int((self.settings.passes_left() - 2) // 2))
        self.cap = min(self.settings.max_rank, affordable)
        return self.build(point)

    def build(self, point: Point) -> KrylovModel:
        """The local model with the cap as it is: the budget was another when it was built first."""
        return Krylov(self.cap, self.settings.rtol)(point)

    @property
    def pays(self) -> bool:
        """Whether the budget lasts for a space and as many passes again for steps that use what it learnt."""
        return self.settings.passes_left() > 4 * self.settings.max_rank

    def state(self) -> State:
        """The cap."""
        return {"cap": self.cap}

    def resume(self, state: State) -> None:
        """Take up the cap."""
        self.cap = state["cap"]


def gnvpro(problem: Problem, start: Start, settings: Settings, state: State | None) -> TrustRegionMethod | QuickStart:
    """The trust region on the reduced objective: exact steps, steps from Krylov spaces, or quasi-Newton steps between these."""
    theta, warm = start.theta, None if start.W is None else WarmStart(start.W)
    if state is not None:
        theta, warm = state["x"], warm_start_of(state)
    objective = ReducedObjective(problem, settings.eliminator)
    first = objective.start(theta, warm)
    dense = pick_solver(settings.solver, problem, settings.eliminator, settings.dense)

    def hybrid(krylov: KrylovWithinBudget, may_build: Callable[[], bool]) -> HybridMethod:
        builder = Hybrid(krylov, may_build)
        return HybridMethod(TrustRegion(objective, builder, first, start.bound, SearchRule()), settings)

    method: TrustRegionMethod | QuickStart
    if dense is not None:
        exact = partial(dense_method, settings, dense, start.bound)
        if settings.solver == "auto" and start.W is None:  # later batches and levels begin from what is good already
            quick = hybrid(KrylovWithinBudget(replace(settings, max_rank=1)), lambda: False)
            method = QuickStart(quick, exact, exact_price(problem, dense))
        else:
            method = exact(first, None if state is None else state["begun_at"])
    elif settings.solver == "krylov":
        region = TrustRegion(objective, KrylovWithinBudget(settings), first, start.bound)
        method = TrustRegionMethod(region, settings)
    else:
        krylov = KrylovWithinBudget(settings)
        method = hybrid(krylov, lambda: krylov.pays)
    if state is not None:
        method.resume(state)
    return method


def dense_method(
    settings: Settings,
    dense: DenseSettings,
    bound: Bound | None,
    point: ReducedPoint,
    begun_at: Tensor | None = None,
) -> DenseMethod:
    """Exact steps from a point; a run that is taken up tells where its first matrix was."""
    begun_at = point.theta if begun_at is None else begun_at
    assembler = make_assembler(point.problem, begun_at, dense)
    objective = ReducedObjective(point.problem, settings.eliminator, assembler)
    build = Dense(objective, bool(dense.geodesic), dense.scaling or 0.0)
    rule = NielsenRule() if dense.damping else RadiusRule()
    region = TrustRegion(objective, build, replace(point, assembler=assembler), bound, rule)
    return DenseMethod(region, settings, bool(dense.geodesic), begun_at)


def warm_start_of(state: State) -> WarmStart | None:
    """Where the elimination at the point of that state began."""
    return None if state["start_W"] is None else WarmStart(state["start_W"], state["start_factor"])


def gauss_newton(problem: Problem, start: Start, settings: Settings, state: State | None) -> TrustRegionMethod:
    """The trust region on the full objective; the head is a variable, and eliminated only to have a first value."""
    objective = FullObjective(problem)
    if state is not None:
        point = objective.at(state["x"], None)
    elif start.W is None:
        point = full_point(ReducedObjective(problem, settings.eliminator).start(start.theta, None))
    else:
        point = objective.at(torch.cat([start.theta, start.W.reshape(-1)]), None)
    method = TrustRegionMethod(TrustRegion(objective, KrylovWithinBudget(settings), point, start.bound), settings)
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
