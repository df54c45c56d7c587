"""L-BFGSvpro: quasi-Newton steps by `torch.optim.LBFGS` on the reduced objective.

Phi_red and its gradient (two passes) are evaluated at every point of the strong-Wolfe search.

If the objective is concave along a direction, as it may be far from a minimum, torch's search extrapolates by a
hundredth of its last step. This gains nothing, and the cubic through two points so close together consists of
rounding errors: whether the next step is again a hundredth or several times as long then depends on the order of
summation. So the search is stopped, and restarted ten times as far away.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_count
from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import BatchedMethod, Budget, MethodState, Start, iterate_at
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

CREEPING = 0.05  # extrapolation, relative to the length of the search, that counts as creeping on a concave objective
PASSES = 2  # passes per point: its value and its gradient
FARTHER = 10.0  # the search restarts this many times as far as its farthest point


@dataclass(frozen=True)
class SearchPoint:
    """A point without its forward pass."""

    problem: Problem
    theta: Tensor
    W: Tensor
    outputs: Tensor
    value: float
    misfit: float
    gradient: Tensor | None = None
    start: WarmStart | None = None
    warm_start: WarmStart | None = None

    def reached(self) -> tuple[Tensor, Tensor, float, float, float | None]:
        """Return theta, W, Phi, the mean loss and the accuracy, which may be None."""
        return self.theta, self.W, self.value, self.misfit, self.problem.misfit.accuracy(self.outputs)


def evaluated(point: ReducedPoint) -> SearchPoint:
    """Return value and gradient of the reduced objective; the forward pass is freed after the backward pass."""
    gradient = point.gradient()
    assert point.fit is not None
    reached = point.theta, point.W, point.outputs, point.value, point.misfit
    return SearchPoint(point.problem, *reached, gradient, point.start, point.fit.warm_start)


@dataclass(frozen=True, kw_only=True)
class LBFGSvpro(BatchedMethod):
    """L-BFGS with a strong-Wolfe line search on the reduced objective.

    Args:
        history_size: steps that it remembers.
        batches: train on parts of the training set in turn; by default on all of it.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`.

    >>> LBFGSvpro(history_size=50).history_size
    50
    """

    history_size: int = 20
    name: ClassVar[str] = "lbfgs-vpro"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("LBFGSvpro: history_size", self.history_size, 1)

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> LBFGSState:
        """Evaluate the first point, with its gradient if the budget allows it."""
        point = problem.reduced.start(start.theta, start.warm)
        first = iterate_at(point)
        optimizer = self.optimizer(first.theta)[1].state_dict()
        if problem.network.n_theta == 0 or budget.passes_left < 1:
            cache.keep("point", point, first)
            return LBFGSState(iterate=first, next_passes=3, start=point.start, optimizer=optimizer)
        here = evaluated(point)
        cache.keep("evaluated", here, first)
        norm = float(torch.linalg.vector_norm(here.gradient))
        return LBFGSState(iterate=first, gradient_norm=norm, start=point.start, optimizer=optimizer)

    def optimizer(self, theta: Tensor) -> tuple[Tensor, torch.optim.LBFGS]:
        """Return torch's L-BFGS, and the variable that it moves."""
        variable = nn.Parameter(theta.clone())
        optimizer = torch.optim.LBFGS(
            [variable],
            max_iter=1,
            max_eval=25,  # the line search may use the rest of these
            history_size=self.history_size,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        return variable, optimizer

    def step(
        self, problem: Problem, state: LBFGSState, budget: Budget, cache: Cache
    ) -> tuple[LBFGSState, StepReport | Status]:
        """Take one quasi-Newton direction and search along it."""
        theta = state.iterate.theta
        if state.gradient_norm is None:
            before = evaluated(cache.recall("point", lambda: problem.reduced.start(theta, state.start), state.iterate))
            cache.forget("point")
        else:
            again = lambda: evaluated(problem.reduced.start(theta, state.start))  # noqa: E731
            before = cache.recall("evaluated", again, state.iterate)
        search = LineSearch(problem, before, budget)
        variable, optimizer = self.optimizer(theta)
        try:
            search.run(variable, optimizer, state.optimizer)
            after = search.at(variable.detach()) or before
        except _Spent:  # in the middle of the search, so there is no next direction, nor work for one
            after = min(search.seen, key=lambda point: point.value)
            if after is before:
                return state, Status.WORK_SPENT
        if after is before or not after.value <= before.value:
            return state, Status.STEP_TOO_SMALL
        here = iterate_at(after)
        cache.keep("evaluated", after, here)
        norm = float(torch.linalg.vector_norm(after.gradient))
        made = LBFGSState(iterate=here, gradient_norm=norm, start=after.start, optimizer=optimizer.state_dict())
        return made, StepReport(True)


@dataclass(frozen=True, kw_only=True)
class LBFGSState(MethodState):
    """The base state, the start of the elimination at theta, and the memory of torch's optimiser."""

    start: WarmStart | None
    optimizer: dict[str, Any]


class LineSearch:
    """One step of torch's optimiser, with the points that its line search evaluates."""

    def __init__(self, problem: Problem, before: SearchPoint, budget: Budget) -> None:
        self.problem, self.before, self.budget = problem, before, budget
        self.seen = [before]

    def at(self, theta: Tensor) -> SearchPoint | None:
        """Return the point at theta, if it has been evaluated."""
        return next((point for point in self.seen if torch.equal(point.theta, theta)), None)

    def evaluate(self, theta: Tensor) -> SearchPoint:
        """Return the point at theta; evaluate it if it is new."""
        known = self.at(theta)
        if known is not None:
            return known
        if _creeps(theta, self.seen):
            raise _Creeping
        if len(self.seen) > 1 and self.budget.passes_left < PASSES:
            raise _Spent
        at = self.problem.reduced.start(theta.clone(), self.before.warm_start)
        self.seen.append(evaluated(at) if at.fit is not None else _wall(theta.clone(), self.before))
        return self.seen[-1]

    def run(self, variable: Tensor, optimizer: torch.optim.LBFGS, memory: dict[str, Any]) -> None:
        """Move the variable; restart from farther away as long as the search creeps."""

        def closure() -> Tensor:
            point = self.evaluate(variable.detach())
            variable.grad = point.gradient
            return torch.tensor(point.value, dtype=torch.float64)

        rate = 1.0  # factor of the first step of the search
        while True:
            with torch.no_grad():
                variable.copy_(self.before.theta)
            optimizer.load_state_dict(copy.deepcopy(memory))
            optimizer.param_groups[0]["lr"] = rate
            try:
                optimizer.step(closure)
                break
            except _Creeping:
                tried = [float(torch.linalg.vector_norm(point.theta - self.before.theta)) for point in self.seen[1:]]
                rate = FARTHER * max(tried) / tried[0]
            finally:
                optimizer.param_groups[0]["lr"] = 1.0


def _creeps(theta: Tensor, seen: list[SearchPoint]) -> bool:
    """Return True if the search continues from its last point, the farthest so far, by almost nothing."""
    before = seen[0].theta
    last = float(torch.linalg.vector_norm(seen[-1].theta - before))
    farthest = max(float(torch.linalg.vector_norm(point.theta - before)) for point in seen)
    length = float(torch.linalg.vector_norm(theta - before))
    return len(seen) > 1 and last == farthest and last < length <= (1 + CREEPING) * last


class _Creeping(Exception):
    """Raised if the search extrapolates by almost nothing."""


class _Spent(Exception):
    """Raised if the budget is too small for another point of the line search."""


def _wall(theta: Tensor, before: SearchPoint) -> SearchPoint:
    """Return a value that no step may reach, rising along the step, for points at which the features overflow."""
    high = 1e10 * max(1.0, abs(before.value))
    return SearchPoint(before.problem, theta, before.W, before.outputs, high, high, theta - before.theta)
