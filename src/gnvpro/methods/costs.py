"""What cheap and exact steps cost: work units, seconds, or operations counted like passes.

What an exact step costs is known before the first one is taken: its passes, and the seconds of the same products with a few
rows. Where seconds count, the matrix of an exact step may be made from a part of the samples (`gnvpro.minimize.part_model`).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import cached_property

import torch

from gnvpro.methods.protocol import Budget
from gnvpro.methods.solvers import Dense, count_directions, head_size
from gnvpro.objectives.problem import Problem
from gnvpro.samples.several import Streamed

PROBE_ROWS, PROBE_DIRECTIONS = 256, 256  # at most: a probe takes milliseconds
ROWS = 3  # of the Jacobian for each direction, in the matrix of a part of the samples
FEW_PARTS = 10  # that the samples have at least: with few samples a step is mostly what the estimate does not count


def exact_flops(dense: Dense, problem: Problem) -> float:
    """Of an exact step: n m q^2 + q^3 / 3, with n the samples that its matrix is made from."""
    q = count_directions(problem)
    return min(problem.n_samples, dense.samples or math.inf) * dense.seeds(*head_size(problem)) * q**2 + q**3 / 3


class Costs:
    """What has been spent: work units, seconds, or work units and operations counted like passes."""

    def __init__(self, dense: Dense, reproducible: bool, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget = problem, budget
        self.take(dense)
        # each process has a clock of its own, and all must decide alike
        counted = reproducible or not problem.processes.alone
        self.kind = "work" if budget.work_is_scarce else "counts" if counted else "seconds"
        self.matrices = 0  # that were made
        self.gone = 0.0  # before the run was resumed
        self._begun = self._clock()

    def take(self, dense: Dense) -> Dense:
        """Count exact steps as these settings make them."""
        self.dense, self.flops = dense, exact_flops(dense, self.problem)
        # passes that have as many operations as squaring the Jacobian
        self.squaring = self.flops / (4 * self.problem.n_samples * self.problem.network.n_theta)
        return dense

    def _clock(self) -> float:
        if self.kind == "seconds":
            return time.process_time() if self.problem.inputs.device.type == "cpu" else time.perf_counter()
        passes = self.budget.meter.work / self.budget.share
        return passes + (self.matrices * self.squaring if self.kind == "counts" else 0.0)

    def spent(self) -> float:
        """Since the method began."""
        return self.gone + self._clock() - self._begun

    def of_exact_step(self, of_pass: float) -> float:
        """What an exact step will cost, at so much for a pass."""
        passes = self.dense.step_passes(*head_size(self.problem)) * of_pass
        if self.kind != "seconds":
            return passes + (self.squaring if self.kind == "counts" else 0.0)
        return passes + self.flops * self.seconds_per_flop

    @cached_property
    def seconds_per_flop(self) -> float:
        """Of squaring a few rows, the quickest of five."""
        q = min(count_directions(self.problem), PROBE_DIRECTIONS)
        rows = torch.ones(q, PROBE_ROWS, dtype=torch.float64)
        taken = []
        for _ in range(5):
            begun = time.process_time()
            rows @ rows.T
            taken.append(time.process_time() - begun)
        return 0.5 * max(min(taken), 1e-9) / (PROBE_ROWS * q**2)  # one of each symmetric pair of blocks is made

    def thrifty(self, dense: Dense, of_pass: float) -> Dense:
        """Exact steps as they are; or with the matrix of a part of the samples, where that takes less than half the seconds."""
        problem = self.problem
        squares, held = problem.misfit.identity_hessian, not isinstance(problem.inputs, Streamed)
        settings = dense.resolved(squares)
        fits = squares and held and settings.step_control == "damping" and not settings.residual_term
        if self.kind != "seconds" or dense.samples is not None or not fits:
            return dense
        before = self.of_exact_step(of_pass)
        samples = math.ceil(ROWS * count_directions(problem) / dense.seeds(*head_size(problem)))
        if problem.n_samples < FEW_PARTS * samples:
            return dense
        part = self.take(replace(dense, samples=samples))
        return part if self.of_exact_step(of_pass) < before / 2 else self.take(dense)
