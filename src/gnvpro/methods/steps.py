"""The trust-region loop as a running method, one class for each way to build the local models.

Steps             any local model, such as those on Krylov spaces       reduced or full objective
QuasiNewtonSteps  quasi-Newton directions, Krylov spaces in between     reduced
DenseSteps        the whole matrix                                      reduced
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from gnvpro.methods.protocol import Budget, State, point_state
from gnvpro.minimize.dense_model import DenseModel, scaled_metric, straight
from gnvpro.minimize.krylov import KrylovModel, krylov_model
from gnvpro.minimize.line_model import SHORTEST_FRACTION, LineModel, SearchRule
from gnvpro.minimize.part_model import ITERATIONS, PartModel
from gnvpro.minimize.quasi_newton import MAX_GROWTH, MAX_PAIRS, STEPS_PER_DIMENSION, Pairs, Ritz, ritz_of
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import (
    Bound,
    LineSearchBound,
    LocalModel,
    NielsenRule,
    RadiusRule,
    StepRule,
    loaded_bound,
    saved_bound,
)
from gnvpro.minimize.trust_region import Point, StepReport, TrustRegion
from gnvpro.objectives.full import FullPoint
from gnvpro.objectives.gauss_newton_matrix import MatrixBuilder
from gnvpro.objectives.geodesic import Geodesic
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

if TYPE_CHECKING:
    from gnvpro.methods.solvers import Dense

P = TypeVar("P", ReducedPoint, FullPoint)


@dataclass
class KrylovWithinBudget:
    """Krylov spaces no larger than the work budget leaves room for, the trial and its gradient counted."""

    max_rank: int
    rtol: float
    budget: Budget
    damped: str = "model"
    cap: int = 0

    def __call__(self, point: Point) -> KrylovModel:
        """The local model at a point."""
        self.cap = max(1, int(min(self.max_rank, self.budget.products_left)))
        return self.build(point)

    def build(self, point: Point) -> KrylovModel:
        """The local model with the cap as it is: the budget was another when it was built first."""
        return krylov_model(point, self.cap, self.rtol, self.damped)

    def pays(self) -> bool:
        """Whether the budget lasts for a space and as many passes again for steps that use what it learnt."""
        return self.budget.passes_left > 4 * self.max_rank

    def state(self) -> State:
        """The cap."""
        return {"cap": self.cap}

    def resume(self, state: State) -> None:
        """Take up the cap."""
        self.cap = state["cap"]


class Steps(Generic[P]):
    """The loop from a point on, with models that a function builds."""

    settles = True
    least_passes = 4  # of a model and its trial: a Krylov space of one dimension, the trial, its gradient

    def __init__(
        self,
        name: str,
        point: P,
        objective: Any,
        build: Callable[[P], LocalModel],
        budget: Budget,
        bound: Bound | None = None,
        rule: StepRule | None = None,
    ) -> None:
        self.name, self.budget = name, budget
        self.builder: Any = build if hasattr(build, "resume") else None  # where it remembers something
        self.region: TrustRegion[P] = TrustRegion(objective, build, point, bound, rule)

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.region.status

    @property
    def point(self) -> P:
        """The last accepted model."""
        return self.region.point

    @property
    def bound(self) -> Bound | None:
        """What bounds the next trial."""
        return self.region.bound

    @property
    def next_passes(self) -> int:
        """A trial and the gradient after it, and the model where there is none yet."""
        return 2 if self.region.model is not None else self.least_passes

    def gradient_norm(self) -> float | None:
        """The norm of the gradient; None where the budget has no room for it."""
        if not self.point.has_gradient and self.budget.passes_left < 1:
            return None
        return float(torch.linalg.vector_norm(self.point.gradient()))

    def iterate(self) -> StepReport | None:
        """One trial step."""
        report = self.region.iterate()
        return report and StepReport(report.accepted, report.ratio, report.radius, None, report.rank, self.name)

    def state(self) -> State:
        """The point, how its head was found, the loop, and what the builder remembers."""
        return {
            **point_state(self.point.x, getattr(self.point, "start", None)),
            "bound": saved_bound(self.region.bound),
            "below_rounding": self.region.below_rounding,
            "has_model": self.region.model is not None,
            "has_gradient": self.point.has_gradient,
            "builder": self.builder.state() if self.builder else None,
        }

    def resume(self, state: State) -> None:
        """Build again what there was at the point."""
        if state["has_gradient"]:
            self.point.gradient()
        if self.builder:
            self.builder.resume(state["builder"])
        self.region.bound, self.region.below_rounding = loaded_bound(state["bound"]), state["below_rounding"]
        if state["has_model"]:
            self.region.model = (self.builder.build if self.builder else self.region._build_model)(self.point)


class QuasiNewtonSteps(Steps[ReducedPoint]):
    """Quasi-Newton steps between Krylov spaces."""

    def __init__(
        self,
        name: str,
        point: ReducedPoint,
        builder: KrylovWithinBudget,
        may_build: Callable[[], bool],
        bound: Bound | None = None,
    ) -> None:
        self.quasi_newton = QuasiNewton(builder, may_build)
        super().__init__(name, point, point.problem.reduced, self.quasi_newton, builder.budget, bound, SearchRule())

    def iterate(self) -> StepReport | None:
        """One trial step; a quasi-Newton direction that only leads up is given up for a Krylov space."""
        bound = self.region.bound
        too_short = isinstance(bound, LineSearchBound) and bound.fraction < SHORTEST_FRACTION
        if too_short and isinstance(self.region.model, LineModel):
            self.region.model = self.quasi_newton.force_krylov(self.point)
        return super().iterate()


class DenseSteps(Steps[ReducedPoint]):
    """Exact steps: the gradient comes with the matrix; or almost exact ones, whose matrix is of a part of the samples."""

    def __init__(
        self,
        settings: Dense,
        point: ReducedPoint,
        builder: MatrixBuilder,
        part: Problem | None,
        budget: Budget,
        bound: Bound | None,
        begun_at: Tensor,
        first_damping: float,
    ) -> None:
        self.builder_of_matrices, self.matrix_passes = builder, builder.passes(point.problem)
        self.begun_at = begun_at  # theta that decided on the subspace of all matrices
        self.geodesic = geodesic = bool(settings.geodesic)
        if part is not None:  # and the gradient of all samples, products with their curvature
            self.matrix_passes = 2 + 2 * ITERATIONS + 3 * geodesic

        def build(point: ReducedPoint) -> LocalModel:
            made = builder.build(point) if part is None else builder.build_of_part(point, part)
            reduce, expand = made.subspace.reduce, made.subspace.expand
            metric = scaled_metric(made.subspace.parameter_means(made.matrix.diagonal()), settings.scaling or 0.0)
            bend = Geodesic(point, made).bend if geodesic else straight
            known = made.matrix, reduce(made.gradient), metric, expand, bend
            product = made.product
            return DenseModel(*known) if product is None else PartModel(*known, lambda y: reduce(product(expand(y))))

        self.first_damping = first_damping  # times the usual one
        rule = NielsenRule(first=1e-3 * first_damping) if settings.step_control == "damping" else RadiusRule()
        super().__init__(settings.name, point, point.problem.reduced, build, budget, bound, rule)

    @property
    def _model_passes(self) -> int:
        """Passes that the matrix still costs."""
        return 0 if self.region.model is not None else self.matrix_passes

    @property
    def next_passes(self) -> int:
        """A trial, the probe of the geodesic correction, and a matrix where there is none yet."""
        return 1 + self.geodesic + self._model_passes

    def gradient_norm(self) -> float | None:
        """The norm of the gradient, which comes with the matrix; None where the budget has no room for it."""
        if self._model_passes > self.budget.passes_left:
            return None
        return float(torch.linalg.vector_norm(self.region.build().gradient))

    def iterate(self) -> StepReport | None:
        """One trial step."""
        report = self.region.iterate()
        return report and replace(report, solver=self.name)

    def state(self) -> State:
        """And where it began."""
        return {**super().state(), "begun_at": self.begun_at, "first_damping": self.first_damping}


class QuasiNewton:
    """Builds a Krylov model at every so many points, and quasi-Newton models in between."""

    def __init__(self, krylov: Any, may_build: Callable[[], bool]) -> None:
        self.krylov = krylov
        self.may_build = may_build  # whether the budget has room for a Krylov space and for steps that use it
        self.pairs: Pairs | None = None
        self.ritz: Ritz | None = None
        self.steps = 0  # quasi-Newton models since the last Krylov space
        self.longest = inf  # quasi-Newton step
        self.before: tuple[Tensor, Tensor] | None = None  # x and gradient where the last model was built

    def __call__(self, point: Point) -> LocalModel:
        """The local model at a point that the last model's step has led to."""
        if self.before is not None and self.ritz is not None:
            x, gradient = self.before
            s = point.x - x
            self.longest = MAX_GROWTH * float(torch.linalg.vector_norm(s))
            self.pairs = (self.pairs or Pairs.none(s)).with_pair(s, point.gradient() - gradient, MAX_PAIRS)
            if self.steps == 0:
                self.ritz = self.ritz.damped(gradient, float(torch.linalg.vector_norm(s)))
            spent = self.steps >= STEPS_PER_DIMENSION * len(self.ritz.values)
            self.steps = 0 if spent and self.may_build() else self.steps + 1
        self.before = (point.x, point.gradient())
        return self._model(point, self.krylov)

    def force_krylov(self, point: Point) -> LocalModel:
        """A Krylov model in the place of a quasi-Newton model that led nowhere."""
        self.steps = 0
        return self._model(point, self.krylov)

    def build(self, point: Point) -> LocalModel:
        """The model of before, built again."""
        return self._model(point, self.krylov.build)

    def _model(self, point: Point, build_krylov: Callable[[Point], KrylovModel]) -> LocalModel:
        if self.ritz is None or self.steps == 0:
            model = build_krylov(point)
            self.ritz = ritz_of(model) if model.rank else None
            return model
        pairs = self.pairs or Pairs.none(point.x)
        direction = -pairs.inverse_curvature(self.ritz, point.gradient())
        length = float(torch.linalg.vector_norm(direction))
        most = (
            1.0 if length <= self.longest else self.longest / length
        )  # a tiny gradient's direction may have no length
        return LineModel(point.gradient(), direction, len(self.ritz.values) + len(pairs), most)

    def state(self) -> dict[str, Any]:
        """What `resume` needs."""
        x, gradient = self.before or (None, None)
        return {
            **self.krylov.state(),
            "steps": self.steps,
            "longest": self.longest,
            "before_x": x,
            "before_gradient": gradient,
            "ritz": self.ritz and (self.ritz.vectors, self.ritz.values),
            "pairs": None if self.pairs is None else vars(self.pairs),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Know again what was known."""
        self.krylov.resume(state)
        self.steps, self.longest = state["steps"], state["longest"]
        self.before = None if state["before_x"] is None else (state["before_x"], state["before_gradient"])
        self.ritz = state["ritz"] and Ritz(*state["ritz"])
        self.pairs = state["pairs"] and Pairs(**state["pairs"])
