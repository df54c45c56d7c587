"""Steps of ADAM on batches, with the head eliminated on each: what `adam-vpro` repeats.

A learning rate is relative: the largest change of an entry in a step, as a share of the size that the entries of its tensor had
at the start,

    step of a tensor  =  rate * size * direction(gradient),         size = root mean square of its entries

since weights are drawn smaller in a layer of more inputs, and the rate that suits them falls with them: one rate serves
networks of all widths. A matrix that begins near zero has the size that torch would have drawn, so that it can leave.
Tensors of a single row (biases, factors of a norm, positions of a transformer) have the size of the matrix before them, or
of the first one.

The mean of the last thetas is kept beside theta. Noise averages out in it, so that with a head of its own it is nearly as good
a model as if the rate had fallen to zero,

    mean_k  =  mean_(k-1) + (MEMORY + 1) / (MEMORY + 1 + k) * (theta_k - mean_(k-1))        about the last k / MEMORY of them
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.methods.stochastic import RandomBatch, batch_passes
from gnvpro.network.passes import PassPlan
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import sum_of_squares
from gnvpro.state import State
from gnvpro.stochastic.batch_head import BatchFit, BatchHead, HeadMemory
from gnvpro.stochastic.rotated_adam import Rotated

MEMORY = 20  # of the mean
SMALL = 0.03  # times the size that torch draws: near zero


@dataclass(frozen=True)
class BatchState(State):
    """The optimiser's state: theta, its moments, the mean of the last thetas, the last head."""

    memory: HeadMemory
    theta: Tensor
    moments: dict[str, dict[str, Any]]
    sizes: dict[str, float]
    mean: Tensor
    count: int = 0  # steps so far

    @staticmethod
    def at(problem: Problem, head: BatchHead, theta: Tensor, W: Tensor) -> BatchState:
        """An optimiser that has no past."""
        moments: dict[str, dict[str, Any]] = {name: {} for name in problem.network.names}
        return BatchState(head.first(W), theta, moments, sizes_of(problem.network.views(theta)), theta)


class BatchSteps:
    """Steps from a state, on copies of what they change."""

    def __init__(self, problem: Problem, head: BatchHead, kernel: Rotated, batch_size: int, begun: BatchState) -> None:
        self.problem, self.head, self.kernel, self.batch_size = problem, head, kernel, batch_size
        self._passes = batch_passes(PassPlan(min(batch_size, problem.passes.size), problem.passes.kept))
        self.memory, self.theta, self.mean, self.count = begun.memory, begun.theta.clone(), begun.mean, begun.count
        self.moments, self.sizes = copy.deepcopy(begun.moments), begun.sizes

    def reached(self) -> BatchState:
        """The state that the steps so far have led to; no step may follow."""
        return BatchState(self.memory, self.theta, self.moments, self.sizes, self.mean, self.count)

    def step(self, batch: RandomBatch, rate: float, share: float = 1.0) -> BatchFit | None:
        """Take a step on one batch; return the head before the step, or None if features are not finite."""
        with self.problem.network.mode.on_batch(self.count):
            return self._step(batch, rate, share)

    def _step(self, batch: RandomBatch, rate: float, share: float) -> BatchFit | None:
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


def sizes_of(parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the size of each tensor's entries, which rates are relative to.

    >>> sizes_of({"place": torch.zeros(1, 9, 3), "weight": torch.full((2, 3), 0.5), "bias": torch.zeros(2)})
    {'place': 0.5, 'weight': 0.5, 'bias': 0.5}
    """
    own = {name: _size_of_matrix(values) for name, values in parameters.items() if _has_rows(values)}
    last, sizes = next(iter(own.values()), 1.0), {}
    for name in parameters:
        sizes[name] = last = own.get(name, last)
    return sizes


def _has_rows(values: Tensor) -> bool:
    """Return whether a tensor maps inputs to several outputs, as weights do."""
    return values.dim() > 1 and len(values) > 1


def _size_of_matrix(values: Tensor) -> float:
    """Return the root mean square of a matrix's entries, or of those that torch would have drawn if it is near zero."""
    drawn = math.sqrt(len(values) / (3 * max(values.numel(), 1)))
    own = float(values.detach().double().square().mean().sqrt())
    return own if own > SMALL * drawn else drawn
