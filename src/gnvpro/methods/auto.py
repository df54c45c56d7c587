"""What GNvpro does when no solver is named: cheap steps as long as they pay, then exact ones; the hybrid where there are none.

An exact step is worth far more than a Krylov step wherever it can be had (on the paper's CDR problem a fifth of the error at
the same work, and at the same seconds), so it is taken up to a flat limit of about ten seconds per iteration on one core:

    flops of an iteration    n m q^2 + q^3 / 3          n samples, m rows of the Jacobian per sample, q directions

Only at the beginning it is not. Far from a minimum a quasi-Newton step gains as much as an exact one for a fraction of the
time. So does, for losses other than least squares and a matrix that is expensive, a step from a Krylov space: on peaks it takes
half the time, and quasi-Newton steps before it gain nothing. Cheap steps pay while they halve the objective within a number of
steps, the window, or, when there were fewer, are on the way to. Where work is scarce, rather than time, the window of
quasi-Newton steps (two passes each) is what one exact step costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from gnvpro.arguments import check_count, check_number
from gnvpro.methods.protocol import Budget, Running, Start, State, first_point
from gnvpro.methods.solvers import Dense, Hybrid, Krylov, count_directions, head_size
from gnvpro.methods.steps import QuasiNewtonSteps, Steps
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

MAX_DIRECTIONS = 3000
MAX_FLOPS = 5e11  # per exact iteration
CHEAP_WINDOW = 30  # quasi-Newton steps that should halve the objective
MIN_CHEAP_STEPS = 6  # for the work of an exact step; where there are fewer, they are not worth beginning
KRYLOV_WINDOW = 10  # Krylov steps that should halve the objective
EXPENSIVE_DIRECTIONS = 100  # from which on a matrix takes longer than a few cheap steps
ENOUGH = 0.5  # times the objective


@dataclass(frozen=True)
class Auto:
    """The solver that GNvpro takes when none is named.

    Args:
        max_rank: largest dimension of Krylov spaces; each costs two work units.
        rtol: relative residual at which a Krylov space is large enough.
        dense: settings of its exact steps.
    """

    max_rank: int = 20
    rtol: float = 1e-2
    dense: Dense = field(default_factory=Dense)
    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        check_count("Auto: max_rank", self.max_rank, 1)
        check_number("Auto: rtol", self.rtol, 0.0)

    def why_not(self, problem: Problem) -> str | None:
        """Nothing: it takes what can be used."""
        return None

    def takes_exact_steps(self, problem: Problem) -> bool:
        """Whether exact steps can be had, and cost little enough."""
        q = count_directions(problem)
        flops = problem.n_samples * self.dense.seeds(*head_size(problem)) * q**2 + q**3 / 3
        small = 0 < q <= MAX_DIRECTIONS and flops <= MAX_FLOPS and problem.eliminator.inverse_is_exact
        # what fits into memory may differ from process to process
        return problem.processes.all(small and self.dense.why_not(problem) is None)

    def begin(self, problem: Problem, start: Start, budget: Budget, state: State | None) -> Running:
        """Start on a problem, or go on from a state."""
        if not self.takes_exact_steps(problem):
            return Hybrid(self.max_rank, self.rtol).begin(problem, start, budget, state)
        # Later batches begin from what is good already; a refined network may begin as badly as a new one (DCR's do).
        cheap = None if start.follows_batch else self.cheap_phase(problem, budget)
        if cheap is None:
            return self.dense.begin(problem, start, budget, state)
        problem = problem.with_passes(self.dense.pass_plan(problem))
        running = CheapThenExact(cheap, self.dense, first_point(problem, start, state), budget)
        if state is not None:
            running.resume(state)
        return running

    def cheap_phase(self, problem: Problem, budget: Budget) -> CheapPhase | None:
        """What comes before exact steps; nothing where an exact step costs little more."""
        with_residuals = self.dense.resolved(problem.misfit.identity_hessian).residual_term
        by_time = with_residuals or not budget.work_is_scarce
        if by_time and count_directions(problem) < EXPENSIVE_DIRECTIONS:
            return None
        if with_residuals:
            krylov = Krylov(self.max_rank, self.rtol)
            return CheapPhase(lambda point: krylov.steps(point, None, budget, None), KRYLOV_WINDOW, KRYLOV_WINDOW)
        window = self.dense.step_passes(*head_size(problem)) // 2 if budget.work_is_scarce else CHEAP_WINDOW
        if window < MIN_CHEAP_STEPS:
            return None
        builder = Krylov(1, self.rtol).builder(budget)
        return CheapPhase(lambda point: QuasiNewtonSteps("hybrid", point, builder, lambda: False), window)


@dataclass(frozen=True)
class CheapPhase:
    """Steps to begin with."""

    begin: Callable[[ReducedPoint], Steps[ReducedPoint]]
    window: int  # steps in which they should halve the objective
    first: int = 1  # steps before anything can be said about them


class CheapThenExact:
    """Cheap steps as long as they pay, then exact ones."""

    def __init__(self, cheap: CheapPhase, dense: Dense, point: ReducedPoint, budget: Budget) -> None:
        self.cheap, self.dense, self.budget, self.exact = cheap, dense, budget, False
        self.current = cheap.begin(point)
        self.values = [point.value]  # of the cheap steps, as many as matter
        self._status: Status | None = None

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self._status or self.current.status

    @property
    def point(self) -> ReducedPoint:
        """The last accepted model."""
        return self.current.point

    @property
    def bound(self) -> Bound | None:
        """Bound for the next batch: the exact solver's, None while still in the cheap phase."""
        return self.current.bound if self.exact else None

    @property
    def next_passes(self) -> int:
        """Passes of the next step, of either kind."""
        return self.current.next_passes

    def gradient_norm(self) -> float | None:
        """The norm of the gradient."""
        return self.current.gradient_norm()

    def iterate(self) -> StepReport | None:
        """One trial step."""
        report = self.current.iterate()
        if report is None and not self.exact:
            self._change()
            if self.next_passes > self.budget.passes_left:
                self._status = Status.WORK_SPENT
                return None
            report = self.current.iterate()
        if not self.exact and not self._pays():
            self._change()
        return report

    def _pays(self) -> bool:
        self.values = [*self.values[-self.cheap.window :], self.point.value]
        steps = len(self.values) - 1
        return steps < self.cheap.first or self.values[-1] <= ENOUGH ** (steps / self.cheap.window) * self.values[0]

    def _change(self) -> None:
        self.exact, self.current = True, self.dense.steps(self.point, None, self.budget, None)

    def state(self) -> State:
        """The state of the steps at hand."""
        return {**self.current.state(), "exact": self.exact, "values": self.values}

    def resume(self, state: State) -> None:
        """Go on with the same kind of steps."""
        self.exact, self.values = state["exact"], state["values"]
        if self.exact:
            self.current = self.dense.steps(self.point, None, self.budget, state)
        self.current.resume(state)
