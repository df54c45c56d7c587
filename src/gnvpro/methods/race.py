"""Cheap steps first, exact steps once they gain more for what they cost: the running part of `auto`.

The rules are in `gnvpro.methods.auto`. A trail holds the cost and Phi after every cheap step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gnvpro.methods.costs import Costs
from gnvpro.methods.protocol import Budget, HandsOn, State
from gnvpro.methods.solvers import head_size
from gnvpro.methods.steps import Steps
from gnvpro.minimize.step_rules import Bound, loaded_bound, radius_of, saved_bound
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.reduced import ReducedPoint

HALVED = math.log(2.0)

Trail = list[tuple[float, float]]


@dataclass(frozen=True)
class Cheap:
    """How cheap steps begin, and whether they take two passes each, as quasi-Newton steps do.

    The third argument of `begin` returns the cost of an exact step in cheap steps.
    """

    begin: Callable[[ReducedPoint, Bound | None, Callable[[], float]], Steps[ReducedPoint]]
    two_passes: bool


class Race(HandsOn):
    """Cheap steps, then exact ones; the other kind if one cannot go on."""

    def __init__(
        self,
        cheap: Cheap,
        costs: Costs,
        point: ReducedPoint,
        budget: Budget,
        state: State | None,
        first_value: float | None = None,
    ) -> None:
        self.cheap, self.costs, self.budget = cheap, costs, budget
        self.rules = point.problem.policy.solver
        self.begun_at, self.first_value = point.theta, point.value if first_value is None else first_value
        self.bounds: dict[str, Bound | None] = {"cheap": None, "exact": None}
        self.trail: Trail = []  # cost and Phi, step by step since cheap steps began
        self.failed: list[str] = []  # kinds that could not go on, or are never worth a trial
        self.exact_steps = 0
        if state is not None:
            self.name = state["kind"]
            self.current = self._steps(self.name, point, state)
            return
        self.failed = [] if costs.cheap_first else ["cheap"]
        self._enter("cheap" if costs.cheap_first else "exact", point)

    # -- what others see

    @property
    def bound(self) -> Bound | None:
        """The bound of exact steps, with which the next batch begins; None before the first of them."""
        return self.current.bound if self.name == "exact" else self.bounds["exact"]

    @property
    def settles(self) -> bool:
        """Whether a standstill is an end: some exact steps have been tried, or none can be taken."""
        return self.exact_steps >= self.rules.judged_after or "exact" in self.failed

    def iterate(self) -> StepReport | None:
        """One trial step, and the decision about the next."""
        report = self._iterate()
        if report is None:
            self.failed = [*self.failed, self.name]
            other = "exact" if self.name == "cheap" else "cheap"
            if other in self.failed or not self._affords(other):
                return None
            self._enter(other, self.point)
            report = self._iterate()
        if report is not None and self.name == "cheap":
            self.trail = [*self.trail[-self.rules.most_window :], (self.costs.spent, self.point.value)]
            if "exact" not in self.failed and self._exact_pays() and self._affords("exact"):
                self._enter("exact", self.point)
        return report

    def _iterate(self) -> StepReport | None:
        before = self.current.region.model is None
        report = self.current.iterate()
        self.costs.matrices += self.name == "exact" and before
        self.costs.steps += 1
        self.exact_steps += self.name == "exact"
        return report

    # -- decisions

    def _affords(self, name: str) -> bool:
        """Return whether work and seconds last for steps of this kind."""
        if name == "cheap":
            return self.budget.passes_left >= Steps.least_passes
        passes = self.costs.dense.step_passes(*head_size(self.point.problem))
        return self.budget.passes_left >= passes and self.budget.seconds_left > self.costs.exact_seconds

    def _exact_pays(self) -> bool:
        """Return whether the cheap steps at the cost of two exact ones no longer halve Phi."""
        each, steps = (self.trail[-1][0] - self.trail[0][0]) / (len(self.trail) - 1), len(self.trail) - 1
        if self.cheap.two_passes:
            self.costs.calibrate(each)
        least, most = self.rules.least_window, self.rules.most_window
        first = 1 if self.cheap.two_passes else least
        window = min(max(round(2 * self.costs.exact_step / max(each, 1e-9)), least), most)
        recent = self.trail[-window - 1 :]
        return steps >= first and gained(recent) < HALVED * (len(recent) - 1) / window

    def _exact_in_steps(self) -> float:
        """Return the cost of an exact step in cheap steps; 0 before the first of these."""
        steps = len(self.trail) - 1
        spent = self.trail[-1][0] - self.trail[0][0] if self.trail else 0.0
        return self.costs.exact_step * steps / spent if spent > 0 else 0.0

    # -- the two kinds

    def _enter(self, name: str, point: ReducedPoint) -> None:
        if hasattr(self, "current"):
            self.bounds[self.name] = self.current.bound
        self.name = name
        self.current = self._steps(name, point, None)
        self.trail = [(self.costs.spent, point.value)]

    def _steps(self, name: str, point: ReducedPoint, state: State | None) -> Steps[ReducedPoint]:
        if name == "cheap":
            return self.cheap.begin(point, self.bounds["cheap"], self._exact_in_steps)
        # The damping that suits exact steps is as at the beginning of training on CDR, and has fallen like Phi on DCR. Between
        # the two: too little costs a few trials, each growing it faster, too much a matrix for each third.
        fallen = min(1.0, point.value / self.first_value) if self.first_value > 0 else 1.0
        begun = {"begun_at": self.begun_at, "first_damping": math.sqrt(fallen)} if state is None else state
        bound = self.bounds["exact"]
        if bound is None and self.bounds["cheap"] is not None:
            bound = radius_of(self.bounds["cheap"])
        return self.costs.dense.steps(point, bound, self.budget, begun)

    # -- checkpoints

    def state(self) -> State:
        """Return the state of the steps at hand, and what was counted and decided."""
        return {
            **self.current.state(),
            "begun_at": self.begun_at,
            "first_value": self.first_value,
            "kind": self.name,
            "failed": self.failed,
            "exact_steps": self.exact_steps,
            "bounds": {name: saved_bound(bound) for name, bound in self.bounds.items()},
            "trail": self.trail,
            "costs": self.costs.state(),
        }

    def resume(self, state: State) -> None:
        """Continue with the same kind of steps."""
        self.bounds = {name: loaded_bound(bound) for name, bound in state["bounds"].items()}
        self.trail, self.failed = [tuple(pair) for pair in state["trail"]], list(state["failed"])
        self.exact_steps = state["exact_steps"]
        self.costs.resume(state["costs"])
        self.begun_at, self.first_value = state["begun_at"], state["first_value"]
        self.current.resume(state)


def gained(trail: Trail) -> float:
    """Return the logarithm of the reduction of Phi along a trail."""
    before, after = trail[0][1], trail[-1][1]
    return math.log(before / after) if after > 0 else (before - after) / max(abs(before), 1e-300)
