"""The running part of `adam-vpro`: epochs and readings. See `adam_vpro` for the method."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.methods.batch_steps import BatchSteps
from gnvpro.methods.pace import Pace
from gnvpro.methods.protocol import Budget, Start, State
from gnvpro.methods.readings import Readings
from gnvpro.methods.stochastic import RandomBatch, loader_batch_size, random_batches
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.stochastic.batch_head import BatchHead
from gnvpro.stochastic.learning_rate import WARM_UP, cosine, usual_rate
from gnvpro.stochastic.rotated_adam import Rotated

EPOCH = 2.0  # passes
LEAST_SHARE = 0.01  # of the head's freedom at the end; for least squares all of it is left (measured)
READINGS = 50  # of a run, at most, about
EPOCHS = 4  # between readings of all samples at least: each costs half an epoch; fewer at the beginning:
EARLY = 2  # times as many epochs as lie between readings have been before;
FIRST_PART = 2  # times as many samples as a reading sees come before the first one, where these are less than an epoch
TIMED = 3  # steps that do not move, to know how many the seconds allow: the moments are learnt in them
FIRST_SAMPLES = 2000  # that the mean gradient remembers at first, and in which the rate rises; 20 steps at most
RETREAT = 0.25  # times the rate after a failure
FAILURES = 6  # that are forgiven
MOST_RESERVED = 0.5  # of the seconds, for the last elimination
CHANGING = 1.5  # times the first objective that is no failure where samples change
READ_SEED = 1_000_003  # the samples of a reading are not those of the first batches


@dataclass(frozen=True)
class StepSettings:
    """A learning rate, or None for the usual one; samples per step; the head on them; whether coordinates are rotated."""

    lr: float | None
    batch_size: int
    batch_head: BatchHead
    rotate: bool


class RunningAdamVPro:
    """Gradients of the reduced loss of batches."""

    bound = None
    settles = False  # the objective of random batches never does

    def __init__(
        self, settings: StepSettings, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None
    ) -> None:
        self.settings, self.problem, self.seed = settings, problem, seed
        self.given = self.budget = budget  # the second without what is reserved for the last elimination
        self.status = Status.RUNNING
        self.n_samples = problem.n_samples
        self.readings = Readings(problem, seed, READ_SEED)
        self.batch_size = loader_batch_size(problem) or settings.batch_size
        self.few = min(WARM_UP, math.ceil(FIRST_SAMPLES / self.batch_size))
        # a batch: the last epoch may be cut short; several processes, whose parts of a batch differ, end with an epoch
        self.next_passes = min(2.0, 2 * self.batch_size / self.n_samples) if problem.processes.alone else 2.0
        if state is None:
            self._begin(start)
        else:
            self._resume(state)

    # -- beginning

    def _begin(self, start: Start) -> None:
        self.epoch = self.done = self.failures = 0  # epochs, batches of this one, failures
        begun = self.budget.clock()
        self.first = self.point = self.readings.first(start)
        taken = (self.budget.clock() - begun) * self.n_samples / self.readings.seen.n_samples
        self._reserve(min(taken, MOST_RESERVED * max(self.budget.seconds_left, 0.0)))
        self.steps = self._set_out()
        left = self._passes_in_seconds() if math.isfinite(self.budget.seconds) else math.inf
        self.pace = Pace(self.budget, self.problem.processes)
        self.pace.left = min(self.pace.left, left)
        steps = self.pace.total / EPOCH * self.n_samples / self.batch_size
        squares = self.problem.misfit.identity_hessian
        self.rate = self.settings.lr or usual_rate(squares, self.batch_size, steps)

    def _reserve(self, seconds: float) -> None:
        """Put seconds aside for eliminating the head over all samples at the end."""
        self.reserved = self.problem.processes.largest(seconds) if math.isfinite(self.given.seconds) else 0.0
        self.budget = replace(self.given, seconds=self.given.seconds - self.reserved)

    def _set_out(self) -> BatchSteps:
        """At the first model, with an optimiser that has no past."""
        kernel = Rotated(max_side=256 if self.settings.rotate else 0, shortest=self.few)
        return BatchSteps(
            self.problem, self.settings.batch_head, kernel, self.batch_size, self.first.theta, self.first.W
        )

    def _passes_in_seconds(self) -> float:
        """How many fit into the seconds, by the median of a few steps."""
        times = [self.budget.clock()]
        for batch in itertools.islice(self._batches(0), TIMED):
            self.steps.step(batch, 0.0)
            times.append(self.budget.clock())
        each = statistics.median(after - before for before, after in itertools.pairwise(times))
        count = -self.problem.processes.largest(-self.budget.seconds_left / max(each, 1e-12))
        return count * 2 * self.batch_size / self.n_samples

    # -- one iteration

    def gradient_norm(self) -> None:
        """Not known: the gradient of the whole objective is never seen."""
        return

    def iterate(self) -> StepReport | None:
        """One epoch or several, each in an order of its own."""
        if self.problem.processes.all(self.budget.seconds_left <= 0):
            self.status = Status.SECONDS_SPENT
            return None
        while True:
            finite = self._run_epochs(self.rate)
            after = self.readings.read(self._model(), self.steps) if finite else None
            self.pace.look()
            if after is not None and (self.epoch == 0 or after.value <= self._tolerated * self.first.value):
                self.point = after
                return StepReport(True, learning_rate=self.rate, solver=self._kind)
            self.failures += 1
            if self.failures > FAILURES:
                self.status = Status.NOT_FINITE if after is None else Status.STEP_TOO_SMALL
                return None
            self.rate *= RETREAT
            self.steps = self._set_out()
            if self.is_over:
                self.status = Status.WORK_SPENT
                return None

    @property
    def _kind(self) -> str | None:
        return "rotated" if self.settings.rotate else None

    def _model(self) -> Tensor:
        """Theta as it is read."""
        return self.steps.mean if self.problem.misfit.identity_hessian else self.steps.theta.clone()

    @property
    def _tolerated(self) -> float:
        """Times the first objective; readings of samples that change from pass to pass differ."""
        return CHANGING if getattr(self.problem.inputs, "same_samples", True) is False else 1.0

    @property
    def is_over(self) -> bool:
        """Whether the budget has no room for another batch."""
        return self.budget.passes_left < self.next_passes or self._out_of_seconds

    @property
    def _out_of_seconds(self) -> bool:
        """Asked within an iteration; several processes ask each other after it."""
        return self.problem.processes.alone and self.budget.seconds_left <= 0

    def _batches(self, epoch: int, first: int = 0) -> Iterator[RandomBatch]:
        """The batches of an epoch, all of one size: what is left over waits for another epoch's order."""
        every = random_batches(self.problem, self.batch_size, self.seed, epoch, first=first)
        return (batch for batch in every if batch.count == self.batch_size or batch.of_loader)

    def _next_batches(self) -> Iterator[RandomBatch]:
        """The batches of an epoch, or at first those of a part: half as many as were before, and more than a few."""
        batches = self._batches(self.epoch, self.done)
        alone = self.problem.processes.alone and loader_batch_size(self.problem) is None
        least = math.ceil(FIRST_PART * self.readings.seen.n_samples / self.batch_size)
        size, left = max(least, self.steps.count // EARLY), self.n_samples // self.batch_size - self.done
        if alone and left > 1.5 * size:
            self.done += size
            return itertools.islice(batches, size)
        self.epoch, self.done = self.epoch + 1, 0
        return batches

    def _run_epochs(self, rate: float) -> bool:
        """Steps on all batches until the next reading, of the epochs before it; whether all of them were finite."""
        least = EPOCHS * self.readings.seen.n_samples / self.n_samples
        most = min(max(self.pace.total / EPOCH / READINGS, least), self.epoch / EARLY)
        for _ in range(max(1, int(most))):
            if self.is_over:
                break
            for batch in self._next_batches():
                progress = self.pace.now()
                falling = max(LEAST_SHARE, cosine(1.0, progress, WARM_UP))
                share = 1.0 if self.problem.misfit.identity_hessian else falling
                now = cosine(rate, progress, self.steps.count, self.few)
                if self.steps.step(batch, now, share) is None:
                    return False
                if self.is_over and self.problem.processes.alone:
                    break
        return True

    # -- checkpoints

    def state(self) -> State:
        """Everything that the next iteration depends on."""
        return {
            "x": self.point.theta,
            "W": self.point.W,
            "first_x": self.first.theta,
            "first_W": self.first.W,
            "first_value": self.first.value,
            "steps": self.steps.state(),
            "counts": [self.epoch, self.done, self.failures, self.point.provisional, self.reserved],
            "rate": self.rate,
            "pace": self.pace.state(),
        }

    def _resume(self, state: State) -> None:
        self.epoch, self.done, self.failures, provisional, reserved = state["counts"]
        self.rate = state["rate"]
        self._reserve(reserved)
        self.pace = Pace(self.budget, self.problem.processes, state["pace"])
        self.point = self.readings.again(state["x"], state["W"], provisional)
        first = self.readings.again(state["first_x"], state["first_W"])
        self.first = replace(first, value=state["first_value"])
        self.steps = self._set_out()
        self.steps.resume(state["steps"])
