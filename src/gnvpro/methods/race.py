"""Cheap steps first, exact steps once they gain more for what they cost: most of what `auto` does.

The rules are in `gnvpro.methods.auto`. A trail holds the cost and Phi after every cheap step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.methods.cache import Cache
from gnvpro.methods.costs import Account, Costs
from gnvpro.methods.loop import Loop, LoopState, state_at
from gnvpro.methods.models import DenseMemory, KrylovModels, QuasiNewtonModels, SpaceMemory, affordable_rank
from gnvpro.methods.protocol import Budget, MethodState
from gnvpro.methods.step_solvers import head_size
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound, radius_of
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

HALVED = math.log(2.0)

Trail = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class RaceState(MethodState):
    """The state of the present steps, with counts and decisions."""

    current: LoopState
    kind: str  # "cheap" or "exact"
    account: Account
    begun_at: Tensor  # theta
    first_value: float  # Phi at the start of training
    cheap_bound: Bound | None = None  # as the last steps of a kind left it
    exact_bound: Bound | None = None
    trail: Trail = ()  # cost and Phi, step by step since cheap steps began
    failed: tuple[str, ...] = ()  # kinds that failed, or are never worth a trial
    exact_steps: int = 0


class LateModels(QuasiNewtonModels):
    """Spaces of one dimension, and larger ones after many quasi-Newton steps if an exact step costs more than a space."""

    def __init__(self, max_rank: int, rtol: float, after: int, cost_little: bool) -> None:
        super().__init__("hybrid", max_rank, rtol)
        self.after, self.cost_little = after, cost_little

    def rank(self, budget: Budget) -> int:
        """The dimension of a space that is built now."""
        return affordable_rank(self.max_rank if self.cost_little else 1, budget)

    def may_build(self, due: int, budget: Budget) -> bool:
        """Return whether it is time for a space."""
        return due >= self.after and self.cost_little and super().may_build(due, budget)


@dataclass(frozen=True)
class CheapSteps:
    """Quasi-Newton steps of two passes each, or steps from Krylov spaces."""

    max_rank: int
    rtol: float
    two_passes: bool

    def models(self, exact_in_steps: float, after: int) -> LateModels | KrylovModels[ReducedPoint]:
        """Their models, given the cost of an exact step in cheap ones."""
        if self.two_passes:
            return LateModels(self.max_rank, self.rtol, after, cost_little=exact_in_steps > self.max_rank)
        return KrylovModels("krylov", self.max_rank, self.rtol)


class Race:
    """Cheap steps, then exact ones, or the other kind if one fails; an object lives for one call."""

    def __init__(self, cheap: CheapSteps, costs: Costs, problem: Problem, budget: Budget, cache: Cache) -> None:
        self.cheap, self.costs, self.problem, self.budget, self.cache = cheap, costs, problem, budget, cache
        self.rules, self.set_out = problem.policy.solver, costs.clock()

    def begin(self, point: ReducedPoint, first_value: float | None) -> RaceState:
        """The state at the first point; training may have begun with another value before."""
        kind = "cheap" if self.costs.cheap_first else "exact"
        value = point.value if first_value is None else first_value
        first = state_at(point, None, None)
        state = RaceState(
            iterate=first.iterate,
            current=first,
            kind="",
            account=Account(self.budget.meter.work),
            begun_at=point.theta,
            first_value=value,
            failed=() if kind == "cheap" else ("cheap",),
        )
        state = self._entered(state, kind, point)
        return self._measured(state, self._loop(state))

    def step(self, state: RaceState) -> tuple[RaceState, StepReport | Status]:
        """One trial step, and the decision about the next."""
        loop = self._loop(state)
        state, outcome = self._trial(state, loop)
        if isinstance(outcome, Status):
            state = replace(state, failed=(*state.failed, state.kind))
            other = "exact" if state.kind == "cheap" else "cheap"
            if other in state.failed or not self._affords(other, state):
                return state, outcome
            state = self._entered(state, other, self._point(state))
            loop = self._loop(state)
            state, outcome = self._trial(state, loop)
        if isinstance(outcome, Status):
            return state, outcome
        if state.kind == "cheap":
            state = self._judged(state)
            loop = loop if state.kind == "cheap" else self._loop(state)
        return self._measured(state, loop), outcome

    def _loop(self, state: RaceState) -> Loop[ReducedPoint]:
        if state.kind == "exact":
            assert state.current.memory is not None
            return self.costs.dense.loop(self.problem, state.current.memory, self.budget, self.cache)
        models = self.cheap.models(self._exact_in_steps(state), self.rules.spaces_after)
        return Loop(self.costs.objective, models, self.budget, self.cache)

    def _point(self, state: RaceState) -> ReducedPoint:
        return self._loop(state).at(state.current).point

    def _trial(self, state: RaceState, loop: Loop[ReducedPoint]) -> tuple[RaceState, StepReport | Status]:
        current, outcome = loop.trial(state.current)
        account = replace(state.account, steps=state.account.steps + 1)
        exact_steps = state.exact_steps + (state.kind == "exact")
        return self._at(replace(state, account=account, exact_steps=exact_steps), current), outcome

    def _measured(self, state: RaceState, loop: Loop[ReducedPoint]) -> RaceState:
        """Add the gradient at the last point, and the values that the run reads."""
        state = self._at(state, loop.measured(state.current))
        account = replace(state.account, seconds=state.account.seconds + self.costs.clock() - self.set_out)
        return replace(
            state,
            gradient_norm=state.current.gradient_norm,
            next_passes=state.current.next_passes,
            bound=state.current.bound if state.kind == "exact" else state.exact_bound,
            settles=state.exact_steps >= self.rules.judged_after or "exact" in state.failed,
            account=account,
        )

    def _at(self, state: RaceState, current: LoopState) -> RaceState:
        """Replace the state of the present steps; count a matrix once."""
        new = state.kind == "exact" and current.has_model and not state.current.has_model
        account = replace(state.account, matrices=state.account.matrices + new)
        return replace(state, current=current, iterate=current.iterate, account=account)

    def _spent(self, state: RaceState) -> float:
        """Cost since the method began."""
        return self.costs.spent(state.account, self.budget, self.costs.clock() - self.set_out)

    # -- decisions

    def _affords(self, kind: str, state: RaceState) -> bool:
        """Return whether work and seconds last for steps of this kind."""
        if kind == "cheap":
            return self.budget.passes_left >= Loop.least_passes
        passes = self.costs.dense.step_passes(*head_size(self.problem))
        return self.budget.passes_left >= passes and self.budget.seconds_left > self.costs.exact_seconds(state.account)

    def _judged(self, state: RaceState) -> RaceState:
        """Note a cheap step, and change to exact steps if they pay."""
        trail = (*state.trail[-self.rules.most_window :], (self._spent(state), state.iterate.value))
        state = replace(state, trail=trail)
        if "exact" in state.failed:
            return state
        steps = len(trail) - 1
        each = (trail[-1][0] - trail[0][0]) / steps
        if self.cheap.two_passes:
            state = replace(state, account=self.costs.calibrated(state.account, each))
        if not self._exact_pays(state, each, steps) or not self._affords("exact", state):
            return state
        return self._entered(state, "exact", self._point(state))

    def _exact_pays(self, state: RaceState, each: float, steps: int) -> bool:
        """Return whether the cheap steps at the cost of two exact ones no longer halve Phi."""
        least, most = self.rules.least_window, self.rules.most_window
        first = 1 if self.cheap.two_passes else least
        exact = self.costs.exact_step(state.account)
        window = min(max(round(2 * exact / max(each, 1e-9)), least), most)
        recent = state.trail[-window - 1 :]
        return steps >= first and gained(recent) < HALVED * (len(recent) - 1) / window

    def _exact_in_steps(self, state: RaceState) -> float:
        """Return the cost of an exact step in cheap steps; 0 before the first of these."""
        trail = state.trail
        spent = trail[-1][0] - trail[0][0] if trail else 0.0
        return self.costs.exact_step(state.account) * (len(trail) - 1) / spent if spent > 0 else 0.0

    # -- the two kinds

    def _entered(self, state: RaceState, kind: str, point: ReducedPoint) -> RaceState:
        """The other kind of steps, from the same point."""
        bound: Bound | None = state.current.bound
        if state.kind == "cheap":
            state = replace(state, cheap_bound=bound)
        elif state.kind == "exact":
            state = replace(state, exact_bound=bound)
        state = replace(state, kind=kind, trail=((self._spent(state), point.value),))
        if kind == "cheap":
            memory: DenseMemory | SpaceMemory = SpaceMemory()
            bound = state.cheap_bound
        else:
            # The damping that suits exact steps is as at the beginning of training on CDR, and has fallen like Phi on DCR.
            # Between the two: too little costs a few trials, each growing it faster, too much a matrix for each third.
            fallen = min(1.0, point.value / state.first_value) if state.first_value > 0 else 1.0
            memory = DenseMemory(state.begun_at, math.sqrt(fallen))
            bound = state.exact_bound
            if bound is None and state.cheap_bound is not None:
                bound = radius_of(state.cheap_bound)
        loop = self._loop(replace(state, current=replace(state.current, memory=memory)))
        current = loop.first(point, loop.models.own(bound), memory)
        return replace(state, current=current, iterate=current.iterate)


def gained(trail: Trail) -> float:
    """Return the logarithm of the reduction of Phi along a trail."""
    before, after = trail[0][1], trail[-1][1]
    return math.log(before / after) if after > 0 else (before - after) / max(abs(before), 1e-300)
