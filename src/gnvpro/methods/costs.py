"""Costs of the steps of `auto`: passes, counted operations, or CPU seconds.

    work         passes over the samples; matrices cost nothing
    operations   the seconds that the cost model predicts for the steps taken (see `gnvpro.policy.cost`)
    seconds      measured CPU seconds; the cost model predicts, scaled by past measurements

Counted costs are the same on every machine, however busy. Several processes always count: their clocks differ, and
all must decide alike.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property

from gnvpro.methods.protocol import Budget
from gnvpro.methods.step_solvers import Dense, count_directions, head_size
from gnvpro.objectives.problem import Problem
from gnvpro.policy.cost import Sizes, seconds_of_matrix, seconds_of_pass, seconds_of_step
from gnvpro.samples.several import Streamed
from gnvpro.state import State

KINDS = ("operations", "work", "seconds")


def sizes_of(problem: Problem) -> Sizes:
    """Return the sizes that the costs of a problem depend on."""
    return problem.once("sizes", lambda: _counted(problem))


def _counted(problem: Problem) -> Sizes:
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
    """Costs of a pass, of a matrix, and of the rest of a step."""

    of_pass: float
    of_matrix: float
    of_step: float
    passes_of_exact_step: float

    @property
    def of_cheap_step(self) -> float:
        """Cost of a quasi-Newton step: a point and its gradient."""
        return 2 * self.of_pass + self.of_step

    @cached_property
    def of_exact_step(self) -> float:
        """Cost of a step from a new matrix."""
        return self.passes_of_exact_step * self.of_pass + self.of_matrix + self.of_step


def prices_of(dense: Dense, problem: Problem, sizes: Sizes) -> Prices:
    """Return the costs that the model predicts, in seconds."""
    return problem.once(("prices", dense), lambda: _predicted(dense, problem, sizes))


def _predicted(dense: Dense, problem: Problem, sizes: Sizes) -> Prices:
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
    """Return exact steps with the matrix of a part of the samples if that halves their cost, else unchanged."""
    rules = problem.policy.solver
    squares, held = problem.misfit.identity_hessian, not isinstance(problem.inputs, Streamed)
    settings = dense.resolved(squares)
    plain = settings.step_control == "damping" and not settings.residual_term and problem.processes.alone
    if dense.samples is not None or not (squares and held and plain):
        return dense
    rows = math.ceil(rules.rows_per_direction * sizes.directions / dense.seeds(*head_size(problem)))
    part = replace(dense, samples=rows)
    whole, less = (prices_of(each, problem, sizes).of_exact_step for each in (dense, part))
    return part if less < whole / 2 else dense


@dataclass(frozen=True)
class Account(State):
    """Costs of the steps so far, apart from the passes on the meter."""

    begun: float  # work on the meter when the method began
    matrices: int = 0
    steps: int = 0
    seconds: float = 0.0  # measured
    slowness: float = 1.0  # measured seconds over predicted ones


class Costs:
    """The costs so far of a problem, and predicted costs of its steps."""

    def __init__(self, kind: str, dense: Dense, problem: Problem) -> None:
        self.kind = "operations" if kind == "seconds" and not problem.processes.alone else kind
        self.problem, self.objective = problem, problem.reduced
        self.sizes = None if kind == "work" else sizes_of(problem)
        self.dense = dense if self.sizes is None else thrifty(dense, problem, self.sizes)

    @cached_property
    def predicted(self) -> Prices:
        """Costs that the model predicts."""
        if self.sizes is None:
            return passes_alone(self.dense, self.problem)
        return prices_of(self.dense, self.problem, self.sizes)

    def clock(self) -> float:
        """Processor seconds if the clock counts, else zero."""
        if self.kind != "seconds":
            return 0.0
        return time.process_time() if self.problem.inputs.device.type == "cpu" else time.perf_counter()

    def spent(self, account: Account, budget: Budget, seconds: float = 0.0) -> float:
        """Cost since the method began, given the seconds of this call."""
        if self.kind == "seconds":
            return account.seconds + seconds
        passes, each = (budget.meter.work - account.begun) / budget.share, self.predicted
        return passes * each.of_pass + account.matrices * each.of_matrix + account.steps * each.of_step

    def exact_step(self, account: Account) -> float:
        """Cost of an exact step."""
        return account.slowness * self.predicted.of_exact_step

    @property
    def cheap_first(self) -> bool:
        """Return whether cheap steps come first, because an exact step costs too much."""
        return self.predicted.of_exact_step >= self.problem.policy.solver.cheap_first * self.predicted.of_cheap_step

    def exact_seconds(self, account: Account) -> float:
        """Seconds of an exact step; zero if only work counts."""
        return 0.0 if self.sizes is None else self.exact_step(account)

    def calibrated(self, account: Account, of_cheap_step: float) -> Account:
        """Scale predictions by the clock time of cheap steps; counted costs do not change."""
        if self.kind != "seconds":
            return account
        return replace(account, slowness=max(of_cheap_step, 1e-9) / self.predicted.of_cheap_step)
