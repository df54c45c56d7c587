"""The running part of `adam-vpro`: trials for the learning rate, epochs, readings. See `adam_vpro` for the method."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.methods.batch_steps import BatchSteps
from gnvpro.methods.pace import Pace
from gnvpro.methods.protocol import Budget, Start, State
from gnvpro.methods.readings import Readings
from gnvpro.methods.stochastic import Model, RandomBatch, loader_batch_size, random_batches
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.stochastic.batch_head import BatchHead
from gnvpro.stochastic.learning_rate import (
    FIRST,
    TRIALS,
    USUAL,
    WARM_UP,
    cosine,
    found_rate,
    next_trial,
    score_of,
    trial_rate,
)
from gnvpro.stochastic.rotated_adam import Rotated

EPOCH = 2.0  # passes
FIRST_STEPS = 200  # of least squares, before the trials for the rate,
STINT = 50  # of them between readings
TRIAL = 100  # steps of a trial
SHARE = 0.5  # of the budget that trials may take at most; without room for them the rate is UNTRIED
LEAST_SHARE = 0.01  # of the head's freedom at the end; for least squares all of it is left (measured)
READINGS = 50  # of a run, at most, about
EPOCHS = 4  # between readings of all samples at least: each costs half an epoch; fewer at the beginning:
EARLY = 2  # times as many epochs as lie between readings have been before
TIMED = 5  # steps, to know how many the seconds allow
RETREAT = 0.25  # times the rate after a failure
FAILURES = 6  # that are forgiven
MOST_RESERVED = 0.5  # of the seconds, for the last elimination
CHANGING = 1.5  # times the first objective that is no failure where samples change
TRIAL_SEED = 1_000_003  # the order of the trial's batches is none of an epoch's


@dataclass(frozen=True)
class StepSettings:
    """A learning rate, or None for one that is found; samples per step; the head on them; whether coordinates are rotated."""

    lr: float | None
    batch_size: int
    batch_head: BatchHead
    rotate: bool


class RunningAdamVPro:
    """Gradients of the reduced loss of batches."""

    bound = None

    def __init__(
        self, settings: StepSettings, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None
    ) -> None:
        self.settings, self.problem, self.seed = settings, problem, seed
        self.given = self.budget = budget  # the second without what is reserved for the last elimination
        self.status = Status.RUNNING
        self.n_samples = problem.n_samples
        self.readings = Readings(problem, seed, TRIAL_SEED)
        self.batch_size = loader_batch_size(problem) or settings.batch_size
        self.per_epoch = max(1, self.n_samples // self.batch_size)
        # a batch: the last epoch may be cut short; several processes, whose parts of a batch differ, end with an epoch
        self.next_passes = min(2.0, 2 * self.batch_size / self.n_samples) if problem.processes.alone else 2.0
        if state is None:
            self._begin(start)
        else:
            self._resume(state)

    # -- beginning

    def _begin(self, start: Start) -> None:
        self.epoch = self.failures = 0
        self._warm = False  # whether the first steps are taken
        self.rate, self._scores = self.settings.lr, dict[int, float]()
        begun = self.budget.clock()
        self.first = self.point = self.readings.first(start)
        taken = (self.budget.clock() - begun) * self.n_samples / self.readings.seen.n_samples
        self._reserve(min(taken, MOST_RESERVED * max(self.budget.seconds_left, 0.0)))
        left = self._passes_in_seconds() if math.isfinite(self.budget.seconds) else math.inf
        self.pace = Pace(self.budget, self.problem.processes)
        self.pace.left = min(self.pace.left, left)
        self.steps = self._set_out()

    def _reserve(self, seconds: float) -> None:
        """Put seconds aside for eliminating the head over all samples at the end."""
        self.reserved = self.problem.processes.largest(seconds) if math.isfinite(self.given.seconds) else 0.0
        self.budget = replace(self.given, seconds=self.given.seconds - self.reserved)

    def _set_out(self) -> BatchSteps:
        """At the first model, with an optimiser that has no past."""
        kernel = Rotated() if self.settings.rotate else Rotated(max_side=0)
        return BatchSteps(
            self.problem, self.settings.batch_head, kernel, self.batch_size, self.first.theta, self.first.W
        )

    # -- the learning rate

    def _try_a_rate(self) -> StepReport | None:
        """First steps or one trial, kept where nothing was better; None where the rate is known."""
        if not self.problem.misfit.identity_hessian:
            self.rate = USUAL
            return None
        begun = self._warm or self._scores or self.steps.count
        if not (begun or self._affords_trials()):
            self.rate = FIRST
            return None
        if not self._warm:
            return self._first_steps()
        k = next_trial(self._scores)
        if k is None or self.is_over:
            self.rate = found_rate(self._scores)
            self.steps.forget_the_way()
            self.pace.look()
            return None
        best = min(self._scores.values(), default=math.inf)
        steps = self._set_out()
        epochs = (self._batches(TRIAL_SEED + epoch * self.per_epoch) for epoch in itertools.count())
        batches = itertools.islice(itertools.chain.from_iterable(epochs), TRIAL)
        self._scores[k] = self._trial(steps, batches, lambda done: cosine(trial_rate(k), done / TRIAL, done))
        if not self._scores[k] < best:
            return self._tried(None, trial_rate(k))
        self.steps = steps
        return self._tried(self.readings.read(steps.theta(), steps), trial_rate(k))

    def _first_steps(self) -> StepReport:
        """Towards where trials tell what rate is good for a long run: at the very beginning one far too large is best."""
        steps = self.steps
        batches = itertools.islice(self._batches(TRIAL_SEED + steps.count), STINT)
        score = self._trial(steps, batches, lambda done: cosine(FIRST, 0.0, done))
        after = self.readings.read(steps.mean, steps) if math.isfinite(score) else None
        report = self._tried(after, FIRST)
        self._warm = after is None or steps.count >= FIRST_STEPS
        if self._warm:
            self.first = self.point
        return report

    def _tried(self, after: Model | None, rate: float) -> StepReport:
        better = after is not None and after.value < self.point.value
        if after is not None and better:
            self.point = after
        return StepReport(better, radius=rate, solver=self._kind)

    def _affords_trials(self) -> bool:
        """Whether all of them together would be a small share of the budget."""
        passes = (TRIALS * TRIAL + FIRST_STEPS) * 2 * self.batch_size / self.n_samples
        total = self.pace.total
        return passes <= SHARE * total and total - passes >= EPOCH

    def _passes_in_seconds(self) -> float:
        """How many fit into the seconds, by the median of a few steps."""
        steps, times = self._set_out(), [self.budget.clock()]
        for batch in itertools.islice(self._batches(TRIAL_SEED), TIMED):
            steps.step(batch, 0.0)
            times.append(self.budget.clock())
        each = statistics.median(after - before for before, after in itertools.pairwise(times))
        count = -self.problem.processes.largest(-self.budget.seconds_left / max(each, 1e-12))
        return count * 2 * self.batch_size / self.n_samples

    def _trial(self, steps: BatchSteps, batches: Iterable[RandomBatch], rate: Callable[[int], float]) -> float:
        """The score of a short run; it is infinite where a loss is no number."""
        losses: list[float] = []
        for batch in batches:
            loss = steps.step(batch, rate(steps.count))
            if loss is None or not math.isfinite(loss):
                return math.inf
            losses.append(loss)
            if self._out_of_seconds:
                break
        return score_of(losses)

    # -- one iteration

    def gradient_norm(self) -> None:
        """Not known: the gradient of the whole objective is never seen."""
        return

    def iterate(self) -> StepReport | None:
        """One epoch or several, each in an order of its own; before, a trial for the rate."""
        if self.problem.processes.all(self.budget.seconds_left <= 0):
            self.status = Status.SECONDS_SPENT
            return None
        if self.rate is None and (report := self._try_a_rate()) is not None:
            return report
        while True:
            assert self.rate is not None
            finite = self._run_epochs(self.rate)
            after = self.readings.read(self._model(), self.steps) if finite else None
            self.pace.look()
            if after is not None and after.value <= self._tolerated * self.first.value:
                self.point = after
                return StepReport(True, radius=self.rate, solver=self._kind)
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
        return self.steps.mean if self.problem.misfit.identity_hessian else self.steps.theta()

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

    def _batches(self, epoch: int) -> Iterator[RandomBatch]:
        """The batches of an epoch, all of one size: what is left over waits for another epoch's order."""
        every = random_batches(self.problem, self.batch_size, self.seed, epoch)
        return (batch for batch in every if batch.count == self.batch_size or batch.of_loader)

    def _run_epochs(self, rate: float) -> bool:
        """Steps on all batches of as many epochs as lie between readings; whether all of them were finite."""
        least = EPOCHS * self.readings.seen.n_samples / self.n_samples
        most = min(max(self.pace.total / EPOCH / READINGS, least), self.epoch / EARLY)
        for _ in range(max(1, int(most))):
            if self.is_over:
                break
            batches = self._batches(self.epoch)
            self.epoch += 1
            for batch in batches:
                progress = self.pace.now()
                falling = max(LEAST_SHARE, cosine(1.0, progress, WARM_UP))
                share = 1.0 if self.problem.misfit.identity_hessian else falling
                if self.steps.step(batch, cosine(rate, progress, self.steps.count), share) is None:
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
            "counts": [self.epoch, self.failures, self._warm, self.point.provisional, self.reserved],
            "rate": self.rate,
            "scores": list(self._scores.items()),
            "pace": self.pace.state(),
        }

    def _resume(self, state: State) -> None:
        self.epoch, self.failures, self._warm, provisional, reserved = state["counts"]
        self.rate, self._scores = state["rate"], dict(state["scores"])
        self._reserve(reserved)
        self.pace = Pace(self.budget, self.problem.processes, state["pace"])
        self.point = self.readings.again(state["x"], state["W"], provisional)
        first = self.readings.again(state["first_x"], state["first_W"])
        self.first = replace(first, value=state["first_value"])
        self.steps = self._set_out()
        self.steps.resume(state["steps"])
