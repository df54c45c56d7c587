"""What the steps of `auto` cost: passes, counted operations, or seconds by the clock.

    work         passes over the samples; matrices cost nothing
    operations   the seconds that the cost model predicts for what was done (see `gnvpro.policy.cost`)
    seconds      processor seconds by the clock; predictions are those of the cost model, scaled by what was timed

Counted costs are the same on every machine, however busy. Several processes always count: each has a clock of its own, and
all must decide alike.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property

from gnvpro.methods.protocol import Budget
from gnvpro.methods.solvers import Dense, count_directions, head_size
from gnvpro.objectives.problem import Problem
from gnvpro.policy.cost import Sizes, seconds_of_matrix, seconds_of_pass, seconds_of_step
from gnvpro.samples.several import Streamed

KINDS = ("operations", "work", "seconds")


def sizes_of(problem: Problem) -> Sizes:
    """Return the sizes that the costs of a problem depend on."""
    network = problem.network
    done = network.operations(problem.few)
    return Sizes(
        problem.n_samples,
        count_directions(problem),
        network.n_features,
        network.n_targets,
        problem.misfit.identity_hessian,
        done.products,
        done.numbers,
        done.calls,
    )


@dataclass(frozen=True)
class Prices:
    """Costs of a pass, of a matrix, and of what a step does beside these."""

    of_pass: float
    of_matrix: float
    of_step: float
    passes_of_exact_step: float

    @property
    def of_cheap_step(self) -> float:
        """Cost of a quasi-Newton step: a point and its gradient."""
        return 2 * self.of_pass + self.of_step

    @property
    def of_exact_step(self) -> float:
        """Cost of a step from a new matrix."""
        return self.passes_of_exact_step * self.of_pass + self.of_matrix + self.of_step


def prices_of(dense: Dense, problem: Problem, sizes: Sizes) -> Prices:
    """Return the costs that the model predicts, in seconds."""
    cost, head = problem.policy.cost, head_size(problem)
    rows = replace(sizes, samples=min(sizes.samples, dense.samples or sizes.samples))
    return Prices(
        seconds_of_pass(cost, sizes),
        seconds_of_matrix(cost, rows, dense.seeds(*head)),
        seconds_of_step(cost, sizes),
        dense.step_passes(*head),
    )


def passes_alone(dense: Dense, problem: Problem) -> Prices:
    """Return costs in passes over the samples, with everything else for nothing."""
    return Prices(1.0, 0.0, 0.0, dense.step_passes(*head_size(problem)))


def thrifty(dense: Dense, problem: Problem, sizes: Sizes) -> Dense:
    """Return exact steps with the matrix of a part of the samples if that halves their cost, else as they are."""
    rules = problem.policy.solver
    squares, held = problem.misfit.identity_hessian, not isinstance(problem.inputs, Streamed)
    settings = dense.resolved(squares)
    plain = settings.step_control == "damping" and not settings.residual_term and problem.processes.alone
    if dense.samples is not None or not (squares and held and plain):
        return dense
    rows = math.ceil(rules.rows_per_direction * sizes.directions / dense.seeds(*head_size(problem)))
    if rows > rules.part_below * problem.n_samples:
        return dense
    part = replace(dense, samples=rows)
    whole, less = (prices_of(each, problem, sizes).of_exact_step for each in (dense, part))
    return part if less < whole / 2 else dense


class Costs:
    """What has been spent on a problem, and what its steps will cost."""

    def __init__(self, kind: str, dense: Dense, problem: Problem, budget: Budget) -> None:
        self.kind = "operations" if kind == "seconds" and not problem.processes.alone else kind
        self.problem, self.budget = problem, budget
        self.sizes = None if kind == "work" else sizes_of(problem)
        self.dense = dense if self.sizes is None else thrifty(dense, problem, self.sizes)
        self.matrices = self.steps = 0  # that were made
        self.begun = budget.meter.work
        self.gone = 0.0  # seconds by the clock before the run was resumed
        self.slowness = 1.0  # seconds by the clock over those predicted
        self._set_out = self._clock()

    @cached_property
    def predicted(self) -> Prices:
        """Costs that the model predicts."""
        if self.sizes is None:
            return passes_alone(self.dense, self.problem)
        return prices_of(self.dense, self.problem, self.sizes)

    def _clock(self) -> float:
        if self.kind != "seconds":
            return 0.0
        return time.process_time() if self.problem.inputs.device.type == "cpu" else time.perf_counter()

    @property
    def spent(self) -> float:
        """Cost since the method began."""
        if self.kind == "seconds":
            return self.gone + self._clock() - self._set_out
        passes, each = (self.budget.meter.work - self.begun) / self.budget.share, self.predicted
        return passes * each.of_pass + self.matrices * each.of_matrix + self.steps * each.of_step

    @property
    def exact_step(self) -> float:
        """Cost of an exact step."""
        return self.slowness * self.predicted.of_exact_step

    @property
    def cheap_step(self) -> float:
        """Cost of a quasi-Newton step."""
        return self.slowness * self.predicted.of_cheap_step

    @property
    def cheap_first(self) -> bool:
        """Whether an exact step costs so much that cheap ones come first."""
        return self.exact_step >= self.problem.policy.solver.cheap_first * self.cheap_step

    @property
    def exact_seconds(self) -> float:
        """Seconds of an exact step; zero if only work counts."""
        return 0.0 if self.sizes is None else self.exact_step

    def calibrate(self, of_cheap_step: float) -> None:
        """Scale predictions by what cheap steps took by the clock; counted costs are what they are."""
        if self.kind == "seconds":
            self.slowness = max(of_cheap_step, 1e-9) / self.predicted.of_cheap_step

    def state(self) -> list[float]:
        """Return the counts, and what the clock showed."""
        return [self.begun, self.matrices, self.steps, self.gone + self._clock() - self._set_out, self.slowness]

    def resume(self, state: list[float]) -> None:
        """Continue these counts."""
        self.begun, matrices, steps, self.gone, self.slowness = state
        self.matrices, self.steps = int(matrices), int(steps)
        self._set_out = self._clock()
