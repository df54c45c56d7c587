"""ADAM and Nesterov's method on the full objective, by `torch.optim`.

They go through the training set in random batches; one iteration is one epoch, two passes. They work on copies of the
parameters in the network's own dtype, exactly as a plain PyTorch loop would, from the eliminated head.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.sums import SampleSum
from gnvpro.methods.protocol import Budget, Method, Running, Start, State, detached_copy
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import ridge
from gnvpro.samples.several import Batch


@dataclass(frozen=True, kw_only=True)
class StochasticMethod(Method):
    """Settings that stochastic methods share."""

    lr: float = 1e-3
    batch_size: int = 32
    whole_set: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(f"{type(self).__name__}: lr", self.lr, 0.0, strict=True)
        check_count(f"{type(self).__name__}: batch_size", self.batch_size, 1)

    @abstractmethod
    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """The optimiser of these parameters."""

    def begin(self, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None) -> Running:
        """Start on a problem, or go on from a state."""
        return RunningStochastic(self, problem, start, seed, state)


@dataclass(frozen=True, kw_only=True)
class Adam(StochasticMethod):
    """ADAM on theta and W together, from the eliminated head.

    Args:
        lr: learning rate.
        batch_size: samples per step.
        head, eliminator, levels, memory, seed: see `gnvpro.Method`.
    """

    name: ClassVar[str] = "adam"

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """torch's ADAM."""
        return torch.optim.Adam(parameters, lr=self.lr)


@dataclass(frozen=True, kw_only=True)
class Nesterov(StochasticMethod):
    """Stochastic gradient descent with Nesterov's momentum, on theta and W together, from the eliminated head.

    Args:
        lr: learning rate.
        batch_size: samples per step.
        momentum: share of the last step that is kept.
        head, eliminator, levels, memory, seed: see `gnvpro.Method`.
    """

    momentum: float = 0.9
    name: ClassVar[str] = "nesterov"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Nesterov: momentum", self.momentum, 0.0, strict=True)  # torch has none without

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """torch's SGD."""
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, nesterov=True)


@dataclass(frozen=True)
class Model:
    """A model on the way."""

    theta: Tensor
    W: Tensor
    outputs: Tensor
    value: float
    misfit: float


class RunningStochastic:
    """Stochastic gradients of the full objective in theta and W."""

    bound = None
    next_passes = 2

    def __init__(
        self, settings: StochasticMethod, problem: Problem, start: Start, seed: int, state: State | None
    ) -> None:
        self.problem, self.settings, self.seed, self.status = problem, settings, seed, Status.RUNNING
        network = problem.network
        if state is not None:
            theta, W, self.epoch = state["x"], state["W"], state["epoch"]
        else:
            theta, W, self.epoch = start.theta, start.W, 0
        if W is None:
            W = problem.reduced.start(start.theta, None).W
        self._parameters = {k: v.clone().requires_grad_() for k, v in network.split(theta).items()}
        self._head = {k: v.clone().requires_grad_() for k, v in network.split_head(W).items()}
        self._optimizer = settings.optimizer([*self._parameters.values(), *self._head.values()])
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.point = self._evaluate()

    def gradient_norm(self) -> None:
        """Not known: these methods never see the gradient of the whole objective."""
        return

    def iterate(self) -> StepReport | None:
        """One epoch, in an order of its own."""
        n, device = self.problem.n_samples, self.problem.inputs.device
        for samples in seeded_permutation(n, self.seed, self.epoch).to(device).split(self.settings.batch_size):
            inputs, part = self.problem.part(samples)
            self._optimizer.zero_grad()
            if len(inputs):
                self._loss(inputs, part).backward()
            self._add_up_gradients(part.over)
            penalties = self._penalties()
            if isinstance(penalties, Tensor):
                penalties.backward()
            self._optimizer.step()
            self.problem.meter.count(samples.numel(), passes=2)
        self.epoch += 1
        after = self._evaluate()
        if not np.isfinite(after.value):
            self.status = Status.NOT_FINITE
            return None
        self.point = after
        return StepReport(True)

    def _loss(self, inputs: Batch, part: Misfit) -> Tensor:
        network = self.problem.network
        rows = network.rows(network.outputs({**self._parameters, **self._head}, inputs))
        return part.weights[:, 0].to(rows.dtype) @ part.loss.value(rows, part.targets.to(rows.dtype).contiguous())

    def _add_up_gradients(self, over: SampleSum) -> None:
        """Over the processes: each has those of its part of the batch."""
        if over.processes.alone:
            return
        variables = [*self._parameters.values(), *self._head.values()]
        parts = [torch.zeros_like(v) if v.grad is None else v.grad for v in variables]
        whole = over.total(torch.cat([part.to(torch.float64).reshape(-1) for part in parts]))
        for variable, gradient in zip(variables, whole.split([v.numel() for v in variables]), strict=True):
            variable.grad = gradient.reshape(variable.shape).to(variable.dtype)

    def _penalties(self) -> Tensor | float:
        problem = self.problem
        total: Tensor | float = 0.0
        if problem.theta_penalty.alpha > 0:
            theta = torch.cat([p.reshape(-1) for p in self._parameters.values()])
            total = total + 0.5 * problem.theta_penalty.alpha * problem.theta_penalty.operator.mv(theta).square().sum()
        if problem.head_penalty > 0:
            total = total + 0.5 * problem.head_penalty * sum(p.square().sum() for p in self._head.values())
        return total

    def _evaluate(self) -> Model:
        """The objective over all samples; a reading, not work."""
        problem = self.problem
        network = problem.network
        theta = network.join({k: v.detach() for k, v in self._parameters.items()})
        W = network.join_head({k: v.detach() for k, v in self._head.items()})
        features = network.features(theta, problem.inputs, problem.passes)
        outputs = matmul_small(append_bias_column(features, network.bias), W.T)
        misfit = problem.misfit.value(outputs)
        value = misfit + problem.theta_penalty.value(theta) + ridge(problem.head_penalty, W)
        return Model(theta, W, outputs, value, misfit)

    def state(self) -> State:
        """The parameters, the optimiser's state and the epoch, from which the order of the next one follows."""
        return {
            "x": self.point.theta,
            "W": self.point.W,
            "epoch": self.epoch,
            "optimizer": detached_copy(self._optimizer.state_dict()),
        }


def seeded_permutation(n: int, *seeds: int) -> Tensor:
    """A random order of n samples that depends on the seeds alone, so that a resumed run draws it again."""
    return torch.from_numpy(np.random.default_rng(seeds).permutation(n))
