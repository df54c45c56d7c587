"""The run of `pde.solve`: one system of equations, whose points and features may change between steps (see `steps`).

The field with the smallest residuals on fresh points is kept, among those that were looked at and the last; they are
reported on other ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gnvpro.methods.protocol import Budget, MethodState
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.pde.field_head import FieldFit, fit_at
from gnvpro.pde.intervals import intervals_of
from gnvpro.pde.residuals import Check, Residual
from gnvpro.pde.solve_arguments import check_smooth, warn_about
from gnvpro.pde.steps import EquationProblem, EquationState, EquationSteps, Kept
from gnvpro.pde.system import Carried
from gnvpro.training.convergence import seen_rests
from gnvpro.training.fingerprint import fingerprint
from gnvpro.training.listeners import Listener
from gnvpro.training.run import Limits, Run

REPORTED = 500_000  # added to the seed for the points of the report, which influence no choice


class SolveRun(Run):
    """A run on equations."""

    problem: EquationProblem
    method: EquationSteps
    state: EquationState
    kept: Kept

    def __init__(
        self,
        problem: EquationProblem,
        limits: Limits,
        listeners: Sequence[Listener],
        clock: Callable[[], float],
        began: float,
        stint: float = math.inf,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        identity = identity_of(problem) if limits.checkpoint or not problem.processes.alone else {}
        super().__init__(EquationSteps(), problem, limits, listeners, identity, clock)
        self._begun = began  # the choice of features counts
        self._agree()
        check_smooth(problem.field, problem.given, problem.system)
        self.warnings, self.notes = warn_about(problem.given, problem.system), list[str]()
        self._stint, self.operations = stint, 0.0  # operations after which the run may give up
        self._gives_up = gives_up

    def _agree(self) -> None:
        """Give all processes the same equations, and the parameters and constants of the first."""
        if self.processes.alone:
            return
        limits = {name: repr(vars(self.limits)[name]) for name in ("budgets", "seconds", "iterations", "patience")}
        self.processes.check_same({**self.identity, **limits}, "with the same equations and points everywhere")
        field, constants = self.problem.field, self.problem.system.constants
        self.processes.spread([*field.parameters(), *field.buffers()])
        values = self.processes.from_rank(0, [constant.value for constant in constants])
        for constant, value in zip(constants, values, strict=True):
            constant.value = value

    def _all(self) -> Status:
        """Take steps until the run is over."""
        limits = self.limits
        budget = Budget(self.meter, limits.work(0), 1.0, limits.seconds, self._seconds, self.processes.smallest)
        status, state = self._iterate(self.problem, budget)
        self._hold(state)
        return status

    def _hold(self, state: MethodState) -> None:
        assert isinstance(state, EquationState)
        self.state = state

    def _first_state(self, problem: EquationProblem, budget: Budget) -> EquationState:
        """The first field."""
        return self.method.begin(problem, budget, self.cache)

    def _trains(self, state: MethodState) -> bool:
        """Return whether the loop has variables: theta, constants, or the head."""
        return super()._trains(state) or (isinstance(state, EquationState) and state.ways.together)

    def _ended(self, state: MethodState) -> Status | None:
        """Return why the records so far end the run."""
        if (ended := super()._ended(state)) is not None:
            return ended
        if not self.limits.capped and seen_rests(self.journal.history.records):
            return Status.SETTLED
        if self.operations >= self._stint:
            self._stint = math.inf
            return Status.NOT_SOLVED if self._gives_up() else None
        return None

    def _stepped(self, state: MethodState, report: StepReport) -> None:
        """Count the operations of a step."""
        self.operations += self.problem.system.operations
        super()._stepped(state, report)

    def go_on(self) -> Status:
        """Continue a run that gave up."""
        self._resumed = self.state
        self.journal.go_on(())
        return self.run()

    def _finish(self) -> None:
        """Store the best field, or the last one if none was checked."""
        self.kept, last = self.method.last(self.problem, self.state, self.cache)
        self.problem.store(self.kept.theta, self.kept.W)
        self.notes = list(self.warnings)
        if self.kept is self.state.best:
            self.notes.append(
                f"the field is the one after iteration {self.kept.iteration}: its residuals on fresh points are smaller "
                f"than at the end (objective {self.kept.misfit:.1e}, {last:.1e})"
            )

    def _measured(self, problem: Any, state: MethodState, made: StepReport) -> dict[str, Any]:
        """Return the misfit on fresh points, as last looked at, and how the head is treated."""
        assert isinstance(state, EquationState)
        solver = state.ways.solver(self.problem.system.linear)
        return {"validation_loss": state.checked_misfit, "solver": solver}

    def _take_up(self, content: dict[str, Any]) -> None:
        """Restore the position of the run."""
        assert isinstance(self._resumed, EquationState)
        self._hold(self._resumed)
        self.problem.rows(self.state.layout)
        self.problem.store(self.state.iterate.theta, self.state.iterate.W)
        super()._take_up(content)
        if self.journal.status is Status.SETTLED and self.limits.capped:  # by a rule of runs without a limit
            self.journal.go_on(())
        if self.journal.status is not Status.RUNNING:
            self._finish()

    def residuals(self) -> list[Residual]:
        """Measure the final residuals on new points."""
        fit = self._fit()[1]
        return Check(self.problem.system, REPORTED + self.problem.seed).report(self.kept.theta, fit)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return a 95% interval of each unknown constant."""
        carried, fit = self._fit()
        return intervals_of(self.problem.system, carried, self.kept.theta, fit)

    def kept_misfit(self) -> float:
        """Return the misfit of the kept field on fresh points."""
        check = Check(self.problem.system, self.problem.seed)
        return check.misfit(check.seen(self.kept.theta, self._fit()[1]))

    def _fit(self) -> tuple[Carried, FieldFit]:
        """The rows of the field that is kept."""
        theta, W, system = self.kept.theta, self.kept.W, self.problem.system
        carried = system.carry(theta)
        fit = fit_at(system, carried, theta, W, self.state.penalty)
        assert fit is not None
        return carried, fit


def identity_of(problem: EquationProblem) -> dict[str, Any]:
    """Everything that determines the numbers of a run except the start of the field."""
    equations = problem.given
    sites = [(f"points {i}.{k}", s.points) for i, e in enumerate(equations) for k, s in enumerate(e.compiled.sites)]
    values = [(f"values {i}", e.targets) for i, e in enumerate(equations)]
    names = ("head_penalty", "grow", "head", "spread", "seed")
    settings = {name: getattr(problem, name) for name in names}
    weights = [equation.weight for equation in equations]  # None: balanced
    return fingerprint(problem.field, dict([*sites, *values]), {**settings, "weights": weights})
