"""Eliminate the head on batches, close to a head that follows all batches.

A batch of a few hundred samples cannot determine a head of hundreds of entries: a head fitted to the batch alone follows
its noise, and the gradient in theta is biased. There are two cures.

Plain, the default for least squares, near the head of the batch before:

    W_b  =  argmin_W  misfit_b(Z W') + a2/2 |W|^2 + rho/2 |W - W_near|^2,        W_near <- W_b

With rho, the head follows the batch only along directions whose curvature on the batch exceeds rho. Their number is

    freedom(rho)  =  tr H (H + rho I)^-1                            H the Hessian of misfit_b + a2/2 |W|^2 in W

`proximal="auto"` keeps this number at a share of the samples in the batch (for least squares, whose outputs do not
compete, the number for each output): whenever H is factorised, by one step of Newton's method in log rho. Only the
diagonal blocks of H count, one for each output. The share should fall with the learning rate (`share`): long steps in
theta need a head that follows, and tolerate its bias; short ones average the noise, so the bias dominates. Least
squares is solved directly, other losses by Newton steps with conjugate gradients.

In its running metric, the default for other losses: the head takes a small part of a Newton step on each batch,

    W_near  <-  W_near - gain (H + rho I)^-1 g              g the gradient in W at W_near on this batch

with H averaged over recent batches, block by block, and rho a tenth of its mean diagonal. The gradient in
theta is taken at W_near before the step, so it has no bias from the batch. After 1/gain batches the head has
used as many samples as an eliminated head would need. The cost over a plain loop is one more product with Z.
A head that n samples determine is off by about entries / (2 n) in the loss, so the memory should hold a
number of samples for each entry of the head:

    gain  =  samples in the batch / (MEMORY * entries of W),        1/2 at most

Blocks ignore the competition of outputs, by a factor of two at most for cross-entropy: hence 1/2. A step that would raise
the batch's own objective is shortened, or not taken.

Legend: a2 -> head_penalty, rho -> proximal, W_near -> memory.W, W_b -> BatchFit.W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import HeadPoint
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.conjugate_gradients import conjugate_gradients
from gnvpro.minimize.damped_newton import damped_newton
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit
from gnvpro.state import State
from gnvpro.stochastic.proximal import Proximal, block_solver, factors

FREEDOM = 0.2  # directions that the head follows, as a share of the samples in a batch
FREEDOM_LEAST_SQUARES = 0.05  # the same for least squares, for each output
FIRST_PROXIMAL = 0.1
LEAST = 1e-3  # smallest proximal weight over the mean eigenvalue
MOST = 1e4  # largest proximal weight over the mean eigenvalue
CHANGE = 2.3  # largest change of its logarithm at a time
RENEW_AFTER = 20  # largest number of batches that use the same factor
RTOL, STEPS = 0.1, 8  # relative gradient and largest number of steps of Newton's method on a batch
METRICS = ("plain", "running")
MEMORY = 20  # samples in the head's memory, for each of its entries
MOST_GAIN = 0.5
SHORTER = (1.0, 0.1, 0.01)  # relative lengths of trial steps in the running metric
METRIC_AFTER, METRIC_NEW = 8, 0.1  # batches between two updates of H, and the share of the new Hessian
METRIC_RIDGE = 0.1  # rho over the mean diagonal of H
RUNNING = 0.05  # share of each batch in the running head of least squares
MAX_PRODUCTS = 60  # largest number of products for one system
SMALLEST = 1e-13  # gradient that counts as zero


@dataclass(frozen=True)
class HeadMemory(State):
    """The state that the next batch's head depends on."""

    W: Tensor  # the head to stay close to
    proximal: float
    factor: Tensor | None = None  # Cholesky factor of the diagonal blocks of an earlier Hessian, one for each row of W
    age: int = 0  # batches that have used the factor
    metric: Tensor | None = None  # the running H, a block for each row of W
    inverse: Tensor | None = None  # (H + rho I)^-1
    running: Tensor | None = None  # a head to predict with, the mean of some batches' heads; None: W
    batches: int = 0  # batches so far

    @property
    def reading(self) -> Tensor:
        """Return the head to predict with before all samples have been used."""
        return self.W if self.running is None else self.running


@dataclass(frozen=True)
class BatchFit:
    """A batch's head, its objective, and the next memory."""

    W: Tensor
    outputs: Tensor
    inner: Proximal
    steps: int
    memory: HeadMemory

    @cached_property
    def value(self) -> float:
        """Misfit plus penalty plus proximal term."""
        return self.inner.value(self.W, self.outputs)


