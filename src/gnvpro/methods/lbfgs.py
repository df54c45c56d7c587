"""L-BFGSvpro: quasi-Newton steps by `torch.optim.LBFGS` on the reduced objective.

Phi_red and its gradient (two passes) are evaluated at every point that the strong-Wolfe search asks for.

Where the objective is concave along a direction, as far from a minimum, torch's search extrapolates by a hundredth of its last
step. That gains nothing, and the cubic through two points so close together is all rounding errors: whether the next step is
a hundredth again or several times as long then differs from one order of summation to another. So the search is
called off there, and begins again from ten times as far.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_count
from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.protocol import (
    BatchedMethod,
    Budget,
    Running,
    Start,
    State,
    detached_copy,
    first_point,
    point_state,
)
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

CREEPING = 0.05  # share of its length by which a search goes on where the objective is concave
FARTHER = 10.0  # times as far as the farthest point, the search begins again


@dataclass(frozen=True)
class Evaluated:
    """A point without the memory of its forward pass."""

    problem: Problem
    theta: Tensor
    W: Tensor
    outputs: Tensor
    value: float
    misfit: float
    gradient: Tensor | None = None
    start: WarmStart | None = None
    warm_start: WarmStart | None = None

    @property
    def accuracy(self) -> float | None:
        """The share of samples classified right; None where the loss does not classify."""
        return self.problem.misfit.accuracy(self.outputs)


def evaluated(point: ReducedPoint) -> Evaluated:
    """Value and gradient of the reduced objective: the forward pass is forgotten after the backward pass."""
    gradient = point.gradient()
    assert point.fit is not None
    reached = point.theta, point.W, point.outputs, point.value, point.misfit
    return Evaluated(point.problem, *reached, gradient, point.start, point.fit.warm_start)


@dataclass(frozen=True, kw_only=True)
class LBFGSvpro(BatchedMethod):
    """L-BFGS with a strong-Wolfe line search on the reduced objective.

    Args:
        history_size: steps that it remembers.
        batches: train on parts of the training set in turn; by default on all of it.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`.
    """

    history_size: int = 20
    name: ClassVar[str] = "lbfgs-vpro"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("LBFGSvpro: history_size", self.history_size, 1)

    def begin(self, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None) -> Running:
        """Start on a problem, or go on from a state."""
        return RunningLBFGS(first_point(problem, start, state), budget, self.history_size, state)


class RunningLBFGS:
    """L-BFGS under way."""

    bound = None

    def __init__(self, first: ReducedPoint, budget: Budget, history_size: int, state: State | None) -> None:
        self.objective, self.budget, self.status = first.problem.reduced, budget, Status.RUNNING
        self._first: ReducedPoint | None = first
        self._variable = nn.Parameter(first.theta.clone())
        self._optimizer = torch.optim.LBFGS(
            [self._variable],
            max_iter=1,
            max_eval=25,  # the line search may take what is left of these
            history_size=history_size,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        self._point: Evaluated | None = None
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self._evaluated_point()

    @property
    def next_passes(self) -> int:
        """A trial and its gradient, and the gradient of the first point until it is known."""
        return 2 if self._point is not None else 3

    @property
    def point(self) -> Any:
        """The last accepted model."""
        return self._point or self._first

    def gradient_norm(self) -> float | None:
        """The norm of the gradient; None where the budget has no room for it."""
        if self._point is None and self.budget.passes_left < 1:
            return None
        return float(torch.linalg.vector_norm(self._evaluated_point().gradient))

    def _evaluated_point(self) -> Evaluated:
        if self._point is None:
            assert self._first is not None
            self._point, self._first = evaluated(self._first), None
        return self._point

    def iterate(self) -> StepReport | None:
        """One quasi-Newton direction and the line search along it."""
        before = self._evaluated_point()
        seen = [before]

        def closure() -> Tensor:
            theta = self._variable.detach()
            point = next((p for p in seen if torch.equal(p.theta, theta)), None)
            if point is None:
                if _creeps(theta, seen):
                    raise _Creeping
                if len(seen) > 1 and self.budget.passes_left < self.next_passes:
                    raise _Spent
                at = self.objective.start(theta.clone(), before.warm_start)
                point = evaluated(at) if at.fit is not None else _wall(theta.clone(), before)
                seen.append(point)
            self._variable.grad = point.gradient
            return torch.tensor(point.value, dtype=torch.float64)

        try:
            self._search(closure, seen)
            after = next((p for p in seen if torch.equal(p.theta, self._variable.detach())), before)
        except _Spent:  # in the middle of the search, so there is no next direction; nor is there work for one
            after = min(seen, key=lambda point: point.value)
            if after is before:
                self.status = Status.WORK_SPENT
                return None
        if after is before or not after.value <= before.value:
            self.status = Status.STEP_TOO_SMALL
            return None
        self._point = after
        return StepReport(True)

    def _search(self, closure: Callable[[], Tensor], seen: list[Evaluated]) -> None:
        """A step of the optimiser, begun again from farther away as long as its search creeps."""
        before, memory = seen[0].theta, copy.deepcopy(self._optimizer.state_dict())
        try:
            while True:
                try:
                    self._optimizer.step(closure)
                    return
                except _Creeping:
                    tried = [float(torch.linalg.vector_norm(point.theta - before)) for point in seen[1:]]
                with torch.no_grad():
                    self._variable.copy_(before)
                self._optimizer.load_state_dict(copy.deepcopy(memory))
                self._set_rate(FARTHER * max(tried) / tried[0])
        finally:
            self._set_rate(1.0)

    def _set_rate(self, value: float) -> None:
        """What the first step of a search is multiplied by."""
        self._optimizer.param_groups[0]["lr"] = value

    def state(self) -> State:
        """The point, how its head was found, and the optimiser's memory."""
        return {
            **point_state(self.point.theta, self.point.start),
            "optimizer": detached_copy(self._optimizer.state_dict()),
        }


def _creeps(theta: Tensor, seen: list[Evaluated]) -> bool:
    """Whether the search goes on from its last point, the farthest so far, by next to nothing."""
    before = seen[0].theta
    last = float(torch.linalg.vector_norm(seen[-1].theta - before))
    farthest = max(float(torch.linalg.vector_norm(point.theta - before)) for point in seen)
    length = float(torch.linalg.vector_norm(theta - before))
    return len(seen) > 1 and last == farthest and last < length <= (1 + CREEPING) * last


class _Creeping(Exception):
    """The search extrapolates by next to nothing."""


class _Spent(Exception):
    """The budget does not last for another point of the line search."""


def _wall(theta: Tensor, before: Evaluated) -> Evaluated:
    """Where the features overflow, the line search sees a value that no step may reach, rising along the step."""
    high = 1e10 * max(1.0, abs(before.value))
    return Evaluated(before.problem, theta, before.W, before.outputs, high, high, theta - before.theta)
