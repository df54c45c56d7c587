"""The steps of `pde.solve`, from state to state: damped Gauss-Newton on the rows, with regular checks on fresh points.

    state   of the field: x, W, damping; points drawn so far, weights, penalty, treatment of the head  `EquationState`
    cache   the system of rows, the evaluated point with its Jacobian, the local model, the fresh points

Every few iterations the residuals are measured on fresh points (`refine`): equations that overfit get more points, and the
penalty on the head is lowered if it is larger than the misfit. The loop then restarts from the same field.

New points move the head at once and the features later, so the last field of a run may not be its best. Of all checked
fields and the last one, the run keeps the one with the smallest residuals on fresh points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Iterate, MethodState
from gnvpro.minimize.row_model import RowModel
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Damping, NielsenRule
from gnvpro.minimize.trust_region import StepReport, Trial, try_step
from gnvpro.network.work import WorkMeter
from gnvpro.pde.field import Field
from gnvpro.pde.field_objective import EquationObjective, EquationPoint, local_model
from gnvpro.pde.refine import Refinement
from gnvpro.pde.residuals import Check, Seen
from gnvpro.pde.solve_arguments import not_finite
from gnvpro.pde.spread import better_start, gets_nowhere
from gnvpro.pde.start import leave_zero
from gnvpro.pde.system import System, zero_value
from gnvpro.pde.ways import Ways
from gnvpro.policy import Policy
from gnvpro.state import State

FIRST_PENALTY, LEAST_PENALTY = 1e-15, 1e-20  # on the head, unless it is given
ENOUGH = 2.0  # Phi must fall by this factor between two checks, or progress is slow
PATIENT = 2  # consecutive checks with slow progress before the field gets more features
SOLVED = 1e-24  # misfit relative to the zero field, below which wider features cannot help
CHECK_EVERY = 10  # iterations between two checks on fresh points
RULE = NielsenRule()


@dataclass(frozen=True)
class Layout(State):
    """Points and weights of the rows."""

    weights: list[float]  # balanced ones are of the first values of unknown constants
    added: list[Tensor | None]  # points of each equation beyond its own
    widened: int = 0  # how often the field got more features


@dataclass(frozen=True)
class Kept(State):
    """A field, and its misfit on fresh points."""

    misfit: float
    theta: Tensor
    W: Tensor
    iteration: int


@dataclass(frozen=True, kw_only=True)
class EquationState(MethodState):
    """State of the loop at its last accepted point; theta includes the unknown constants."""

    layout: Layout
    ways: Ways
    penalty: float  # on the head
    of_zero: float  # the misfit of the zero field
    below_rounding: int = 0
    iteration: int = 0  # of the last record
    checked_misfit: float | None = None  # on fresh points, at the last check
    before: float = math.inf  # Phi at the last check
    slow_looks: int = 0  # consecutive checks with slow progress
    best: Kept | None = None
    first: Tensor | None = None  # the first variables, while other first weights may still be tried


class EquationProblem:
    """A field, its equations, and the changes that a run may make to both."""

    def __init__(
        self,
        system: System,
        seed: int,
        policy: Policy,
        head_penalty: float | None = None,
        grow: bool = True,
        head: str = "auto",
        spread: bool = True,
        widen: Callable[[Field, int], str] | None = None,
    ) -> None:
        self.field, self.given, self.system = system.field, system.equations, system
        self.processes, self.meter = system.processes, WorkMeter(1)  # work is counted in passes over all points
        self.seed, self.policy = seed, policy
        self.head_penalty, self.grow, self.head, self.spread = head_penalty, grow, head, spread
        self.refinement = Refinement(system.equations, seed)
        self._widen, self._widened = widen, 0  # adds features to the field; how often it did
        self._layout: Layout | None = None  # of the current system

    @property
    def can_widen(self) -> bool:
        """True if the field may get more features."""
        return self._widen is not None

    def theta(self) -> Tensor:
        """All variables except the head, as stored in the field and the constants."""
        return self.system.x()

    def W(self) -> Tensor:
        """Head, as stored in the field."""
        return self.field.W()

    def store(self, theta: Tensor, W: Tensor) -> None:
        """Write both into the field and the constants."""
        self.system.store(theta, W)

    def rows(self, layout: Layout) -> System:
        """System of a layout; rebuilt if it is not the current one."""
        if self._layout is not layout:
            while self._widened < layout.widened:
                self.widened(layout)
            own = System(self.field, self.given, layout.weights, self.system.constants, self.processes)
            self.system, self._layout = self.refinement.restored(own, layout.added), layout
        return self.system

    def refined(self, system: System, widened: int) -> Layout:
        """The layout of a system with new points."""
        self.system, self._layout = system, Layout(list(system.weights), self.refinement.added(system), widened)
        return self._layout

    def widened(self, layout: Layout) -> tuple[Layout, str]:
        """Add features to the field; return the layout with the same rows, and a note."""
        assert self._widen is not None
        self._widened += 1
        note = self._widen(self.field, self._widened)
        return replace(layout, widened=self._widened), note


class EquationSteps:
    """Damped Gauss-Newton steps on the rows of an `EquationProblem`."""

    def begin(self, problem: EquationProblem, budget: Budget, cache: Cache) -> EquationState:
        """Evaluate the field at its current values."""
        system = problem.system
        tries = problem.spread and system.linear and not problem.can_widen  # trials have found the features of others
        near = leave_zero(system)
        first, W = system.x(), problem.W()
        state = EquationState(
            iterate=Iterate(first, W, math.nan, math.nan, None),
            layout=problem.refined(system, 0),
            ways=Ways.choose(system.linear, problem.head, near),
            penalty=FIRST_PENALTY if problem.head_penalty is None else problem.head_penalty,
            of_zero=zero_value(system),
            first=first if tries else None,
        )
        work = _Work(problem, budget, cache)
        return work.measured(work.at(state, first, W))

    def step(
        self, problem: EquationProblem, state: EquationState, budget: Budget, cache: Cache
    ) -> tuple[EquationState, StepReport | Status]:
        """Try one step, and check fresh points if they are due."""
        work = _Work(problem, budget, cache)
        done = work.trial(state)
        while isinstance(done, Status) and (ways := state.ways.other(state.iterate.value)) is not None:
            state = work.again(replace(state, ways=ways))
            done = work.trial(state)
        before, state = state, replace(state, iteration=state.iteration + 1)
        if isinstance(done, Status):
            if (wider := work.wider(state)) is None:
                return before, done
            state, note = wider
            return work.measured(state), StepReport(True, note=note)
        state = replace(state, bound=done.bound, below_rounding=done.below_rounding)
        if done.report.accepted:
            state = work.kept(state, done.point)
        said = None
        if state.iteration % CHECK_EVERY == 0:
            state, said = work.look(state)
        return work.measured(state), replace(done.report, note=said)

    def last(self, problem: EquationProblem, state: EquationState, cache: Cache) -> tuple[Kept, float]:
        """The field to keep, and the misfit on fresh points of the last one if it was compared."""
        work = _Work(problem, Budget(problem.meter, math.inf), cache)
        misfit = math.nan if state.best is None else work.check(state).misfit(work.seen(state))
        return better(state, misfit), misfit


def better(state: EquationState, misfit: float, anew: bool = False) -> Kept:
    """Return the best field so far, given the misfit of the current one on fresh points; `anew` takes the current one."""
    if state.best is not None and not misfit < state.best.misfit and not anew:
        return state.best
    own = math.inf if math.isnan(misfit) else misfit
    return Kept(own, state.iterate.theta, state.iterate.W, state.iteration)


@dataclass(frozen=True)
class _Work:
    """One call of the loop."""

    problem: EquationProblem
    budget: Budget
    cache: Cache

    def objective(self, state: EquationState) -> EquationObjective:
        """Objective of the loop."""
        return state.ways.objective(self.problem.rows(state.layout), state.penalty, self.problem.meter)

    def point(self, state: EquationState) -> EquationPoint:
        """The evaluated point of a state, with its Jacobian."""

        def evaluated() -> EquationPoint:
            point = self.objective(state).restored(state.iterate.theta, state.iterate.W)
            if len(point.x):
                point.gradient()
            return point

        return self.cache.recall("point", evaluated, state.iterate)

    def model(self, state: EquationState) -> RowModel:
        """The local model at the point."""
        return self.cache.recall("model", lambda: local_model(self.point(state)), state.iterate)

    def check(self, state: EquationState) -> Check:
        """The equations at fresh points."""
        system = self.problem.rows(state.layout)
        return self.cache.recall("check", lambda: Check(system, self.problem.seed), state.layout)

    def seen(self, state: EquationState) -> list[Seen]:
        """The residuals at fresh points."""
        point = self.point(state)
        return self.check(state).seen(point.theta, point.fitted)

    def trial(self, state: EquationState) -> Trial[EquationPoint] | Status:
        """One trial step."""
        point, model = self.point(state), self.model(state)
        return try_step(self.objective(state), model, RULE, point, state.bound, state.below_rounding)

    def kept(self, state: EquationState, point: EquationPoint) -> EquationState:
        """The state at another point."""
        iterate = Iterate(point.theta, point.W, point.value, point.misfit, None)
        self.cache.keep("point", point, iterate)
        self.cache.forget("model")
        return replace(state, iterate=iterate, gradient_norm=None)

    def measured(self, state: EquationState) -> EquationState:
        """The state with the norm of its gradient, if anything has one."""
        point = self.point(state)
        if state.gradient_norm is not None or not len(point.x):
            return state
        return replace(state, gradient_norm=float(torch.linalg.vector_norm(point.gradient())))

    def at(self, state: EquationState, theta: Tensor, W: Tensor, bound: Damping | None = None) -> EquationState:
        """Restart the loop at these values."""
        point = self.objective(state).start(theta, W)
        if point.fit is None:
            raise ValueError(not_finite(self.problem.system, theta, W))
        return self.kept(replace(state, bound=bound, below_rounding=0), point)

    def again(self, state: EquationState, bound: Damping | None = None) -> EquationState:
        """Restart the loop from the same field after a change."""
        return self.at(state, state.iterate.theta, state.iterate.W, bound)

    # -- the look at fresh points

    def look(self, state: EquationState) -> tuple[EquationState, str | None]:
        """Measure the residuals on fresh points, and change points, penalty and head treatment if needed."""
        seen = self.seen(state)
        own, value = self.check(state).misfit(seen), state.iterate.value
        state = replace(state, checked_misfit=own)
        if state.first is not None and gets_nowhere(state.iteration, state.before, value, state.of_zero):
            state, note = self.other_weights(state, own)
            if note is not None:
                return state, note
        slow, notes, bound = state.before < ENOUGH * value, list[str](), state.bound
        state = replace(state, best=better(state, own))
        if (ways := state.ways.closer(value, state.of_zero)) is not None:
            state, bound = replace(state, ways=ways), None  # the bound is of other variables
            notes.append("head: eliminated")
        layout = self.with_more_points(state, seen, slow, notes) if self.problem.grow else None
        state = state if layout is None else replace(state, layout=layout)
        lower = self.problem.head_penalty is None and state.penalty > 2 * LEAST_PENALTY
        if lower and value - state.iterate.misfit > state.iterate.misfit:
            state = replace(state, penalty=state.penalty / 10)
            notes.append(f"head_penalty: {state.penalty:.0e}")
        narrow = slow and not state.ways.together  # far from a solution more features would only cost
        state = replace(state, slow_looks=state.slow_looks + 1 if narrow else 0)
        if state.slow_looks >= PATIENT and layout is None and (wider := self.wider(state)) is not None:
            state = replace(wider[0], slow_looks=0)
            notes.append(wider[1])
        elif notes:
            state = self.again(state, bound if isinstance(bound, Damping) else None)
        return replace(state, before=state.iterate.value), "; ".join(notes) or None

    def with_more_points(self, state: EquationState, seen: list[Seen], slow: bool, notes: list[str]) -> Layout | None:
        """Add points to the equations that need them; None if none does."""
        refinement, point, system = self.problem.refinement, self.point(state), self.problem.rows(state.layout)
        which = refinement.needing(system, point.fitted, seen, slow)
        if not which:
            return None
        system = refinement.refined(system, point.theta, point.W, which, state.iteration)
        changed = [(i, system.equations[i]) for i in which]
        notes.append("points: " + ", ".join(f"{e.name or f'equation {i}'} {e.rows}" for i, e in changed))
        return self.problem.refined(system, state.layout.widened)

    def other_weights(self, state: EquationState, own: float) -> tuple[EquationState, str | None]:
        """Continue from other first weights if they reach a smaller misfit; once in a run."""
        assert state.first is not None
        all_late = lambda: self.problem.processes.all(self.budget.seconds_left <= 0)  # noqa: E731
        is_late = all_late if self.budget.seconds < math.inf else lambda: False
        found = better_start(self.objective(state), self.check(state), state.first, own, is_late)
        state = replace(state, first=None)
        if found is None:
            return state, None
        state = self.at(state, found.point.theta, found.point.W)
        state = replace(state, best=None, checked_misfit=found.misfit, before=found.point.value)
        return state, "first weights: times " + ", ".join(f"{factor:g}" for factor in found.factors)

    def wider(self, state: EquationState) -> tuple[EquationState, str] | None:
        """Add features to the field and restart from the same values; None if that cannot help."""
        problem, system, iterate = self.problem, self.problem.rows(state.layout), state.iterate
        unknowns = 2 * (system.n_theta + iterate.W.numel())
        if not problem.can_widen or unknowns > system.rows or iterate.misfit <= SOLVED * state.of_zero:
            return None
        system.store(iterate.theta, iterate.W)
        layout, note = problem.widened(state.layout)
        system = problem.rows(layout)
        state = self.at(replace(state, layout=layout), system.x(), problem.W())
        if state.best is not None:
            misfit = math.inf if state.checked_misfit is None else state.checked_misfit
            state = replace(state, best=better(state, misfit, anew=True))
        return state, note
