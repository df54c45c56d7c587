"""ADAM on the reduced loss of random batches: `method="adam-vpro"`.

    for each batch b:   Z, J  = features of the batch and their Jacobian            one pass forward
                        W_b   = head of the batch, near the last one                see `stochastic.batch_head`
                        g     = J' (G W_b) + alpha_1 B'B theta                      one pass backward
                        theta = theta - rate(progress) * direction(g)               see `rotated_adam`, `learning_rate`

An iteration is an epoch, or several where the budget is large. After it the head is eliminated over all samples, for the
history, the validation and the model that is returned; like every reading this is not counted as work, and its seconds
are counted as inner seconds. The head's freedom on a batch falls with the learning rate (not for least squares).

The learning rate is found by short trials, which are work, and lowered along a cosine that ends with the budget of work.
Where an iteration ends in a higher objective than it began with, or in no number at all, training begins again with a
quarter of the rate.

Legend: alpha_1 -> theta_penalty, G -> gradient of the misfit in the outputs, W_b -> BatchFit.W.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.eliminator import WarmStart, append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.methods.protocol import USUAL_WORK, Budget, Method, Start, State, detached_copy
from gnvpro.methods.stochastic import Model, RandomBatch, batch_passes, loader_batch_size, random_batches
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.network.passes import PassPlan
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import sum_of_squares
from gnvpro.problem.penalties import ridge
from gnvpro.stochastic.batch_head import BatchHead, HeadMemory
from gnvpro.stochastic.learning_rate import TRIALS, UNTRIED, WARM_UP, cosine, find_rate, score_of
from gnvpro.stochastic.rotated_adam import Rotated

BATCH = 512  # samples, where there are enough of them
PARTS = 16  # batches that an epoch has at least
TRIAL = 100  # steps of a trial for the rate
SHARE = 0.25  # of the budget that trials may take at most; without room for them the rate is UNTRIED
LEAST_SHARE = 0.01  # of the head's freedom at the end; for least squares all of it is left (measured)
READINGS = 50  # of a run, about
RETREAT = 0.25  # times the rate after a failure
FAILURES = 4  # that are forgiven
CHANGING = 1.5  # times the first objective that is no failure where samples change
ROUGH = BatchHead(proximal=0.0, rtol=1e-3, steps=10)  # the head of all samples, for readings on the way
TRIAL_SEED = 1_000_003  # the order of the trial's batches is none of an epoch's


@dataclass(frozen=True, kw_only=True)
class AdamVPro(Method):
    """ADAM with the head eliminated on each batch, for large sets of samples.

    Args:
        lr: the learning rate at the start. Left out, it is found by short trials; 5e-3 where the budget has no room for them.
        batch_size: samples per step. Left out: 512, or a sixteenth of the samples where that is less.
        batch_head: how the head is held near the last one on a batch.
        rotate: whether ADAM runs in the eigenvectors of each layer's second moments.
        head, eliminator, levels, memory, seed: see `gnvpro.Method`; the eliminator is for the head of all samples, at the start
            and at the end of the budget (for least squares, at every reading).

    The rate ends at zero where the budget of `work` does, not where `iterations` or `patience` end a run. A run that is
    taken up with more work goes on with the rate that the larger budget has there: not the run that had it from the start.

    >>> AdamVPro().samples_per_batch(100_000), AdamVPro().samples_per_batch(800)
    (512, 50)
    """

    lr: float | None = None
    batch_size: int | None = None
    batch_head: BatchHead = field(default_factory=BatchHead)
    rotate: bool = True
    name: ClassVar[str] = "adam-vpro"
    whole_set: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr is not None:
            check_number("AdamVPro: lr", self.lr, 0.0, strict=True)
        if self.batch_size is not None:
            check_count("AdamVPro: batch_size", self.batch_size, 1)
        if not isinstance(self.batch_head, BatchHead):
            raise TypeError(f"AdamVPro: batch_head must be a gnvpro.BatchHead, got {self.batch_head!r}")
        if not isinstance(self.rotate, bool):
            raise TypeError(f"AdamVPro: rotate must be True or False, got {self.rotate!r}")

    def why_not(self, problem: Problem) -> str | None:
        """Settings of Newton's method are for other losses than least squares."""
        trouble = self.batch_head.why_not(problem.loss)
        return None if trouble is None else f"AdamVPro: batch_head cannot be used: {trouble}"

    def usual_work(self, by_seconds: bool = False) -> float:
        """Work units where none are given: the learning rate needs an end to fall to."""
        return USUAL_WORK

    def samples_per_batch(self, samples: int) -> int:
        """Samples in a batch, of so many."""
        return min(self.batch_size or max(1, min(BATCH, samples // PARTS)), samples)

    def begin(self, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None) -> RunningAdamVPro:
        """Start on a problem, or go on from a state."""
        return RunningAdamVPro(self, problem, start, budget, seed, state)


class RunningAdamVPro:
    """Gradients of the reduced loss of batches."""

    bound = None
    next_passes = 2

    def __init__(
        self, settings: AdamVPro, problem: Problem, start: Start, budget: Budget, seed: int, state: State | None
    ) -> None:
        self.settings, self.problem, self.budget, self.seed = settings, problem, budget, seed
        self.status = Status.RUNNING
        self.n_samples = problem.n_samples
        self.batch_size = loader_batch_size(problem) or settings.samples_per_batch(self.n_samples)
        self.per_epoch = max(1, self.n_samples // self.batch_size)
        self._passes = batch_passes(PassPlan(min(self.batch_size, problem.passes.size), problem.passes.kept))
        self._kernel = Rotated() if settings.rotate else Rotated(max_side=0)
        if state is None:
            self._begin(start)
        else:
            self._resume(state)

    # -- beginning

    def _begin(self, start: Start) -> None:
        self.epoch = self.steps = self.failures = 0
        self.rate = self.settings.lr
        near = None if start.W is None else WarmStart(start.W)
        point = self.problem.reduced.start(start.theta, near, keep=False)
        self.first = Model(point.theta, point.W, point.outputs, point.value, point.misfit)
        self.point = self.first
        self._begun = self.budget.meter.work
        self._set_out()

    @property
    def total(self) -> float:
        """Passes over the samples that were left when the method began."""
        return (self.budget.limit - self._begun) / self.budget.share

    def _set_out(self) -> None:
        """At the first model, with an optimiser that has no past."""
        self._memory = self.settings.batch_head.first(self.first.W)
        # Steps are taken in place, and `split` may hand out views of theta
        self._parameters = {name: value.clone() for name, value in self.problem.network.split(self.first.theta).items()}
        self._moments: dict[str, dict[str, Any]] = {name: {} for name in self._parameters}

    def _find_rate(self) -> float:
        """Trials from where training begins; afterwards all but the work is as before."""
        passes = TRIALS * TRIAL * 2 * self.batch_size / self.n_samples  # that trials may take
        if passes > SHARE * self.total or self.total - passes < self.next_passes:
            return UNTRIED

        def trial(rate: float) -> float:
            losses: list[float] = []
            epochs = (self._batches(TRIAL_SEED + k * self.per_epoch) for k in itertools.count())
            for k, batch in enumerate(itertools.islice(itertools.chain.from_iterable(epochs), TRIAL)):
                loss = self._step(batch, cosine(rate, k / TRIAL, k))
                losses.append(math.nan if loss is None else loss)
                if loss is None:
                    break
            self._set_out()
            return score_of(losses)

        return find_rate(trial)

    # -- one iteration

    def gradient_norm(self) -> None:
        """Not known: the gradient of the whole objective is never seen."""
        return

    def iterate(self) -> StepReport | None:
        """One epoch or several, each in an order of its own."""
        if self.rate is None:
            self.rate = self._find_rate()
        while True:
            finite = self._run_epochs(self.rate)
            after = self._read() if finite else None
            if after is not None and after.value <= self._tolerated * self.first.value:
                self.point = after
                return StepReport(True, radius=self.rate, solver="rotated" if self.settings.rotate else None)
            self.failures += 1
            if self.failures > FAILURES:
                self.status = Status.NOT_FINITE if after is None else Status.STEP_TOO_SMALL
                return None
            self.rate *= RETREAT
            self._set_out()
            if self._is_over:
                self.status = Status.WORK_SPENT
                return None

    @property
    def _tolerated(self) -> float:
        """Times the first objective; readings of samples that change from pass to pass differ."""
        return CHANGING if getattr(self.problem.inputs, "same_samples", True) is False else 1.0

    @property
    def _is_over(self) -> bool:
        return self.budget.passes_left < self.next_passes

    def _batches(self, epoch: int) -> Iterator[RandomBatch]:
        """The batches of an epoch, all of one size: what is left over waits for another epoch's order."""
        every = random_batches(self.problem, self.batch_size, self.seed, epoch)
        return (batch for batch in every if batch.count == self.batch_size or batch.of_loader)

    def _run_epochs(self, rate: float) -> bool:
        """Steps on all batches of as many epochs as lie between readings; whether all of them were finite."""
        for _ in range(max(1, int(self.total / self.next_passes / READINGS))):
            if self._is_over:
                break
            batches, begun = self._batches(self.epoch), self.total - self.budget.passes_left
            self.epoch += 1
            for k, batch in enumerate(batches):
                progress = min(1.0, (begun + 2 * k / self.per_epoch) / self.total)
                falling = max(LEAST_SHARE, cosine(1.0, progress, WARM_UP))
                share = 1.0 if self.problem.misfit.identity_hessian else falling
                if self._step(batch, cosine(rate, progress, self.steps), share) is None:
                    return False
                self.steps += 1
        return True

    def _step(self, batch: RandomBatch, rate: float, share: float = 1.0) -> float | None:
        """One batch, with a share of the head's freedom; its reduced loss before the step, None where that is no number."""
        problem, network = self.problem, self.problem.network
        theta = self._theta()
        misfit = batch.misfit
        linearization = network.linearize(theta, batch.inputs, self._passes, problem.meter, misfit.over)
        with problem.meter.inner_clock():
            Z = append_bias_column(linearization.features, network.bias)
            if not torch.isfinite(misfit.over.sum(sum_of_squares, Z)):
                return None
            fit = self.settings.batch_head.fit(Z, misfit, problem.head_penalty, self._memory, share)
        self._memory = fit.memory
        cotangent = misfit.gradient(fit.outputs) @ fit.W[:, : network.n_features]
        gradient = linearization.vjp(cotangent) + problem.theta_penalty.hessian_mv(theta)
        for name, part in network.split(gradient).items():
            self._kernel.step(self._parameters[name], part, self._moments[name], rate)
        return fit.value + problem.theta_penalty.value(theta)

    # -- readings

    def _theta(self) -> Tensor:
        return self.problem.network.join(self._parameters)

    def _read(self) -> Model | None:
        """The reduced objective over all samples; None where the features are not finite.

        On the way the head needs no more digits than a reading shows; the last one is as exact as the eliminator makes it.
        """
        problem, theta, near = self.problem, self._theta(), self.point.W
        Z = self._features(theta)
        if not torch.isfinite(problem.misfit.over.sum(sum_of_squares, Z)):
            return None
        with problem.meter.inner_clock():
            if problem.misfit.identity_hessian or self._is_over:
                W = problem.eliminator.fit(Z, problem.misfit, problem.head_penalty, WarmStart(near)).W
            else:
                W = ROUGH.fit(Z, problem.misfit, problem.head_penalty, ROUGH.first(near)).W
        return self._evaluate(theta, W, Z)

    def _features(self, theta: Tensor) -> Tensor:
        network = self.problem.network
        return append_bias_column(network.features(theta, self.problem.inputs, self.problem.passes), network.bias)

    def _evaluate(self, theta: Tensor, W: Tensor, Z: Tensor) -> Model:
        problem = self.problem
        outputs = matmul_small(Z, W.T)
        misfit = problem.misfit.value(outputs)
        value = misfit + problem.theta_penalty.value(theta) + ridge(problem.head_penalty, W)
        return Model(theta, W, outputs, value, misfit)

    # -- checkpoints

    def state(self) -> State:
        """Everything that the next iteration depends on."""
        memory = self._memory
        return {
            "x": self.point.theta,
            "W": self.point.W,
            "first_x": self.first.theta,
            "first_W": self.first.W,
            "first_value": self.first.value,
            "parameters": detached_copy(self._parameters),
            "moments": detached_copy(self._moments),
            "memory": {"W": memory.W, "proximal": memory.proximal, "factor": memory.factor, "age": memory.age},
            "counts": [self.epoch, self.steps, self.failures],
            "rate": self.rate,
            "begun": self._begun,
        }

    def _resume(self, state: State) -> None:
        self.epoch, self.steps, self.failures = state["counts"]
        self.rate, self._begun = state["rate"], state["begun"]
        theta, first = state["x"], state["first_x"]
        self.point = self._evaluate(theta, state["W"], self._features(theta))
        evaluated = self._evaluate(first, state["first_W"], self._features(first))
        self.first = Model(first, evaluated.W, evaluated.outputs, state["first_value"], evaluated.misfit)
        self._memory = HeadMemory(**state["memory"])
        self._parameters = detached_copy(state["parameters"])
        self._moments = detached_copy(state["moments"])
