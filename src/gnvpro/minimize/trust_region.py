"""The trust region: one loop for the head and for theta, one rule for the radius or the damping.

At an accepted point a local model is built once. It answers one question, the step for a given bound (a radius, or a
damping: see `step_rules`), so a rejected trial tightens the bound and asks again:

    step  = model.solve_within(radius), or model.solve_damped(damping)
    trial = objective.at(x + step)
    ratio = (actual reduction) / (predicted reduction)
    accept when ratio > accept_above; the rule makes the next bound from the ratio

Near a minimum both reductions drown in rounding error and their quotient means nothing. Both therefore get a term of
the size of that error (Conn, Gould, Toint: Trust-Region Methods, sec. 17.4.2): the quotient tends to one there, and
Newton's method continues to the accuracy that its gradient, not its objective, can resolve.

Legend: Delta -> bound (of a RadiusRule), x -> theta or vec W, Phi -> value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound, LocalModel, RadiusRule, StepRule, radius_of


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

    def free(self) -> None:
        """Free the memory of what derivatives are computed from; asked for again, they must compute it again."""


PointT = TypeVar("PointT", bound=Point)


class Objective(Protocol[PointT]):
    """Objective of the loop."""

    @property
    def epsilon(self) -> float:
        """The relative rounding error of x and of the value."""

    def at(self, x: Tensor, near: PointT | None) -> PointT:
        """Evaluate at x; `near` is the last accepted point, for warm starts."""


@dataclass(frozen=True)
class StepReport:
    """Result of one trial.

    `Method.step` returns it; the history records it.

    Args:
        accepted: whether the trial became the new model.
        ratio: actual over predicted reduction.
        radius: radius that bounded the trial.
        damping: damping of the trial.
        rank: dimension of the space the step was taken from.
        solver: name of the solver that made the step.
        learning_rate: learning rate, for methods on random batches.
        note: a remark for the history.

    >>> StepReport(True, ratio=0.9, solver="descent").radius is None
    True
    """

    accepted: bool
    ratio: float | None = None
    radius: float | None = None
    damping: float | None = None
    rank: int | None = None
    solver: str | None = None
    learning_rate: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Trial(Generic[PointT]):
    """The loop after a trial: the last accepted point, the next bound, and what was tried."""

    point: PointT
    bound: Bound
    below_rounding: int  # steps in a row whose promise drowned in rounding error
    report: StepReport


def try_step(
    objective: Objective[PointT],
    model: LocalModel,
    rule: StepRule,
    at: PointT,
    bound: Bound | None,
    below_rounding: int,
    noise: float | None = None,
) -> Trial[PointT] | Status:
    """Try one step from a point; return a status if there is none to try.

    The noise is the rounding error of the value; left out, it is epsilon times the value.
    """
    steepest = float(torch.linalg.vector_norm(model.gradient, math.inf))
    if steepest == 0 or not math.isfinite(steepest):
        return Status.CONVERGED if steepest == 0 else Status.NOT_FINITE
    if model.rank == 0:  # there is a way down, but no curvature to go by
        return Status.NOT_FINITE
    step, bound = rule.propose(model, bound)
    x, value, epsilon = at.x, at.value, objective.epsilon
    if step.norm <= epsilon * float(torch.linalg.vector_norm(x)) * 1e-3:
        return Status.CONVERGED if step.damping == 0.0 else Status.STEP_TOO_SMALL
    noise = max(epsilon * abs(value) if noise is None else noise, 1e-300)
    below_rounding = below_rounding + 1 if step.predicted_reduction <= noise else 0
    if below_rounding > 5:
        return Status.STEP_TOO_SMALL
    at.free()  # the model holds everything needed of this point, and the trial needs the memory
    trial = objective.at(x + step.d_x, at)
    finite = math.isfinite(trial.value)
    ratio = (value - trial.value + noise) / (max(step.predicted_reduction, 0.0) + noise)
    accepted = finite and ratio > rule.accept_above
    report = StepReport(accepted, ratio, radius_of(bound), step.damping, model.rank)
    after = rule.update(bound, step.norm, ratio if finite else math.nan)
    return Trial(trial if accepted else at, after, below_rounding, report)


class TrustRegion(Generic[PointT]):
    """The loop with its own memory, one trial at a time; `point` is always an accepted one."""

    def __init__(
        self,
        objective: Objective[PointT],
        build_model: Callable[[PointT], LocalModel],
        point: PointT,
        bound: Bound | None = None,
        rule: StepRule | None = None,
        below_rounding: int = 0,
        rounding: Callable[[PointT], float] | None = None,
    ) -> None:
        self.objective, self.point, self.bound, self.below_rounding = objective, point, bound, below_rounding
        self.status = Status.RUNNING
        self.model: LocalModel | None = None
        self._build_model = build_model
        self._rule: StepRule = rule or RadiusRule()
        self._rounding = rounding  # error of a point's value; None: epsilon times the value

    def build(self) -> LocalModel:
        """The local model at the point, made if there is none yet."""
        if self.model is None:
            self.model = self._build_model(self.point)
        return self.model

    def iterate(self) -> StepReport | None:
        """Try one step; None, and a `status`, if there is none to try."""
        model, at = self.build(), self.point
        noise = None if self._rounding is None else self._rounding(at)
        done = try_step(self.objective, model, self._rule, at, self.bound, self.below_rounding, noise)
        if isinstance(done, Status):
            self.status = done
            return None
        self.point, self.bound, self.below_rounding = done.point, done.bound, done.below_rounding
        if done.report.accepted:
            self.model = None
        return done.report


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
