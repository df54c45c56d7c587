"""ADAM on the reduced loss of random batches: `method="adam-vpro"`.

    for each batch b:   Z, J  = features of the batch and their Jacobian            one pass forward
                        W_b   = head of the batch, near the last one                see `stochastic.batch_head`
                        g     = J' (G W_b) + alpha_1 B'B theta                      one pass backward
                        theta = theta - rate(progress) * direction(g)               see `rotated_adam`, `learning_rate`

An iteration is an epoch, several epochs for a large budget, or at first a part of one if there are many samples; the last
one ends with the budget. The first steps average few gradients; with a limit in seconds, the first of them are timed and do
not move theta. A reading (`readings`) follows each iteration, for the history and the validation. It evaluates a random part of
the samples if there are many more than a reading needs. For least squares it evaluates the mean of the last thetas (see
`batch_steps`) with an eliminated head; for other losses the head that follows the batches. However the run ends, the head
is then eliminated over all samples (`gnvpro.training.keeper`); a limit in seconds reserves the predicted time of one
elimination on all samples for it. Neither counts as work; eliminations count as inner seconds. The freedom of a batch's head
falls with the learning rate (not for least squares).

The learning rate is relative to the size of the weights (`batch_steps`). For least squares it follows from the samples in a
batch and the number of steps, else it is the same for all (`learning_rate`); it falls along a cosine to zero at the end of the
budget, in work or in seconds. If an iteration ends with an objective above the first one, or not finite, it is repeated
with a quarter of the rate.

Legend: alpha_1 -> theta_penalty, G -> gradient of the misfit in the outputs, W_b -> BatchFit.W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from gnvpro.arguments import check_count, check_number
from gnvpro.methods.cache import Cache
from gnvpro.methods.epochs import AdamVProState, Epochs, StepSettings
from gnvpro.methods.protocol import USUAL_WORK, Budget, Method, Start
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.stochastic.batch_head import BatchHead

BATCH, SQUARES_BATCH = 128, 512  # samples, if there are enough; a least-squares head needs more on a batch
PARTS = 16  # smallest number of batches in an epoch


@dataclass(frozen=True, kw_only=True)
class AdamVPro(Method):
    """ADAM with the head eliminated on each batch, for large sets of samples.

    Args:
        lr: the learning rate at the start, relative to the size of the weights: 0.1 changes each by a tenth of what is usual in
            its tensor. Default: 0.1; for least squares more for large batches and less for long runs.
        batch_size: samples per step. Default: 512 for least squares, else 128; at most a sixteenth of the samples.
        batch_head: how the head is held near the last one on a batch.
        rotate: whether ADAM runs in the eigenvectors of each layer's second moments.
        head, eliminator, levels, memory, seed: see `gnvpro.extend.Method`; the eliminator serves the first reading, the
            last elimination, and for least squares all readings.

    The rate falls to zero at the limit of `work` or `seconds`, not when `iterations` or `patience` end a run. A run that
    continues with a larger limit starts from the small rate at its old limit, unlike a run with the larger limit from the
    start.

    >>> AdamVPro().samples_per_batch(100_000, squares=True), AdamVPro().samples_per_batch(800, squares=False)
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
            raise TypeError(f"AdamVPro: batch_head must be a gnvpro.heads.BatchHead, got {self.batch_head!r}")
        if not isinstance(self.rotate, bool):
            raise TypeError(f"AdamVPro: rotate must be True or False, got {self.rotate!r}")

    def why_not(self, problem: Problem) -> str | None:
        """Settings of Newton's method are for other losses than least squares."""
        trouble = self.batch_head.why_not(problem.loss)
        return None if trouble is None else f"AdamVPro: batch_head cannot be used: {trouble}"

    def usual_work(self, by_seconds: bool = False) -> float:
        """Return the default limit in work units, because the learning rate needs an end to fall to."""
        return math.inf if by_seconds else USUAL_WORK

    def samples_per_batch(self, samples: int, squares: bool) -> int:
        """Samples in a batch, of so many, for least squares or not."""
        return min(self.batch_size or max(1, min(SQUARES_BATCH if squares else BATCH, samples // PARTS)), samples)

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> AdamVProState:
        """Evaluate the first model."""
        return self.epochs(problem, budget, start.seed, cache).begin(start)

    def step(
        self, problem: Problem, state: AdamVProState, budget: Budget, cache: Cache
    ) -> tuple[AdamVProState, StepReport | Status]:
        """An epoch or several, or a part of one, and a reading."""
        return self.epochs(problem, budget, state.seed, cache).step(state)

    def epochs(self, problem: Problem, budget: Budget, seed: int, cache: Cache) -> Epochs:
        """The work of one call."""
        size = self.samples_per_batch(problem.n_samples, problem.misfit.identity_hessian)
        steps = StepSettings(self.lr, size, self.batch_head, self.rotate)
        return Epochs(steps, problem, budget, seed, cache)
