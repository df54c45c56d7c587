"""Methods that use gradients only, on `torch.optim`: L-BFGS on the reduced objective, ADAM and Nesterov on the full one.

L-BFGSvpro evaluates Phi_red and its gradient (two passes) at every point its strong-Wolfe search asks for. The stochastic
methods go through the training set in random batches; one iteration is one epoch, two passes. They work on copies of the
parameters in the network's own dtype, exactly as a plain PyTorch loop would, from the eliminated head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from gnvpro.head.eliminator import WarmStart, with_ones
from gnvpro.methods.protocol import Settings, Start, State, Trial, warm_start_of
from gnvpro.objectives.reduced import Problem, ReducedObjective, ReducedPoint
from gnvpro.minimize.status import Status


@dataclass(frozen=True)
class Evaluated:
    """A point without the memory of its forward pass."""

    theta: Tensor
    W: Tensor
    outputs: Tensor
    value: float
    misfit: float
    gradient: Tensor | None = None
    start: WarmStart | None = None
    warm_start: WarmStart | None = None


def evaluated(point: ReducedPoint) -> Evaluated:
    """Value and gradient of the reduced objective: the forward pass is forgotten after the backward pass."""
    gradient = point.gradient()
    assert point.fit is not None
    return Evaluated(
        point.theta, point.W, point.outputs, point.value, point.misfit, gradient, point.start, point.fit.warm_start
    )


class LBFGSvpro:
    """L-BFGS with a strong-Wolfe line search on the reduced objective."""

    bound = None
    next_passes = 2

    def __init__(self, problem: Problem, start: Start, settings: Settings, state: State | None) -> None:
        self.objective = ReducedObjective(problem, settings.eliminator)
        self.status = Status.RUNNING
        self._passes_left = settings.passes_left
        theta, warm = start.theta, None if start.W is None else WarmStart(start.W)
        if state is not None:
            theta, warm = state["x"], warm_start_of(state)
        first = self.objective.start(theta, warm)
        self._first: ReducedPoint | None = first
        self._variable = nn.Parameter(theta.clone())
        self._optimizer = torch.optim.LBFGS(
            [self._variable],
            max_iter=1,
            max_eval=25,  # the line search may take what is left of these
            history_size=20,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        self._point: Evaluated | None = None
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self._evaluated_point()

    @property
    def point(self) -> Any:
        """The last accepted model."""
        return self._point or self._first

    def gradient_norm(self) -> float | None:
        """The norm of the gradient; not told where the budget has no room for it."""
        if self._point is None and self._passes_left() < 1:
            return None
        return float(torch.linalg.vector_norm(self._evaluated_point().gradient))

    def _evaluated_point(self) -> Evaluated:
        if self._point is None:
            assert self._first is not None
            self._point, self._first = evaluated(self._first), None
        return self._point

    def iterate(self) -> Trial | None:
        """One quasi-Newton direction and the line search along it."""
        before = self._evaluated_point()
        seen = [before]

        def closure() -> Tensor:
            theta = self._variable.detach()
            point = next((p for p in seen if torch.equal(p.theta, theta)), None)
            if point is None:
                if len(seen) > 1 and self._passes_left() < self.next_passes:
                    raise _Spent
                at = self.objective.start(theta.clone(), before.warm_start)
                point = evaluated(at) if at.fit is not None else _wall(theta.clone(), before)
                seen.append(point)
            self._variable.grad = point.gradient
            return torch.tensor(point.value, dtype=torch.float64)

        try:
            self._optimizer.step(closure)
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
        return Trial(True)

    def state(self) -> State:
        """The point, how its head was found, and the optimiser's memory."""
        point = self.point
        return {
            "x": point.theta,
            "start_W": point.start.W if point.start else None,
            "start_factor": point.start.factor if point.start else None,
            "optimizer": self._optimizer.state_dict(),
        }


class _Spent(Exception):
    """The budget does not last for another point of the line search."""


def _wall(theta: Tensor, before: Evaluated) -> Evaluated:
    """Where the features overflow, the line search sees a value that no step may reach, rising along the step."""
    high = 1e10 * max(1.0, abs(before.value))
    return Evaluated(theta, before.W, before.outputs, high, high, theta - before.theta)


