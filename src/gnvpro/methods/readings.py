"""Readings of a run on batches: the objective on the way, for the history and the validation, at little cost.

    samples     a random part of them, held in memory, if there are many more than a reading needs
    head        least squares: eliminated on these samples. Other losses: the head that follows the batches, if it has
                used as many samples as its memory holds; else it takes a few Newton steps

The head that batches begin near is smaller than the eliminated one for least squares. Features of an untrained network are
nearly collinear, so the eliminated head has huge entries that nearly cancel. A head that is held near it never loses them,
and the gradient in theta follows them. Its ridge has the size of the features:

    W_0  =  argmin_W  misfit(Z W') + rho/2 |W|^2,        rho = HELD * mean of the squared entries of Z

A reading does not count as work. Its head is provisional, unless it is eliminated on all samples: the run eliminates the kept
model's head over all of them (see `gnvpro.training.keeper`).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnvpro.head.eliminator import WarmStart, append_bias_column
from gnvpro.methods.batch_steps import BatchSteps
from gnvpro.methods.protocol import Iterate, Start
from gnvpro.methods.stochastic import iterate_with_head, seeded_permutation
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import sum_of_squares
from gnvpro.samples.several import entries_per_sample
from gnvpro.stochastic.batch_head import MEMORY, BatchHead

ROUGH = BatchHead(proximal=0.0, rtol=1e-2, steps=3)
HELD = 0.01  # ridge of the first head of least squares, in units of the mean square of the features


class Readings:
    """The readings of one run; the seeds choose their samples."""

    def __init__(self, problem: Problem, *seeds: int) -> None:
        self.problem, self._seeds = problem, seeds

    @cached_property
    def seen(self) -> Problem:
        """The problem on the samples of a reading."""
        problem, network = self.problem, self.problem.network
        rules = problem.policy
        entries = network.n_targets * (network.n_features + network.bias)
        enough = max(rules.memory.looked_at, MEMORY * entries)
        size = enough * entries_per_sample(problem.inputs) * torch.finfo(torch.float64).bits / 8
        if (
            problem.n_samples < 2 * enough
            or size > rules.samples.held_memory * problem.memory
            or not problem.takes_fast
        ):
            return problem
        samples = seeded_permutation(problem.n_samples, *self._seeds)[:enough]
        return problem.on_samples(samples.to(problem.inputs.device))

    def first(self, start: Start) -> Iterate:
        """Evaluate the first model with an eliminated head, which is the only reading that counts as work."""
        near = None if start.W is None else WarmStart(start.W)
        self.seen.measure_statistics(start.theta)
        point = self.seen.reduced.start(start.theta, near, keep=False)
        provisional = self.seen is not self.problem
        return Iterate(point.theta, point.W, point.value, point.misfit, point.accuracy, provisional)

    def held(self, first: Iterate) -> Tensor:
        """Return the head that batches begin near."""
        misfit = self.seen.misfit
        if not misfit.identity_hessian:
            return first.W
        self.seen.measure_statistics(first.theta)
        Z = self._features(first.theta)
        with self.seen.meter.inner_clock():
            mean = misfit.over.sum(lambda w, rows: w[:, 0] @ rows.square().mean(1).to(w.dtype), misfit.weights, Z)
            rho = HELD * float(mean)
            return self.seen.eliminator.fit(Z, misfit, max(rho, self.seen.head_penalty), WarmStart(first.W)).W

    def read(self, theta: Tensor, steps: BatchSteps) -> Iterate | None:
        """Evaluate a later model; return None if its features are not finite."""
        problem, near = self.seen, steps.memory.reading
        misfit, ridge = problem.misfit, problem.head_penalty
        self.seen.measure_statistics(theta)
        Z = self._features(theta)
        if not torch.isfinite(misfit.over.sum(sum_of_squares, Z)):
            return None
        with problem.meter.inner_clock():
            if misfit.identity_hessian:
                W = problem.eliminator.fit(Z, misfit, ridge, WarmStart(near)).W
            elif steps.head.follows(misfit) and steps.count * steps.head.gain_of(steps.batch_size, near.numel()) >= 1.0:
                W = near
            else:
                W = ROUGH.fit(Z, misfit, ridge, ROUGH.first(near)).W
        return iterate_with_head(problem, theta, W, Z, not misfit.identity_hessian or problem is not self.problem)

    def _features(self, theta: Tensor) -> Tensor:
        """With a column of ones for the bias; not counted as work."""
        seen = self.seen
        return append_bias_column(seen.network.features(theta, seen.inputs, seen.passes), seen.network.bias)
