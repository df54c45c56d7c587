"""Optimisers of `torch.optim` on the full objective, such as ADAM and Nesterov's method.

They go through the training set in random batches; one iteration is one epoch, two passes. As in a plain PyTorch loop the
parameters stay in the network's own dtype; gradients come from the layers' own derivatives where these have some, which
takes half the time where batches are small. theta and W are one tensor each: the optimisers go entry by entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.methods.protocol import USUAL_WORK, Budget, Method, Running, Start, State, detached_copy
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.network.passes import PassPlan
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.stream import Stream
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import ridge
from gnvpro.samples.several import Batch

Factory = Callable[..., torch.optim.Optimizer]  # called as factory([theta, W], lr=lr)
NESTEROV: Factory = partial(torch.optim.SGD, momentum=0.9, nesterov=True)


@dataclass(frozen=True, kw_only=True)
class TorchOptimizer(Method):
    """An optimiser of `torch.optim` on theta and W together, from the eliminated head.

    Args:
        factory: a class of `torch.optim`, or a function that returns an optimiser when called as
            `factory(parameters, lr=lr)`. Other settings go in by `functools.partial(torch.optim.SGD, momentum=0.9)`.
        lr: learning rate.
        batch_size: samples per step.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`.

    theta and W are one tensor each, so the optimiser must work entry by entry. `method="adam"` stands for
    `TorchOptimizer(torch.optim.Adam)`, and "nesterov" for SGD with Nesterov's momentum of 0.9.

    >>> TorchOptimizer(torch.optim.RMSprop, lr=1e-2).batch_size
    32
    """

    factory: Factory = field(kw_only=False)
    lr: float = 1e-3
    batch_size: int = 32
    name: ClassVar[str] = "torch-optimizer"
    whole_set: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.factory):
            raise TypeError(f"TorchOptimizer: factory must be a class such as torch.optim.Adam, got {self.factory!r}")
        check_number("TorchOptimizer: lr", self.lr, 0.0, strict=True)
        check_count("TorchOptimizer: batch_size", self.batch_size, 1)
        try:
            made: object = self.factory([torch.zeros(2), torch.zeros(1, 2)], lr=self.lr)
        except Exception as error:
            raise ValueError(
                f"TorchOptimizer: factory={self.factory!r} fails for two tensors, theta and W, and lr={self.lr}: {error}; "
                "give a class of torch.optim that works entry by entry, such as torch.optim.Adam"
            ) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(
                f"TorchOptimizer: factory must return a torch.optim.Optimizer, got {made!r}; "
                "give a class such as torch.optim.Adam"
            )
        if isinstance(made, torch.optim.LBFGS):
            raise ValueError(
                "TorchOptimizer: torch.optim.LBFGS evaluates the objective several times per step and is not for random "
                'batches; use method="lbfgs-vpro"'
            )

    def usual_work(self, by_seconds: bool = False) -> float:
        """Work units where none are given: with a learning rate, an objective does not settle."""
        return math.inf if by_seconds else USUAL_WORK

    def begin(self, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None) -> Running:
        """Start on a problem, or go on from a state."""
        return RunningStochastic(self, problem, start, seed, state)


@dataclass(frozen=True)
class Model:
    """A model on the way."""

    theta: Tensor
    W: Tensor
    accuracy: float | None
    value: float
    misfit: float
    provisional: bool = False  # whether its head is still to be eliminated over all samples

    @staticmethod
    def of(problem: Problem, theta: Tensor, W: Tensor, Z: Tensor, provisional: bool = False) -> Model:
        """The objective over the samples of a problem, from their features."""
        outputs = matmul_small(Z, W.T)
        misfit = problem.misfit.value(outputs)
        value = misfit + problem.theta_penalty.value(theta) + ridge(problem.head_penalty, W)
        return Model(theta, W, problem.misfit.accuracy(outputs), value, misfit, provisional)


class RunningStochastic:
    """Stochastic gradients of the full objective in theta and W."""

    bound = None
    next_passes = 2

    def __init__(
        self, settings: TorchOptimizer, problem: Problem, start: Start, seed: int, state: State | None
    ) -> None:
        self.problem, self.settings, self.seed, self.status = problem, settings, seed, Status.RUNNING
        network = problem.network
        if state is not None:
            theta, W, self.epoch = state["x"], state["W"], state["epoch"]
        else:
            theta, W, self.epoch = start.theta, start.W, 0
        if W is None:
            W = problem.reduced.start(start.theta, None).W
        dtypes = [part.dtype for part in network.split(theta).values()]
        self._theta = theta.to(reduce(torch.promote_types, dtypes, network.dtype), copy=True)
        self._W = W.to(network.dtype, copy=True)
        self._optimizer = settings.factory([self._theta, self._W], lr=settings.lr)
        self._passes = batch_passes(network.pass_plan(problem.inputs, problem.memory, settings.batch_size))
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.point = self._evaluate()

    def gradient_norm(self) -> None:
        """Not known: these methods never see the gradient of the whole objective."""
        return

    def iterate(self) -> StepReport | None:
        """One epoch, in an order of its own."""
        for batch in random_batches(self.problem, self.settings.batch_size, self.seed, self.epoch):
            self._theta.grad, self._W.grad = self._gradients(batch)
            self._optimizer.step()
        self.epoch += 1
        after = self._evaluate()
        if not np.isfinite(after.value):
            self.status = Status.NOT_FINITE
            return None
        self.point = after
        return StepReport(True)

    def _gradients(self, batch: RandomBatch) -> tuple[Tensor, Tensor]:
        """Of the objective on a batch."""
        problem, network, misfit = self.problem, self.problem.network, batch.misfit
        theta, W = self._theta.to(torch.float64), self._W.to(torch.float64)
        linearization = network.linearize(theta, batch.inputs, self._passes, problem.meter, misfit.over)
        Z = append_bias_column(linearization.features, network.bias)
        d_outputs = misfit.gradient(matmul_small(Z, W.T))
        d_theta = linearization.vjp(matmul_small(d_outputs, W[:, : network.n_features]))
        d_theta = d_theta + problem.theta_penalty.hessian_mv(theta)
        d_W = misfit.over.inner(d_outputs, Z) + problem.head_penalty * W
        return d_theta.to(self._theta.dtype), d_W.to(self._W.dtype)

    def _evaluate(self) -> Model:
        """The objective over all samples; a reading, not work."""
        problem = self.problem
        network = problem.network
        theta, W = self._theta.to(torch.float64, copy=True), self._W.to(torch.float64, copy=True)
        features = network.features(theta, problem.inputs, problem.passes)
        return Model.of(problem, theta, W, append_bias_column(features, network.bias))

    def state(self) -> State:
        """The parameters, the optimiser's state and the epoch, from which the order of the next one follows."""
        return {
            "x": self.point.theta,
            "W": self.point.W,
            "epoch": self.epoch,
            "optimizer": detached_copy(self._optimizer.state_dict()),
        }


@dataclass(frozen=True)
class RandomBatch:
    """Some of the samples: those of this process, and how many there are in all."""

    inputs: Batch
    misfit: Misfit
    count: int
    of_loader: bool = False


def batch_passes(passes: PassPlan) -> PassPlan:
    """The passes over a batch, which is held: a chunk is kept also where the samples it is from are not held."""
    return passes if passes.kept else PassPlan(passes.size, 1.0)


def loader_batch_size(problem: Problem) -> int | None:
    """Samples in a batch of the user's own loader; None where batches are drawn here."""
    stream = problem.inputs
    return stream.own_batch_size if isinstance(stream, Stream) else None


def random_batches(problem: Problem, size: int, *seeds: int, first: int = 0) -> Iterator[RandomBatch]:
    """One epoch in batches, in an order that the seeds decide, from the one with the number `first` on.

    Of a DataLoader its own batches in its own order, all of them.
    """
    if isinstance(problem.inputs, Stream) and problem.inputs.own_batch_size is not None:
        for inputs, misfit in problem.inputs.batches(problem.misfit.over):
            yield RandomBatch(inputs, misfit, len(inputs), of_loader=True)
        return
    for samples in seeded_permutation(problem.n_samples, *seeds)[first * size :].to(problem.inputs.device).split(size):
        yield RandomBatch(*problem.part(samples), samples.numel())


def seeded_permutation(n: int, *seeds: int) -> Tensor:
    """A random order of n samples that depends on the seeds alone, so that a resumed run draws it again."""
    return torch.from_numpy(np.random.default_rng(seeds).permutation(n))
