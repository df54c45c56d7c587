"""Cheap and exact steps by turns, judged by what they gain for what they cost: the running part of `auto`.

The rules are in `gnvpro.methods.auto`. A stint is a number of steps of one kind; its trail holds the cost and Phi after every
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gnvpro.methods.costs import Costs
from gnvpro.methods.protocol import Budget, HandsOn, State
from gnvpro.methods.solvers import head_size
from gnvpro.methods.steps import QuasiNewtonSteps, Steps
from gnvpro.minimize.step_rules import Bound, loaded_bound, radius_of, saved_bound
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.reduced import ReducedPoint

WAIT = 3  # times as long as a stint of exact steps that did not pay, until the next
FEW, CLEARLY = 3, 0.25  # so many cheap steps with less than this share of the gain of exact ones are trial enough
HALVED = math.log(2.0)

Trail = list[tuple[float, float]]


@dataclass(frozen=True)
class Cheap:
    """How cheap steps begin, and whether they take two passes each, as quasi-Newton steps do.

    The third argument of `begin` says what an exact step costs, in cheap steps.
    """

    begin: Callable[[ReducedPoint, Bound | None, Callable[[], float]], Steps[ReducedPoint]]
    two_passes: bool


@dataclass
class Kind:
    """Cheap or exact steps: what they last gained, and where their last stint left them."""

    gain: float | None = None  # log of the reduction of Phi per cost, in their last stint
    bound: Bound | None = None
    failed: bool = False  # whether they could not go on


class Race(HandsOn):
    """Cheap and exact steps by turns, mostly those that gain more."""

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
        self.kinds = {"cheap": Kind(), "exact": Kind()}
        self.begun_at, self.first_value = point.theta, point.value if first_value is None else first_value
        self.memory: State | None = None  # what quasi-Newton steps knew when they were left
        self.trail: Trail = []  # cost and Phi, step by step since the kind changed
        self.patience = self.rules.judged_after  # exact steps until they are judged
        self.next_exact = 0.0  # cost before which exact steps are not tried again
        self.exact_cost = costs.exact_step  # as seen, after the first stint
        if state is not None:
            self.name = state["kind"]
            self.current = self._steps(self.name, point, state)
            return
        worthwhile = costs.cheap_first
        self.kinds["cheap"].failed = not worthwhile  # never worth a trial either
        self._enter("cheap" if worthwhile else "exact", point)

    # -- what others see

    @property
    def bound(self) -> Bound | None:
        """The bound of exact steps, with which the next batch begins; None while there were none."""
        return self.current.bound if self.name == "exact" else self.kinds["exact"].bound

    def iterate(self) -> StepReport | None:
        """One trial step, and the decision about the next."""
        report = self._iterate()
        if report is None:
            self.kinds[self.name].failed = True
            other = self._other
            if self.kinds[other].failed or not self._affords(other):
                return None
            self._enter(other, self.point)
            report = self._iterate()
        if report is not None:
            self.trail = [*self.trail, (self.costs.spent, self.point.value)]
            self._decide()
        return report

    def _iterate(self) -> StepReport | None:
        before = self.current.region.model is None
        report = self.current.iterate()
        self.costs.matrices += self.name == "exact" and before
        self.costs.steps += 1
        return report

    # -- decisions

    @property
    def _other(self) -> str:
        return "exact" if self.name == "cheap" else "cheap"

    def _affords(self, name: str) -> bool:
        """Return whether work and seconds last for steps of this kind."""
        if name == "cheap":
            return self.budget.passes_left >= Steps.least_passes
        passes = self.costs.dense.step_passes(*head_size(self.point.problem))
        return self.budget.passes_left >= passes and self.budget.seconds_left > self.costs.exact_seconds

    def _decide(self) -> None:
        """Change to the other kind where this one has been seen to gain less."""
        change = self._exact_pays() if self.name == "cheap" else self._exact_is_slow()
        if change and not self.kinds[self._other].failed and self._affords(self._other):
            self._enter(self._other, self.point)

    def _exact_pays(self) -> bool:
        """Asked while steps are cheap."""
        cost, steps = self.trail[-1][0] - self.trail[0][0], len(self.trail) - 1
        each = cost / steps
        if self.kinds["exact"].gain is None:
            if self.cheap.two_passes:
                self.costs.calibrate(each)
                self.exact_cost = self.costs.exact_step
            least, most = self.rules.least_window, self.rules.most_window
            first = 1 if self.cheap.two_passes else least
            window = min(max(round(2 * self.exact_cost / max(each, 1e-9)), least), most)
            recent = self.trail[-window - 1 :]
            return steps >= first and gained(recent) < HALVED * (len(recent) - 1) / window
        recent = self._last(self.exact_cost)
        gain = gained(recent) / (recent[-1][0] - recent[0][0])
        if steps < FEW or (cost < self.exact_cost and gain >= CLEARLY * self.kinds["exact"].gain):
            return False
        self.kinds["cheap"].gain = gain
        if self.next_exact == 0.0 and gain >= self.kinds["exact"].gain:  # tried once more, they are the better kind
            self.next_exact = self.costs.spent + WAIT * self.patience * self.exact_cost
        return gain < self.kinds["exact"].gain and self.costs.spent >= self.next_exact

    def _exact_is_slow(self) -> bool:
        """Asked while steps are exact, after every stint."""
        if len(self.trail) <= self.patience:
            return False
        half = self.trail[-(self.patience // 2) - 1 :]  # the first of them only find the damping
        cost = half[-1][0] - half[0][0]
        kind, cheap = self.kinds["exact"], self.kinds["cheap"].gain
        kind.gain = gained(half) / max(cost, 1e-12)
        self.exact_cost = cost / (len(half) - 1)
        self.trail = self.trail[-1:]
        slow = cheap is not None and kind.gain < cheap
        self.patience *= 2 if slow else 1
        return slow

    def _exact_in_steps(self) -> float:
        """What an exact step costs, in steps of this stint; 0 before there were some."""
        spent, steps = self.trail[-1][0] - self.trail[0][0] if self.trail else 0.0, len(self.trail) - 1
        return self.exact_cost * steps / spent if spent > 0 else 0.0

    def _last(self, cost: float) -> Trail:
        """The end of the trail that took so much."""
        end = self.trail[-1][0]
        first = max((k for k, (spent, _) in enumerate(self.trail) if end - spent >= cost), default=0)
        return self.trail[first:]

    # -- the two kinds

    def _enter(self, name: str, point: ReducedPoint) -> None:
        if hasattr(self, "current"):
            self._leave()
        self.name = name
        self.current = self._steps(name, point, None)
        self.trail = [(self.costs.spent, point.value)]

    def _leave(self) -> None:
        """Remember what the other stint of this kind needs."""
        kind = self.kinds[self.name]
        kind.bound = self.current.bound
        if isinstance(self.current, QuasiNewtonSteps):
            known = self.current.quasi_newton.state()
            self.memory = {**known, "before_x": None, "steps": max(1, known["steps"])}
        if self.name == "cheap" and len(self.trail) > 1:
            kind.gain = gained(self._last(self.exact_cost)) / max(
                self.trail[-1][0] - self._last(self.exact_cost)[0][0], 1e-12
            )
            self.next_exact = 0.0

    def _steps(self, name: str, point: ReducedPoint, state: State | None) -> Steps[ReducedPoint]:
        if name == "exact":
            # The damping that suits them is as at the beginning of training on CDR, and has fallen like Phi on DCR. Between
            # the two: too little costs a few trials, each growing it faster, too much a matrix for each third.
            fallen = min(1.0, point.value / self.first_value) if self.first_value > 0 else 1.0
            begun = {"begun_at": self.begun_at, "first_damping": math.sqrt(fallen)} if state is None else state
            cheap, bound = self.kinds["cheap"].bound, self.kinds["exact"].bound
            if bound is None and cheap is not None:
                bound = radius_of(cheap)
            return self.costs.dense.steps(point, bound, self.budget, begun)
        steps = self.cheap.begin(point, self.kinds["cheap"].bound, self._exact_in_steps)
        if state is None and self.memory is not None and isinstance(steps, QuasiNewtonSteps):
            steps.quasi_newton.resume(self.memory)
        return steps

    # -- checkpoints

    def state(self) -> State:
        """The state of the steps at hand, and all that was measured and decided."""
        return {
            **self.current.state(),
            "begun_at": self.begun_at,
            "first_value": self.first_value,
            "kind": self.name,
            "kinds": {n: [k.gain, saved_bound(k.bound), k.failed] for n, k in self.kinds.items()},
            "memory": self.memory,
            "trail": self.trail,
            "numbers": [self.exact_cost, self.patience, self.next_exact],
            "costs": self.costs.state(),
        }

    def resume(self, state: State) -> None:
        """Go on with the same kind of steps."""
        for name, (gain, bound, failed) in state["kinds"].items():
            self.kinds[name] = Kind(gain, loaded_bound(bound), failed)
        self.memory, self.trail = state["memory"], [tuple(pair) for pair in state["trail"]]
        self.exact_cost, self.patience, self.next_exact = state["numbers"]
        self.costs.resume(state["costs"])
        self.begun_at, self.first_value = state["begun_at"], state["first_value"]
        self.current.resume(state)


def gained(trail: Trail) -> float:
    """The logarithm of the reduction of Phi along a trail."""
    before, after = trail[0][1], trail[-1][1]
    return math.log(before / after) if after > 0 else (before - after) / max(abs(before), 1e-300)
