"""One step of `adam-vpro`: epochs and an evaluation (a reading). See `adam_vpro` for the method."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.methods.batch_steps import BatchState, BatchSteps
from gnvpro.methods.cache import Cache
from gnvpro.methods.pace import Pace
from gnvpro.methods.protocol import Budget, Iterate, MethodState, Start
from gnvpro.methods.readings import Readings
from gnvpro.methods.stochastic import RandomBatch, loader_batch_size, random_batches
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.stream import Stream
from gnvpro.stochastic.batch_head import BatchHead
from gnvpro.stochastic.learning_rate import WARM_UP, cosine, usual_rate
from gnvpro.stochastic.rotated_adam import Rotated

EPOCH = 2.0  # passes per epoch
LEAST_SHARE = 0.01  # share of the head's freedom at the end; least squares keeps all of it (measured)
READINGS = 50  # approximate largest number of evaluations of a run
# smallest number of epochs between evaluations of all samples, which cost half an epoch each; fewer at first
EPOCHS = 4
EARLY = 2  # epochs until the next evaluation over epochs so far
# samples before the first evaluation over the samples of an evaluation, if that is less than an epoch
FIRST_PART = 2
TIMED = 3  # unaccepted steps that measure how many steps the seconds allow; the moments are initialised in them
# samples in the first memory of the mean gradient, over which the rate rises; at most 20 steps
FIRST_SAMPLES = 2000
RETREAT = 0.25  # factor of the rate after a failure
FAILURES = 6  # largest number of failures
MOST_RESERVED = 0.5  # largest share of the seconds reserved for the last elimination
CHANGING = 1.5  # tolerated multiple of the first objective if samples change between passes
READ_SEED = 1_000_003  # makes the samples of an evaluation differ from the first batches


@dataclass(frozen=True)
class StepSettings:
    """A learning rate (None: the default), samples per step, the head on these, and whether coordinates are rotated."""

    lr: float | None
    batch_size: int
    batch_head: BatchHead
    rotate: bool


@dataclass(frozen=True, kw_only=True)
class AdamVProState(MethodState):
    """The state of `adam-vpro` between two evaluations."""

    first: Iterate  # the model at the start of training
    steps: BatchState
    pace: Pace
    rate: float
    reserved: float  # seconds reserved for the last elimination
    seed: int
    epoch: int = 0
    done: int = 0  # completed batches of this epoch
    failures: int = 0


class Epochs:
    """Epochs and an evaluation: the body of `AdamVPro.begin` and `step`."""

    def __init__(self, settings: StepSettings, problem: Problem, budget: Budget, seed: int, cache: Cache) -> None:
        self.settings, self.problem, self.seed = settings, problem, seed
        self.budget = budget  # without the reserve for the last elimination, once that is known
        self.n_samples = problem.n_samples
        self.readings = cache.recall("readings", lambda: Readings(problem, seed, READ_SEED), problem)
        self.batch_size = loader_batch_size(problem) or settings.batch_size
        self.few = min(WARM_UP, math.ceil(FIRST_SAMPLES / self.batch_size))
        # the last epoch of one process may be cut short; several processes, whose parts of a batch differ, complete it
        self.next_passes = min(2.0, 2 * self.batch_size / self.n_samples) if problem.processes.alone else 2.0

    # -- beginning

    def begin(self, start: Start) -> AdamVProState:
        """Evaluate the first model, and estimate how many passes fit into the seconds."""
        given, begun = self.budget, self.budget.clock()
        self.first = self.readings.first(start)
        taken = (given.clock() - begun) * self.n_samples / self.readings.seen.n_samples
        seconds = min(taken, MOST_RESERVED * max(given.seconds_left, 0.0))
        self.reserved = self.problem.processes.largest(seconds) if math.isfinite(given.seconds) else 0.0
        self.budget = replace(given, seconds=given.seconds - self.reserved)
        self.epoch = self.done = self.failures = 0  # epochs, batches of the current one, failures
        self.steps = self._set_out()
        left = self._passes_in_seconds() if math.isfinite(given.seconds) else math.inf
        pace = Pace.begun(self.budget)
        self.pace = replace(pace, left=min(pace.left, left))
        steps = self.pace.total / EPOCH * self.n_samples / self.batch_size
        squares = self.problem.misfit.identity_hessian
        self.rate = self.settings.lr or usual_rate(squares, self.batch_size, steps)
        return self._reached(self.first)

    def take_up(self, state: AdamVProState) -> None:
        """Continue from a state."""
        self.epoch, self.done, self.failures = state.epoch, state.done, state.failures
        self.first, self.rate, self.reserved = state.first, state.rate, state.reserved
        self.budget = replace(self.budget, seconds=self.budget.seconds - state.reserved)
        self.pace = state.pace.within(self.budget, self.problem.processes)
        self.steps = self._from(state.steps)

    def _reached(self, iterate: Iterate) -> AdamVProState:
        return AdamVProState(
            iterate=iterate,
            next_passes=self.next_passes,
            settles=False,  # the objective of random batches never settles
            first=self.first,
            steps=self.steps.reached(),
            pace=self.pace,
            rate=self.rate,
            reserved=self.reserved,
            seed=self.seed,
            epoch=self.epoch,
            done=self.done,
            failures=self.failures,
        )

    def _set_out(self) -> BatchSteps:
        """Return the steps from the first model, with a new optimiser."""
        held = self.readings.held(self.first)
        return self._from(BatchState.at(self.problem, self.settings.batch_head, self.first.theta, held))

    def _from(self, state: BatchState) -> BatchSteps:
        kernel = Rotated(max_side=256 if self.settings.rotate else 0, shortest=self.few)
        return BatchSteps(self.problem, self.settings.batch_head, kernel, self.batch_size, state)

    def _passes_in_seconds(self) -> float:
        """Estimate how many passes fit into the seconds, by the median of a few steps."""
        times = [self.budget.clock()]
        for batch in itertools.islice(self._batches(0), TIMED):
            self.steps.step(batch, 0.0)
            times.append(self.budget.clock())
        each = statistics.median(after - before for before, after in itertools.pairwise(times))
        count = -self.problem.processes.largest(-self.budget.seconds_left / max(each, 1e-12))
        return count * 2 * self.batch_size / self.n_samples

    # -- one iteration

    def is_spent(self, state: AdamVProState) -> bool:
        """Return whether the budget has no room for another batch."""
        seconds_left = self.budget.seconds_left - state.reserved
        late = self.problem.processes.alone and seconds_left <= 0
        return self.budget.passes_left < self.next_passes or late

    def step(self, state: AdamVProState) -> tuple[AdamVProState, StepReport | Status]:
        """Run one epoch or several, each in another order."""
        self.take_up(state)
        if self.problem.processes.all(self.budget.seconds_left <= 0):
            return state, Status.SECONDS_SPENT
        while True:
            finite = self._run_epochs(self.rate)
            after = self.readings.read(self._model(), self.steps) if finite else None
            self.pace = self.pace.looked_at(self.budget, self.problem.processes)
            if after is not None and (self.epoch == 0 or after.value <= self._tolerated * self.first.value):
                return self._reached(after), StepReport(True, learning_rate=self.rate, solver=self._kind)
            self.failures += 1
            if self.failures > FAILURES:
                return state, Status.NOT_FINITE if after is None else Status.STEP_TOO_SMALL
            self.rate *= RETREAT
            self.steps = self._set_out()
            if self.is_over:
                return state, Status.WORK_SPENT

    @property
    def _kind(self) -> str | None:
        return "rotated" if self.settings.rotate else None

    def _model(self) -> Tensor:
        """Return theta for an evaluation."""
        return self.steps.mean if self.problem.misfit.identity_hessian else self.steps.theta.clone()

    @property
    def _tolerated(self) -> float:
        """Return the tolerated multiple of the first objective.

        Evaluations differ if samples change between passes. Dropout keeps theta away from what fits the samples best.
        """
        if self.problem.network.mode.modules:
            return math.inf
        inputs = self.problem.inputs
        return CHANGING if isinstance(inputs, Stream) and not inputs.same_samples else 1.0

    @property
    def is_over(self) -> bool:
        """Return whether the budget has no room for another batch."""
        return self.budget.passes_left < self.next_passes or self._out_of_seconds

    @property
    def _out_of_seconds(self) -> bool:
        """Return whether the seconds are spent, within an iteration; several processes compare only after it."""
        return self.problem.processes.alone and self.budget.seconds_left <= 0

    def _batches(self, epoch: int, first: int = 0) -> Iterator[RandomBatch]:
        """Yield the batches of an epoch, all of one size; the remaining samples wait for another epoch's order."""
        every = random_batches(self.problem, self.batch_size, self.seed, epoch, first=first)
        return (batch for batch in every if batch.count == self.batch_size or batch.of_loader)

    def _next_batches(self) -> Iterator[RandomBatch]:
        """Yield the batches of an epoch; at first of a part: half as many samples as before, and more than a few."""
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
        """Take steps on all batches until the next evaluation; return whether all were finite."""
        least = EPOCHS * self.readings.seen.n_samples / self.n_samples
        most = min(max(self.pace.total / EPOCH / READINGS, least), self.epoch / EARLY)
        for _ in range(max(1, int(most))):
            if self.is_over:
                break
            for batch in self._next_batches():
                progress = self.pace.now(self.budget)
                falling = max(LEAST_SHARE, cosine(1.0, progress, WARM_UP))
                share = 1.0 if self.problem.misfit.identity_hessian else falling
                now = cosine(rate, progress, self.steps.count, self.few)
                if self.steps.step(batch, now, share) is None:
                    return False
                if self.is_over and self.problem.processes.alone:
                    break
        return True
