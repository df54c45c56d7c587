"""The trust region: one loop for the head and for theta, one rule for the radius or the damping.

At an accepted point a local model is built once. It answers one question, the step for a given bound (a radius, or a
damping: see `step_rules`), so a rejected trial tightens the bound and asks again:

    step  = model.solve_within(radius), or model.solve_damped(damping)
    trial = objective.at(x + step)
    ratio = (actual reduction) / (predicted reduction)
    accept when ratio > accept_above; the rule makes the next bound from the ratio

Near a minimum both reductions drown in rounding error and their quotient means nothing. Both therefore get a term of
the size of that error (Conn, Gould, Toint: Trust-Region Methods, sec. 17.4.2): the quotient tends to one there, and
Newton's method goes on to the accuracy that its gradient, not its objective, can resolve.

Where a trial did what the model promised and the radius stopped it, a longer step from the same model may be tried before a
new model is built (`longer`): one evaluation each, twice as long each time, while the objective falls.

Legend: Delta -> bound (of a RadiusRule), x -> theta or vec W, Phi -> value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gnvpro.linalg.operators import LinearOperator
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import (
    AT_BOUNDARY,
    GROW_ABOVE,
    Bound,
    LocalModel,
    RadiusRule,
    Step,
    StepRule,
    loaded_bound,
    radius_of,
    saved_bound,
)


class Point(Protocol):
    """An evaluated point; derivatives are computed when asked for, once, and until then it may hold what they need."""

    @property
    def x(self) -> Tensor:
        """Where it is."""

    @property
    def value(self) -> float:
        """The objective there."""

    def gradient(self) -> Tensor:
        """Its gradient."""

    def curvature(self) -> LinearOperator:
        """A symmetric positive semi-definite model of its Hessian."""

    def free(self) -> None:
        """Free the memory of what derivatives are computed from; asked for again, they must compute it again."""


PointT = TypeVar("PointT", bound=Point)


class Objective(Protocol[PointT]):
    """What the loop minimises."""

    @property
    def epsilon(self) -> float:
        """The relative rounding error of x and of the value."""

    def at(self, x: Tensor, near: PointT | None) -> PointT:
        """Evaluate at x; `near` is the last accepted point, for warm starts."""


@dataclass(frozen=True)
class StepReport:
    """What one trial did."""

    accepted: bool
    ratio: float | None = None  # actual over predicted reduction
    radius: float | None = None  # that bounded the trial
    damping: float | None = None
    rank: int | None = None  # dimension of the space the step was taken from
    solver: str | None = None  # that made the step
    learning_rate: float | None = None  # of methods on random batches


class TrustRegion(Generic[PointT]):
    """The loop, one trial at a time; `point` is always an accepted one. Nobody else writes to it."""

    def __init__(
        self,
        objective: Objective[PointT],
        build_model: Callable[[PointT], LocalModel],
        point: PointT,
        bound: Bound | None = None,
        rule: StepRule | None = None,
        longer: Callable[[], bool] | None = None,
        rounding: Callable[[PointT], float] | None = None,
    ) -> None:
        self.objective = objective
        self.point = point
        self.bound = bound
        self.status = Status.RUNNING
        self.model: LocalModel | None = None
        self._build_model = build_model
        self._rule: StepRule = rule or RadiusRule()
        self._below_rounding = 0
        self._rounding = rounding  # error of a point's value; None: epsilon times the value
        self._longer = longer  # whether one more evaluation may be spent on a longer step; None: never

    def build(self) -> LocalModel:
        """The local model at the point, made if there is none yet."""
        if self.model is None:
            self.model = self._build_model(self.point)
        return self.model

    def replace_model(self, model: LocalModel) -> None:
        """Take the next step from another model of the same point."""
        self.model = model

    def iterate(self) -> StepReport | None:
        """Try one step; None, and a `status`, where there is none to try."""
        model = self.build()
        steepest = float(torch.linalg.vector_norm(model.gradient, math.inf))
        if steepest == 0 or not math.isfinite(steepest):
            self.status = Status.CONVERGED if steepest == 0 else Status.NOT_FINITE
            return None
        if model.rank == 0:  # there is a way down, but no curvature to go by
            self.status = Status.NOT_FINITE
            return None
        step, bound = self._rule.propose(model, self.bound)
        x, value, epsilon = self.point.x, self.point.value, self.objective.epsilon
        if step.norm <= epsilon * float(torch.linalg.vector_norm(x)) * 1e-3:
            self.status = Status.CONVERGED if step.damping == 0.0 else Status.STEP_TOO_SMALL
            return None
        noise = max(epsilon * abs(value) if self._rounding is None else self._rounding(self.point), 1e-300)
        self._below_rounding = self._below_rounding + 1 if step.predicted_reduction <= noise else 0
        if self._below_rounding > 5:
            self.status = Status.STEP_TOO_SMALL
            return None
        self.point.free()  # the model knows all that is asked of this point, and the trial needs the room
        trial = self.objective.at(x + step.d_x, self.point)
        ratio = (value - trial.value + noise) / (max(step.predicted_reduction, 0.0) + noise)
        accepted = math.isfinite(trial.value) and ratio > self._rule.accept_above
        self.bound = self._rule.update(bound, step.norm, ratio if math.isfinite(trial.value) else math.nan)
        if accepted and self._longer is not None and stopped_by_radius(step, bound, ratio):
            step, trial = self._lengthened(model, step, trial)
            ratio = (value - trial.value + noise) / (max(step.predicted_reduction, 0.0) + noise)
        if accepted:
            self.point, self.model = trial, None
        return StepReport(accepted, ratio, radius_of(bound), step.damping, model.rank)

    def _lengthened(self, model: LocalModel, step: Step, trial: PointT) -> tuple[Step, PointT]:
        """The longest of the steps, each twice the one before, to which the objective falls; the radius follows it."""
        assert self._longer is not None
        while self._longer():
            further = model.solve_within(2 * step.norm)
            if further.norm < 1.1 * step.norm:  # that was the model's own minimum
                break
            trial.free()
            there = self.objective.at(self.point.x + further.d_x, trial)  # the head near by is a better start
            if not there.value < trial.value:  # also when it is not a number
                break
            step, trial, self.bound = further, there, 2 * further.norm
        return step, trial

    def state(self) -> dict[str, Any]:
        """What `resume` needs beside the point."""
        return {
            "bound": saved_bound(self.bound),
            "below_rounding": self._below_rounding,
            "has_model": self.model is not None,
        }

    def resume(self, state: dict[str, Any], build_again: Callable[[PointT], LocalModel] | None = None) -> None:
        """Go on as before at the same point; the model, where there was one, is built again."""
        self.bound, self._below_rounding = loaded_bound(state["bound"]), state["below_rounding"]
        if state["has_model"]:
            self.model = (build_again or self._build_model)(self.point)


def stopped_by_radius(step: Step, bound: Bound, ratio: float) -> bool:
    """Whether the model was right and a radius, not the model's own minimum, ended the step."""
    radius = radius_of(bound)
    return radius is not None and ratio > GROW_ABOVE and step.norm > AT_BOUNDARY * radius


def minimize(
    region: TrustRegion[PointT], converged: Callable[[PointT], bool], iterations: int
) -> tuple[PointT, Status, int]:
    """Run the loop until a point satisfies `converged`, nothing more can be done, or the trials are used up."""
    for done in range(iterations):
        if converged(region.point):
            return region.point, Status.CONVERGED, done
        if region.iterate() is None:
            return region.point, region.status, done
    status = Status.CONVERGED if converged(region.point) else Status.ITERATIONS_SPENT
    return region.point, status, iterations
