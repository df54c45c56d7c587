"""The running part of `adam-vpro`: trials for the learning rate, epochs, readings. See `adam_vpro` for the method."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.head.eliminator import WarmStart, append_bias_column
from gnvpro.methods.batch_steps import BatchSteps
from gnvpro.methods.pace import Pace
from gnvpro.methods.protocol import Budget, Start, State
from gnvpro.methods.stochastic import Model, RandomBatch, loader_batch_size, random_batches, seeded_permutation
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import sum_of_squares
from gnvpro.samples.several import Streamed
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

FIRST_STEPS = 200  # of least squares, before the trials for the rate,
STINT = 50  # of them between readings
TRIAL = 100  # steps of a trial
SHARE = 0.5  # of the budget that trials may take at most; without room for them the rate is UNTRIED
LEAST_SHARE = 0.01  # of the head's freedom at the end; for least squares all of it is left (measured)
READINGS = 50  # of a run, at most, about
EPOCHS = (
    4  # between readings of all samples at least, each of which costs as much as half an epoch; fewer at the beginning:
)
EARLY = 2  # times as many epochs as lie between readings have been before
TIMED = 5  # steps, to know how many the seconds allow
RETREAT = 0.25  # times the rate after a failure
FAILURES = 6  # that are forgiven
CHANGING = 1.5  # times the first objective that is no failure where samples change
ROUGH = BatchHead(proximal=0.0, rtol=1e-2, steps=3)  # the head of all samples, for readings on the way
SEEN, PER_ENTRY = 10_000, 20  # samples of a reading on the way, and at least so many for each entry of the head
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
    next_passes = 2

    def __init__(
        self, settings: StepSettings, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None
    ) -> None:
        self.settings, self.problem, self.budget, self.seed = settings, problem, budget, seed
        self.status = Status.RUNNING
        self.n_samples = problem.n_samples
        self.batch_size = loader_batch_size(problem) or settings.batch_size
        self.per_epoch = max(1, self.n_samples // self.batch_size)
        if state is None:
            self._begin(start)
        else:
            self._resume(state)

    # -- beginning

    def _begin(self, start: Start) -> None:
        self.epoch = self.failures = 0
        self._warm = False  # whether the first steps are taken
        self.rate, self._scores = self.settings.lr, dict[int, float]()
        self.first = self.point = self._first_model(start)
        left = self._passes_in_seconds() if math.isfinite(self.budget.seconds) else math.inf
        self.pace = Pace(self.budget, self.problem.processes)
        self.pace.left = min(self.pace.left, left)
        self.steps = self._set_out()

    @cached_property
    def seen(self) -> Problem:
        """What readings on the way see: a random part of the samples, where they are many more than a reading needs."""
        problem, network = self.problem, self.problem.network
        enough = max(SEEN, PER_ENTRY * network.n_targets * (network.n_features + network.bias))
        if self.n_samples < 2 * enough or isinstance(problem.inputs, Streamed):
            return problem
        samples = seeded_permutation(self.n_samples, self.seed, TRIAL_SEED)[:enough]
        return problem.on_samples(samples.to(problem.inputs.device))

    def _first_model(self, start: Start) -> Model:
        """With the head of the samples that readings see; of all where nothing will follow."""
        problem = self.problem if self.is_over else self.seen
        near = None if start.W is None else WarmStart(start.W)
        point = problem.reduced.start(start.theta, near, keep=False)
        return Model(point.theta, point.W, point.accuracy, point.value, point.misfit)

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
        return self._tried(self._read(steps.theta()), trial_rate(k))

    def _first_steps(self) -> StepReport:
        """Towards where trials tell what rate is good for a long run: at the very beginning one far too large is best."""
        steps = self.steps
        batches = itertools.islice(self._batches(TRIAL_SEED + steps.count), STINT)
        score = self._trial(steps, batches, lambda done: cosine(FIRST, 0.0, done))
        after = self._read(steps.mean) if math.isfinite(score) else None
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
        return passes <= SHARE * total and total - passes >= self.next_passes

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
        if self.rate is None and (report := self._try_a_rate()) is not None:
            return report
        while True:
            assert self.rate is not None
            finite = self._run_epochs(self.rate)
            after = self._read(self._model()) if finite else None
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
        """Whether the budget has no room for another epoch."""
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
        least = EPOCHS * self.seen.n_samples / self.n_samples
        most = min(max(self.pace.total / self.next_passes / READINGS, least), self.epoch / EARLY)
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
                if self._out_of_seconds:
                    break
        return True

    # -- readings

    def _read(self, theta: Tensor) -> Model | None:
        """The reduced objective over the samples that are seen; None where the features are not finite.

        On the way the head needs no more digits than a reading shows, and one that follows the batches is near enough as it is
        once it has seen as many samples as it remembers; the last reading is of all samples, and as exact as the eliminator
        makes it.
        """
        problem = self.problem if self.is_over else self.seen
        near, misfit, ridge = self.steps.memory.reading, problem.misfit, problem.head_penalty
        Z = features(problem, theta)
        if not torch.isfinite(misfit.over.sum(sum_of_squares, Z)):
            return None
        with problem.meter.inner_clock():
            if misfit.identity_hessian or self.is_over:
                W = problem.eliminator.fit(Z, misfit, ridge, WarmStart(near)).W
            elif (
                self.settings.batch_head.follows(misfit)
                and self.steps.count * self.batch_size >= PER_ENTRY * near.numel()
            ):
                W = near
            else:
                W = ROUGH.fit(Z, misfit, ridge, ROUGH.first(near)).W
        return Model.of(problem, theta, W, Z)

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
            "counts": [self.epoch, self.failures, self._warm],
            "rate": self.rate,
            "scores": list(self._scores.items()),
            "pace": self.pace.state(),
        }

    def _resume(self, state: State) -> None:
        self.epoch, self.failures, self._warm = state["counts"]
        self.rate, self._scores = state["rate"], dict(state["scores"])
        self.pace = Pace(self.budget, self.problem.processes, state["pace"])
        seen, theta, first = self.seen, state["x"], state["first_x"]
        self.point = Model.of(seen, theta, state["W"], features(seen, theta))
        evaluated = Model.of(seen, first, state["first_W"], features(seen, first))
        self.first = replace(evaluated, value=state["first_value"])
        self.steps = self._set_out()
        self.steps.resume(state["steps"])


def features(problem: Problem, theta: Tensor) -> Tensor:
    """Of the samples of a problem, with a column of ones for the bias; not counted as work."""
    network = problem.network
    return append_bias_column(network.features(theta, problem.inputs, problem.passes), network.bias)
