"""Steps of ADAM on batches, with the head eliminated on each: what `adam-vpro` repeats.

A learning rate is relative: the largest change of an entry in a step, as a share of the size that the entries of its tensor had
at the start,

    step of a tensor  =  rate * size * direction(gradient),         size = root mean square of its entries

since weights are drawn smaller where a layer has more inputs, and the rate that suits them falls with them: one rate serves
networks of all widths. Vectors (biases) have the size of the matrix before them, a matrix of zeros the one that torch
would have drawn.

The mean of the last thetas is kept beside theta. Noise averages out in it, so that with a head of its own it is nearly as good
a model as if the rate had fallen to zero,

    mean_k  =  mean_(k-1) + (MEMORY + 1) / (MEMORY + 1 + k) * (theta_k - mean_(k-1))        about the last k / MEMORY of them
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.methods.protocol import State, detached_copy
from gnvpro.methods.stochastic import RandomBatch, batch_passes
from gnvpro.network.passes import PassPlan
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import sum_of_squares
from gnvpro.stochastic.batch_head import BatchFit, BatchHead, HeadMemory
from gnvpro.stochastic.rotated_adam import Rotated

MEMORY = 20  # of the mean
KEPT = ("theta", "moments", "sizes", "mean", "count")  # by a checkpoint, beside the head
SMALL = 1e-3  # times the size that torch draws: as good as zero


class BatchSteps:
    """The optimiser on its way: theta, its moments, the last head."""

    def __init__(
        self, problem: Problem, head: BatchHead, kernel: Rotated, batch_size: int, theta: Tensor, W: Tensor
    ) -> None:
        self.problem, self.head, self.kernel, self.batch_size = problem, head, kernel, batch_size
        self._passes = batch_passes(PassPlan(min(batch_size, problem.passes.size), problem.passes.kept))
        self.memory = head.first(W)
        self.theta = theta.clone()  # changed in place
        self.moments: dict[str, dict[str, Any]] = {name: {} for name in problem.network.names}
        self.sizes = sizes_of(problem.network.views(theta))
        self.mean, self.count = theta, 0

    def step(self, batch: RandomBatch, rate: float, share: float = 1.0) -> BatchFit | None:
        """One batch, with a share of the head's freedom; its head before the step, None where features are not finite."""
        problem, network, misfit, theta = self.problem, self.problem.network, batch.misfit, self.theta
        linearization = network.linearize(theta, batch.inputs, self._passes, problem.meter, misfit.over)
        with problem.meter.inner_clock():
            Z = append_bias_column(linearization.features, network.bias)
            if not torch.isfinite(misfit.over.sum(sum_of_squares, Z)):
                return None
            fit = self.head.fit(Z, misfit, problem.head_penalty, self.memory, share)
        self.memory = fit.memory
        cotangent = matmul_small(misfit.gradient(fit.outputs), fit.W[:, : network.n_features])
        gradient = linearization.vjp(cotangent) + problem.theta_penalty.hessian_mv(theta)
        self.mean = torch.lerp(self.mean, theta, (MEMORY + 1) / (MEMORY + 1 + self.count))
        parameters = network.views(theta)
        for name, part in network.split(gradient).items():
            self.kernel.step(parameters[name], part, self.moments[name], rate * self.sizes[name])
        self.count += 1
        return fit

    def state(self) -> State:
        """All of it."""
        return {"memory": self.memory.state(), **{name: detached_copy(getattr(self, name)) for name in KEPT}}

    def resume(self, state: State) -> None:
        """Take it up."""
        self.memory = HeadMemory(**state["memory"])
        for name in KEPT:
            setattr(self, name, detached_copy(state[name]))


def sizes_of(parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """The root mean square of each tensor's entries, or what stands for it.

    >>> sizes_of({"weight": torch.full((2, 3), 0.5), "bias": torch.zeros(2)})
    {'weight': 0.5, 'bias': 0.5}
    """
    sizes, last = {}, 1.0
    for name, values in parameters.items():
        if values.dim() > 1:
            drawn = math.sqrt(len(values) / (3 * max(values.numel(), 1)))
            own = float(values.detach().double().square().mean().sqrt())
            last = own if own > SMALL * drawn else drawn
        sizes[name] = last
    return sizes
