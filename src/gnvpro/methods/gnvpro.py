"""GNvpro, the paper's method: a trust region on the reduced objective; and the same trust region on the full objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from gnvpro.arguments import check_choice, has_method
from gnvpro.methods.auto import Auto
from gnvpro.methods.cache import Cache
from gnvpro.methods.loop import Loop, LoopState
from gnvpro.methods.models import SpaceMemory
from gnvpro.methods.protocol import BatchedMethod, Budget, Solver, Start
from gnvpro.methods.step_solvers import Dense, Hybrid, Krylov
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.full import FullPoint
from gnvpro.objectives.problem import Problem

SOLVERS: dict[str, Callable[[], Solver]] = {"auto": Auto, "dense": Dense, "hybrid": Hybrid, "krylov": Krylov}


def as_solver(solver: str | Solver) -> Solver:
    """Return the solver of that name with its defaults, or the object itself."""
    if isinstance(solver, str):
        return SOLVERS[check_choice("solver", solver, SOLVERS)]()
    if isinstance(solver, type) or not has_method(solver, "begin"):
        raise TypeError(
            f"solver must be one of {', '.join(map(repr, SOLVERS))} or an object such as gnvpro.solvers.Krylov(max_rank=30) "
            f"(your own: subclass gnvpro.extend.ModelSolver), got {solver!r}"
        )
    return solver


def why_no_products(method: str, problem: Problem) -> str | None:
    """Return why Gauss-Newton steps are impossible for this model, and what works instead."""
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

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> Any:
        """Evaluate the first model."""
        return cast(Solver, self.solver).begin(problem, start, budget, cache)

    def step(self, problem: Problem, state: Any, budget: Budget, cache: Cache) -> tuple[Any, StepReport | Status]:
        """One step of the solver."""
        return cast(Solver, self.solver).step(problem, state, budget, cache)

    def plan(self, problem: Problem) -> tuple[str, ...]:
        """Return why the default solver begins as it does."""
        solver = as_solver(self.solver)
        return solver.choose(problem, self.batches is None).why if isinstance(solver, Auto) else ()

    def why_not(self, problem: Problem) -> str | None:
        """Return why the solver cannot be used."""
        if (trouble := why_no_products(self.name, problem)) is not None:
            return trouble
        solver = cast(Solver, self.solver)
        trouble = solver.why_not(problem)
        return trouble and f"solver={solver.name!r} cannot be used: {trouble}; use solver='krylov' or 'auto'"


@dataclass(frozen=True, kw_only=True)
class GaussNewton(BatchedMethod):
    """Gauss-Newton steps on the full objective: theta and W together, from the eliminated head.

    Args:
        solver: the size of its Krylov spaces.
        batches: train on parts of the training set in turn; by default on all of it.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`.

    >>> GaussNewton(memory=1e9).solver.max_rank
    20
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
        """Return why products with the Jacobian are not available."""
        return why_no_products(self.name, problem)

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> LoopState:
        """Evaluate the first model; the head is a variable, and eliminated only for its first value."""
        objective, loop = problem.full, self._loop(problem, budget, cache)
        if start.W is None:
            point = objective.same_as(problem.reduced.start(start.theta, None))
        else:
            point = objective.at(objective.join(start.theta, start.W))
        return loop.measured(loop.first(point, start.bound, SpaceMemory()))

    def step(
        self, problem: Problem, state: LoopState, budget: Budget, cache: Cache
    ) -> tuple[LoopState, StepReport | Status]:
        """Take one trial step, and compute the gradient at the point that it reached."""
        return self._loop(problem, budget, cache).step(state)

    def _loop(self, problem: Problem, budget: Budget, cache: Cache) -> Loop[FullPoint]:
        assert isinstance(self.solver, Krylov)
        return Loop(problem.full, self.solver.spaces(), budget, cache)