class Stochastic:
    """Stochastic gradients of the full objective in theta and W."""

    bound = None
    next_passes = 2

    def __init__(
        self,
        make_optimizer: Callable[[list[Tensor], float], torch.optim.Optimizer],
        problem: Problem,
        start: Start,
        settings: Settings,
        state: State | None,
    ) -> None:
        self.problem, self.settings, self.status = problem, settings, Status.RUNNING
        network = problem.network
        if state is not None:
            theta, W, self.epoch = state["x"], state["W"], state["epoch"]
        else:
            theta, W, self.epoch = start.theta, start.W, 0
        if W is None:
            W = ReducedObjective(problem, settings.eliminator).start(start.theta, None).W
        self._parameters = {k: v.clone().requires_grad_() for k, v in network.split(theta).items()}
        self._head = {k: v.clone().requires_grad_() for k, v in network.split_head(W).items()}
        self._optimizer = make_optimizer([*self._parameters.values(), *self._head.values()], settings.learning_rate)
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.point = self._evaluate()

    def gradient_norm(self) -> None:
        """Not known: these methods never see the gradient of the whole objective."""
        return

    def iterate(self) -> Trial | None:
        """One epoch, in an order of its own."""
        network, misfit, n = self.problem.network, self.problem.misfit, self.problem.inputs.shape[0]
        device = self.problem.inputs.device
        for samples in shuffled(n, self.settings.seed, self.epoch).to(device).split(self.settings.batch_size):
            part = misfit.take(samples, n)
            self._optimizer.zero_grad()
            outputs = functional_call(
                network.model, {**self._parameters, **self._head}, (self.problem.inputs[samples],)
            )
            rows = network.rows(outputs)
            loss = part.weights[:, 0].to(rows.dtype) @ part.loss.value(rows, part.targets.to(rows.dtype))
            (loss + self._penalties()).backward()
            self._optimizer.step()
            network.meter.count(samples.numel(), passes=2)
        self.epoch += 1
        after = self._evaluate()
        if not np.isfinite(after.value):
            self.status = Status.NOT_FINITE
            return None
        self.point = after
        return Trial(True)

    def _penalties(self) -> Tensor | float:
        problem = self.problem
        total: Tensor | float = 0.0
        if problem.theta_penalty.alpha > 0:
            theta = torch.cat([p.reshape(-1) for p in self._parameters.values()])
            total = total + 0.5 * problem.theta_penalty.alpha * problem.theta_penalty.operator.mv(theta).square().sum()
        if problem.head_penalty > 0:
            total = total + 0.5 * problem.head_penalty * sum(p.square().sum() for p in self._head.values())
        return total

    def _evaluate(self) -> Evaluated:
        """The objective over all samples; a reading, not work."""
        problem = self.problem
        network = problem.network
        theta = network.join({k: v.detach() for k, v in self._parameters.items()})
        W = network.join_head({k: v.detach() for k, v in self._head.items()})
        outputs = with_ones(network.features(theta, problem.inputs), network.bias) @ W.T
        misfit = problem.misfit.value(outputs)
        value = misfit + problem.theta_penalty.value(theta) + 0.5 * problem.head_penalty * float(W.square().sum())
        return Evaluated(theta, W, outputs, value, misfit)

    def state(self) -> State:
        """The parameters, the optimiser's state and the epoch, from which the order of the next one follows."""
        return {
            "x": self.point.theta,
            "W": self.point.W,
            "epoch": self.epoch,
            "optimizer": self._optimizer.state_dict(),
        }


def adam(problem: Problem, start: Start, settings: Settings, state: State | None) -> Stochastic:
    """ADAM."""
    return Stochastic(lambda params, rate: torch.optim.Adam(params, lr=rate), problem, start, settings, state)


def nesterov(problem: Problem, start: Start, settings: Settings, state: State | None) -> Stochastic:
    """Stochastic gradient descent with Nesterov's momentum of 0.9."""

    def make(params: list[Tensor], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=rate, momentum=0.9, nesterov=True)

    return Stochastic(make, problem, start, settings, state)


def shuffled(n: int, *seeds: int) -> Tensor:
    """A random order of n samples that depends on the seeds alone, so that a resumed run draws it again."""
    return torch.from_numpy(np.random.default_rng(seeds).permutation(n))
