"""Optimisers of `torch.optim` on the full objective, such as ADAM and Nesterov's method.

They use the training set in random batches; one iteration is one epoch, two passes. As in a plain PyTorch loop the
parameters stay in the network's own dtype. Gradients come from the layers' own derivatives if these exist, which
takes half the time for small batches. theta and W are one tensor each, so an optimiser must work entry by entry.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import USUAL_WORK, Budget, Iterate, Method, MethodState, Start
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
        if self.factory in (torch.optim.Adam, NESTEROV):
            return  # known to work; a trial would import torch._dynamo, which takes 4 s
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
        """Return the default work budget: at a constant learning rate an objective does not settle."""
        return math.inf if by_seconds else USUAL_WORK

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> TorchState:
        """Return the model at theta, with an eliminated head if none is given."""
        W = start.W
        if W is None:
            problem.measure_statistics(start.theta)
            W = problem.reduced.start(start.theta, None).W
        variables = self._variables(problem, start.theta, W)
        return TorchState(iterate=_evaluate(problem, *variables), epoch=0, seed=start.seed, optimizer={})

    def step(
        self, problem: Problem, state: TorchState, budget: Budget, cache: Cache
    ) -> tuple[TorchState, StepReport | Status]:
        """Train for one epoch, in an order determined by the seed and the number of the epoch."""
        theta, W = self._variables(problem, state.iterate.theta, state.iterate.W)
        optimizer = self.factory([theta, W], lr=self.lr)
        if state.optimizer:
            optimizer.load_state_dict(copy.deepcopy(state.optimizer))
        passes = batch_passes(problem.network.pass_plan(problem.inputs, problem.memory, self.batch_size))
        for number, batch in enumerate(random_batches(problem, self.batch_size, state.seed, state.epoch)):
            with problem.network.mode.on_batch(state.epoch * problem.n_samples + number):
                theta.grad, W.grad = _gradients(problem, batch, theta, W, passes)
            optimizer.step()
        after = _evaluate(problem, theta, W)
        if not np.isfinite(after.value):
            return state, Status.NOT_FINITE
        epoch = state.epoch + 1
        return replace(state, iterate=after, epoch=epoch, optimizer=optimizer.state_dict()), StepReport(True)

    @staticmethod
    def _variables(problem: Problem, theta: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies in the dtype of the network, for the optimiser to move."""
        network = problem.network
        dtypes = [part.dtype for part in network.split(theta).values()]
        return theta.to(reduce(torch.promote_types, dtypes, network.dtype), copy=True), W.to(network.dtype, copy=True)


@dataclass(frozen=True, kw_only=True)
class TorchState(MethodState):
    """The number of epochs so far, the seed of their orders, and the memory of the optimiser."""

    epoch: int
    seed: int
    optimizer: dict[str, Any]


def _gradients(
    problem: Problem, batch: RandomBatch, theta: Tensor, W: Tensor, passes: PassPlan
) -> tuple[Tensor, Tensor]:
    """Return gradients in theta and W of the objective on a batch."""
    network, misfit = problem.network, batch.misfit
    at, head = theta.to(torch.float64), W.to(torch.float64)
    linearization = network.linearize(at, batch.inputs, passes, problem.meter, misfit.over)
    Z = append_bias_column(linearization.features, network.bias)
    d_outputs = misfit.gradient(matmul_small(Z, head.T))
    d_theta = linearization.vjp(matmul_small(d_outputs, head[:, : network.n_features]))
    d_theta = d_theta + problem.theta_penalty.hessian_mv(at)
    d_W = misfit.over.inner(d_outputs, Z) + problem.head_penalty * head
    return d_theta.to(theta.dtype), d_W.to(W.dtype)


def _evaluate(problem: Problem, theta: Tensor, W: Tensor) -> Iterate:
    """Evaluate the objective over all samples; this is not work."""
    network = problem.network
    theta, W = theta.to(torch.float64, copy=True), W.to(torch.float64, copy=True)
    problem.measure_statistics(theta)
    features = network.features(theta, problem.inputs, problem.passes)
    return iterate_with_head(problem, theta, W, append_bias_column(features, network.bias))


def iterate_with_head(problem: Problem, theta: Tensor, W: Tensor, Z: Tensor, provisional: bool = False) -> Iterate:
    """Return a model with any head, from its features on the samples of a problem."""
    outputs = matmul_small(Z, W.T)
    misfit = problem.misfit.value(outputs)
    value = misfit + problem.theta_penalty.value(theta) + ridge(problem.head_penalty, W)
    return Iterate(theta, W, value, misfit, problem.misfit.accuracy(outputs), provisional)


@dataclass(frozen=True)
class RandomBatch:
    """Some of the samples: the local ones, and their number over all processes."""

    inputs: Batch
    misfit: Misfit
    count: int
    of_loader: bool = False


def batch_passes(passes: PassPlan) -> PassPlan:
    """Return the passes over a batch, which is in memory even if the samples are not."""
    return passes if passes.kept else PassPlan(passes.size, 1.0)


def loader_batch_size(problem: Problem) -> int | None:
    """Return the batch size of the user's own loader; None if batches are drawn here."""
    stream = problem.inputs
    return stream.own_batch_size if isinstance(stream, Stream) else None


def random_batches(problem: Problem, size: int, *seeds: int, first: int = 0) -> Iterator[RandomBatch]:
    """Yield one epoch in batches, in an order determined by the seeds, starting with batch number `first`.

    A DataLoader provides its own batches in its own order, all of them.
    """
    if isinstance(problem.inputs, Stream) and problem.inputs.own_batch_size is not None:
        for inputs, misfit in problem.inputs.batches(problem.misfit.over):
            yield RandomBatch(inputs, misfit, len(inputs), of_loader=True)
        return
    for samples in seeded_permutation(problem.n_samples, *seeds)[first * size :].to(problem.inputs.device).split(size):
        yield RandomBatch(*problem.part(samples), samples.numel())


def seeded_permutation(n: int, *seeds: int) -> Tensor:
    """Return a random order of n samples that depends on the seeds alone, so that a resumed run draws it again."""
    return torch.from_numpy(np.random.default_rng(seeds).permutation(n))