@dataclass(frozen=True)
class BatchHead:
    """Settings of the elimination on batches.

    Args:
        proximal: rho, or "auto".
        freedom: for "auto": directions that the head may follow, as a share of the samples in the batch (for least
            squares: for each output). Default: 0.2, and 0.05 for least squares.
        rtol: Newton's method ends when the gradient has fallen by this factor. Default: 0.1.
        steps: largest number of Newton steps that are tried. Default: 8. Least squares is solved directly and raises for both.
        metric: "plain" or "running". Default: plain for least squares and if one of the above is given, else running,
            which takes none of them.
        gain: for the running metric, the part of a Newton step that the head takes on each batch. Default: such that
            the memory holds 20 samples for each entry of the head.

    >>> BatchHead(proximal=0.1).first(torch.zeros(1, 2)).proximal
    0.1
    """

    proximal: float | str = "auto"
    freedom: float | None = None
    rtol: float | None = None
    steps: int | None = None
    metric: str | None = None
    gain: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.proximal, str):
            if self.proximal != "auto":
                raise ValueError(f'BatchHead: proximal must be a number or "auto", got {self.proximal!r}')
        else:
            check_number("BatchHead: proximal", self.proximal, 0.0)
            if self.freedom is not None:
                raise ValueError(f"BatchHead: freedom is what proximal='auto' aims at, got proximal={self.proximal!r}")
        for name, value in (("freedom", self.freedom), ("rtol", self.rtol)):
            if value is not None:
                check_number(f"BatchHead: {name}", value, 0.0, strict=True)
        if self.steps is not None:
            check_count("BatchHead: steps", self.steps, 1)
        if self.metric not in (None, *METRICS):
            raise ValueError(f'BatchHead: metric must be "plain" or "running", got {self.metric!r}')
        if self.gain is not None and check_number("BatchHead: gain", self.gain, 0.0, strict=True) > 1:
            raise ValueError(f"BatchHead: gain must be at most 1, got {self.gain!r}")
        if self.metric == "running" and self._is_plain:
            raise ValueError(f"BatchHead: proximal, freedom, rtol and steps are of the plain metric, got {self!r}")
        if self.gain is not None and (self._is_plain or self.metric == "plain"):
            raise ValueError(f"BatchHead: gain is of the running metric, got {self!r}")

    @property
    def _is_plain(self) -> bool:
        """Return whether a setting is given that only the plain metric has."""
        return self.proximal != "auto" or any(v is not None for v in (self.freedom, self.rtol, self.steps))

    def why_not(self, loss: Loss) -> str | None:
        """Return why this loss cannot be used; None if it can."""
        if not loss.is_least_squares:
            return None
        if (self.rtol, self.steps) != (None, None):
            return f"least squares is solved directly, without rtol or steps; leave them out of {self!r}"
        if self.metric == "running" or self.gain is not None:
            return f"least squares is solved directly, without a running metric; leave metric and gain out of {self!r}"
        return None

    def first(self, W: Tensor) -> HeadMemory:
        """Return the memory before the first batch."""
        return HeadMemory(W, FIRST_PROXIMAL if isinstance(self.proximal, str) else self.proximal)

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, memory: HeadMemory, share: float = 1.0) -> BatchFit:
        """Eliminate the head on one batch; `share` scales the freedom of "auto"."""
        inner = Proximal(Z, misfit, head_penalty, proximal=memory.proximal, W_near=memory.W)
        if self.follows(misfit):
            return self._follow(replace(inner, proximal=0.0), memory)
        return (self._least_squares if misfit.identity_hessian else self._newton)(inner, memory, share)

    def follows(self, misfit: Misfit) -> bool:
        """Return whether the head is always close to the eliminated head of all samples, which holds for the running metric."""
        return not (misfit.identity_hessian or self._is_plain or self.metric == "plain")

    # -- least squares

    def _least_squares(self, inner: Proximal, memory: HeadMemory, share: float) -> BatchFit:
        """Solve the normal equations; find the solution of minimum norm if nothing bounds their condition."""
        if inner.ridge == 0:
            fit = LeastSquares().fit(inner.Z, inner.misfit, 0.0, None)
            return BatchFit(fit.W, fit.outputs, inner, 1, self._following(memory, fit.W))
        weighted = inner.misfit.weights * inner.Z
        sums = inner.misfit.over.inner
        gram = sums(weighted, inner.Z)
        right = sums(weighted, inner.misfit.targets) + inner.proximal * memory.W.T
        gram.diagonal().add_(inner.ridge)
        factor, _ = damped_cholesky(gram)
        W = torch.cholesky_solve(right, factor).T
        memory = self._following(memory, W)
        if memory.age % RENEW_AFTER == 1:  # at the first batch, and then at every RENEW_AFTER-th
            memory = replace(memory, proximal=self._adapted(factor[None], inner, share))
        outputs = matmul_small(inner.Z, W.T)
        return BatchFit(W, outputs, inner, 1, memory)

    @staticmethod
    def _following(memory: HeadMemory, W: Tensor) -> HeadMemory:
        """Remember the last batch's head, and a running average of the heads for predictions."""
        seen = memory.batches + 1
        running = torch.lerp(memory.reading, W, max(RUNNING, 1 / seen))
        return replace(memory, W=W, age=memory.age + 1, running=running, batches=seen)

    # -- Newton

    def _newton(self, inner: Proximal, memory: HeadMemory, share: float) -> BatchFit:
        """Take Newton steps from the remembered head, each by conjugate gradients."""
        first = inner.at_W(memory.W)
        blocks, age, proximal = memory.factor, memory.age + 1, memory.proximal
        if blocks is None or age > RENEW_AFTER:
            blocks, age = inner.blocks(first.outputs), 0
            proximal = self._adapted(blocks, inner, share)
        accuracy, precondition = self.rtol or RTOL, block_solver(blocks)
        enough = accuracy * first.gradient_norm

        def direction(point: HeadPoint) -> Tensor:
            # A system's residual need not be smaller than the next gradient, to which curvature contributes.
            norm = point.gradient_norm
            rtol = max(min(0.3, norm), 0.5 * enough / norm)
            return conjugate_gradients(
                inner.hessian(point.outputs), -point.gradient_W, precondition, rtol, MAX_PRODUCTS
            )

        found, _, taken = damped_newton(
            inner, first, direction, lambda point: point.gradient_norm <= max(enough, SMALLEST), self.steps or STEPS
        )
        kept = replace(self._following(memory, found.W), proximal=proximal, factor=blocks, age=age)
        return BatchFit(found.W, found.outputs, inner, taken, kept)

    # -- the running metric

    def _follow(self, inner: Proximal, memory: HeadMemory) -> BatchFit:
        """Compute the gradient at the remembered head, which then takes a part of a Newton step."""
        point = inner.at_W(memory.W)
        W, outputs, gradient, value = point.W, point.outputs, point.gradient_W, point.value
        memory = self._with_metric(inner, outputs, memory)
        assert memory.inverse is not None
        inverse = memory.inverse
        step = gradient @ inverse[0] if len(inverse) == 1 else torch.bmm(inverse, gradient[:, :, None])[:, :, 0]
        gain = self.gain_of(inner.rows, W.numel())
        trials = (W - gain * length * step for length in SHORTER)
        lower = (V for V in trials if inner.value(V, matmul_small(inner.Z, V.T)) <= value)
        return BatchFit(W, outputs, inner, 1, replace(memory, W=next(lower, W), age=memory.age + 1))

    def gain_of(self, rows: float, entries: int) -> float:
        """Return the part of a Newton step that a head takes on a batch; its memory holds the batches of 1 / gain steps."""
        return min(MOST_GAIN, rows / (MEMORY * entries)) if self.gain is None else self.gain

    @staticmethod
    def _with_metric(inner: Proximal, outputs: Tensor, memory: HeadMemory) -> HeadMemory:
        """Return the memory with the running Hessian, renewed on one batch in eight."""
        looks, late = divmod(memory.age, METRIC_AFTER)
        if memory.inverse is not None and late:
            return memory
        H = inner.hessian_blocks(outputs)
        if memory.metric is not None:
            H = torch.lerp(memory.metric, H, max(METRIC_NEW, 1 / (looks + 1)))
        ridge = METRIC_RIDGE * float(H.diagonal(dim1=1, dim2=2).mean()) + inner.head_penalty
        return replace(memory, metric=H, inverse=torch.cholesky_inverse(factors(H, ridge)))

    # -- the proximal weight

    def _adapted(self, blocks: Tensor, inner: Proximal, share: float) -> float:
        """Take one step towards the proximal weight with the intended freedom."""
        proximal = inner.proximal
        if self.proximal != "auto":
            return proximal
        default = FREEDOM_LEAST_SQUARES if inner.misfit.identity_hessian else FREEDOM
        wanted = share * inner.rows * (default if self.freedom is None else self.freedom)
        inverse = torch.cholesky_inverse(blocks)
        # rows of W for each block, of which those of least squares have the freedom one by one
        each = 1.0 if inner.misfit.identity_hessian else len(inner.W_near) / len(blocks)
        size, trace = each * blocks.shape[0] * blocks.shape[1], each * float(inverse.diagonal(dim1=1, dim2=2).sum())
        freedom = size - proximal * trace
        decay = proximal * (trace - proximal * each * float(inverse.square().sum()))  # - d freedom / d log rho
        least = LEAST * each * float(blocks.square().sum()) / size  # the traces of H and rho are in the factors
        if wanted >= size:
            return least
        step = (freedom - wanted) / max(decay, 0.05 * freedom, 1e-300)
        return min(max(proximal * math.exp(min(max(step, -CHANGE), CHANGE)), least), MOST)
