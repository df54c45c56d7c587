"""GNvpro, the paper's method: a trust region on the reduced objective; and the same trust region on the full objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from gnvpro.arguments import check_choice
from gnvpro.methods.auto import Auto
from gnvpro.methods.cache import Cache
from gnvpro.methods.live import LiveState, live_state, live_step
from gnvpro.methods.protocol import BatchedMethod, Budget, MethodState, Running, Solver, Start, State
from gnvpro.methods.solvers import Dense, Hybrid, Krylov
from gnvpro.methods.steps import Steps
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.full import FullPoint
from gnvpro.objectives.problem import Problem

SOLVERS: dict[str, Callable[[], Solver]] = {"auto": Auto, "dense": Dense, "hybrid": Hybrid, "krylov": Krylov}


def as_solver(solver: str | Solver) -> Solver:
    """The solver of that name with its defaults, or the object itself."""
    if isinstance(solver, str):
        return SOLVERS[check_choice("solver", solver, SOLVERS)]()
    if isinstance(solver, type) or not callable(getattr(solver, "begin", None)):
        raise TypeError(
            f"solver must be one of {', '.join(map(repr, SOLVERS))} or an object such as gnvpro.solvers.Krylov(max_rank=30) "
            f"(your own: subclass gnvpro.extend.ModelSolver), got {solver!r}"
        )
    return solver


def why_no_products(method: str, problem: Problem) -> str | None:
    """Why Gauss-Newton steps cannot be made for this model, and what can."""
    trouble = problem.network.no_products
    return trouble and f"method={method!r} cannot be used: {trouble}; use method='lbfgs-vpro' or 'adam'"


@dataclass(frozen=True, kw_only=True)
class GNvpro(BatchedMethod):
    """Gauss-Newton steps on the reduced objective, the head eliminated at every point.

    Args:
        solver: "auto", "dense", "hybrid" or "krylov", or an object with settings such as `gnvpro.solvers.Krylov(max_rank=30)`.
        batches: train on parts of the training set in turn; by default on all of it.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`.

    >>> GNvpro(solver="krylov").solver.max_rank
    20
    """

    solver: str | Solver = "auto"
    name: ClassVar[str] = "gnvpro"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "solver", as_solver(self.solver))

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> MethodState:
        """Evaluate the first model."""
        return live_state(problem, self._running(problem, start, budget, None), cache, start.seed)

    def step(
        self, problem: Problem, state: LiveState, budget: Budget, cache: Cache
    ) -> tuple[MethodState, StepReport | Status]:
        """One step of the solver."""
        start = Start(state.iterate.theta, seed=state.seed)
        return live_step(problem, state, cache, lambda: self._running(problem, start, budget, state.content))

    def _running(self, problem: Problem, start: Start, budget: Budget, state: State | None) -> Running:
        solver = as_solver(self.solver)
        if isinstance(solver, Auto):
            return solver.begin(problem, start, budget, state, start.seed)
        return solver.begin(problem, start, budget, state)

    def why_not(self, problem: Problem) -> str | None:
        """Why the solver cannot be used."""
        if (trouble := why_no_products(self.name, problem)) is not None:
            return trouble
        solver = as_solver(self.solver)
        trouble = solver.why_not(problem)
        return trouble and f"solver={solver.name!r} cannot be used: {trouble}; use solver='krylov' or 'auto'"


@dataclass(frozen=True, kw_only=True)
class GaussNewton(BatchedMethod):
    """Gauss-Newton steps on the full objective: theta and W together, from the eliminated head.

    Args:
        solver: the size of its Krylov spaces.
        batches: train on parts of the training set in turn; by default on all of it.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`.
    """

    solver: str | Krylov = "krylov"
    name: ClassVar[str] = "gauss-newton"

    def __post_init__(self) -> None:
        super().__post_init__()
        solver = Krylov() if self.solver == "krylov" else self.solver
        if type(solver) is not Krylov:
            raise ValueError(
                f"solver={self.solver!r} is for method='gnvpro'; method='gauss-newton' takes its steps from Krylov spaces: "
                "leave solver out, or give gnvpro.solvers.Krylov(...)"
            )
        object.__setattr__(self, "solver", solver)

    def why_not(self, problem: Problem) -> str | None:
        """Why products with the Jacobian cannot be had."""
        return why_no_products(self.name, problem)

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> MethodState:
        """Evaluate the first model; the head is a variable, and eliminated only to have a first value."""
        return live_state(problem, self._running(problem, start, budget, None), cache, start.seed)

    def step(
        self, problem: Problem, state: LiveState, budget: Budget, cache: Cache
    ) -> tuple[MethodState, StepReport | Status]:
        """One step of the solver."""
        start = Start(state.iterate.theta, seed=state.seed)
        return live_step(problem, state, cache, lambda: self._running(problem, start, budget, state.content))

    def _running(self, problem: Problem, start: Start, budget: Budget, state: State | None) -> Running:
        assert isinstance(self.solver, Krylov)
        objective = problem.full
        if state is not None:
            point = objective.at(state["x"])
        elif start.W is None:
            point = objective.same_as(problem.reduced.start(start.theta, None))
        else:
            point = objective.at(objective.join(start.theta, start.W))
        builder = self.solver.builder(budget)
        steps: Steps[FullPoint] = Steps(
            "krylov", point, objective, builder, budget, start.bound, longer_steps=self.solver.longer_steps
        )
        if state is not None:
            steps.resume(state)
        return steps
