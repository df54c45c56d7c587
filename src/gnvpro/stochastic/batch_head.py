"""Eliminating the head on a batch, near the last head.

    W_b  =  argmin_W  misfit_b(Z W') + a2/2 |W|^2 + rho/2 |W - W_last|^2

A batch of a few hundred samples cannot determine a head of hundreds of entries: fitted without rho the head follows
the noise of the batch, and the gradient in theta is biased. With rho it follows the batch only along directions in
which the batch knows more than rho, of which there are

    freedom(rho)  =  tr H (H + rho I)^-1                            H the Hessian of misfit_b + a2/2 |W|^2 in W

`proximal="auto"` keeps this number at a share of the samples in the batch (for least squares, where the outputs do not
compete, the part of each output): each time H is factorised, by one step of Newton's method in log rho. Of H the
diagonal blocks are taken, one for each output.

The share should fall as the learning rate does. Long steps in theta want a head that follows, and tolerate its bias;
short ones average the noise of many batches, and what remains is the bias. This is what `share` is for.

Least squares is solved directly. Other losses take a few Newton steps from the last head, each by conjugate gradients
preconditioned by the diagonal blocks of H, one for each output, factorised on one batch in twenty.

Legend: a2 -> head_penalty, rho -> proximal, W_last -> memory.W, W_b -> BatchFit.W.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number
from gnvpro.head.least_squares import LeastSquares
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.columns import matmul_small, weighted_squares
from gnvpro.problem.losses import Loss
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import ridge

FREEDOM = 0.2  # directions that the head follows, as a share of the samples in a batch,
FREEDOM_LEAST_SQUARES = 0.05  # and for least squares those of each output
FIRST_PROXIMAL = 0.1
LEAST = 1e-3  # of the mean eigenvalue: the least proximal weight that is found,
MOST = 1e4  # and the largest
CHANGE = 2.3  # of its logarithm at a time
RENEW_AFTER = 20  # batches that a factor serves at most
RTOL, STEPS = 0.1, 8  # of Newton's method on a batch
HALVINGS = 30  # of a step that does not lower the objective
SMALLEST = 1e-13  # gradient: there is nothing below
ROUNDING = 1e-14  # of a value


@dataclass(frozen=True)
class HeadMemory:
    """What the next batch's head depends on."""

    W: Tensor
    proximal: float
    factor: Tensor | None = None  # Cholesky's, of an earlier Hessian's diagonal blocks: one for each row of W
    age: int = 0  # batches that it has served


@dataclass(frozen=True)
class BatchFit:
    """A batch's head, the objective there, and what to remember of it."""

    W: Tensor
    outputs: Tensor
    value: float  # misfit, penalty and proximal term
    misfit: float
    steps: int
    memory: HeadMemory


@dataclass(frozen=True)
class BatchHead:
    """How the head is eliminated on batches.

    Args:
        proximal: rho, or "auto".
        freedom: of "auto": directions that the head may follow, as a share of the samples in the batch (for least
            squares: to each output). Left out: 0.2, and 0.05 for least squares.
        rtol: Newton's method ends when the gradient is this much smaller than where it began. Left out: 0.1.
        steps: or after so many steps. Left out: 8. Least squares is solved directly and refuses both.

    >>> BatchHead(proximal=0.1).first(torch.zeros(1, 2)).proximal
    0.1
    """

    proximal: float | str = "auto"
    freedom: float | None = None
    rtol: float | None = None
    steps: int | None = None

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

    def why_not(self, loss: Loss) -> str | None:
        """Why it cannot be used for this loss; None where it can."""
        if getattr(loss, "identity_hessian", False) and (self.rtol, self.steps) != (None, None):
            return f"least squares is solved directly, without rtol or steps; leave them out of {self!r}"
        return None

    def first(self, W: Tensor) -> HeadMemory:
        """The memory before the first batch."""
        return HeadMemory(W, FIRST_PROXIMAL if isinstance(self.proximal, str) else self.proximal)

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, memory: HeadMemory, share: float = 1.0) -> BatchFit:
        """The head of one batch; `share` of the freedom, of "auto", is left to it."""
        inner = _Proximal(Z, misfit, head_penalty, memory.proximal, memory.W)
        if misfit.identity_hessian:
            return self._least_squares(inner, memory, share)
        return self._newton(inner, memory, share)

    # -- least squares

    def _least_squares(self, inner: _Proximal, memory: HeadMemory, share: float) -> BatchFit:
        """The normal equations, or the solution of minimum norm where nothing bounds their condition."""
        if inner.ridge == 0:
            fit = LeastSquares().fit(inner.Z, inner.misfit, 0.0, None)
            return inner.result(fit.W, fit.outputs, 1, replace(memory, W=fit.W))
        weighted = inner.misfit.weights * inner.Z
        sums = inner.misfit.over.inner
        gram = sums(weighted, inner.Z)
        right = sums(weighted, inner.misfit.targets) + inner.proximal * memory.W.T
        gram.diagonal().add_(inner.ridge)
        factor, _ = damped_cholesky(gram)
        W = torch.cholesky_solve(right, factor).T
        memory = HeadMemory(W, memory.proximal, None, memory.age + 1)
        if memory.age % RENEW_AFTER == 1:  # the first batch, and then one in so many
            memory = replace(memory, proximal=self._adapted(factor[None], inner, share))
        return inner.result(W, matmul_small(inner.Z, W.T), 1, memory)

    # -- Newton

    def _newton(self, inner: _Proximal, memory: HeadMemory, share: float) -> BatchFit:
        """Newton steps from the last head, each by conjugate gradients."""
        W, outputs = memory.W, matmul_small(inner.Z, memory.W.T)
        value, gradient = inner.value(W, outputs), inner.gradient(W, outputs)
        blocks, age, proximal = memory.factor, memory.age + 1, memory.proximal
        if blocks is None or age > RENEW_AFTER:
            blocks, age = inner.blocks(outputs), 0
            proximal = self._adapted(blocks, inner, share)
        first = norm = float(torch.linalg.vector_norm(gradient))
        most, accuracy, taken = self.steps or STEPS, self.rtol or RTOL, 0
        while taken < most and norm > max(accuracy * first, SMALLEST):
            # The residual of a system need not be smaller than what the next gradient will be by curvature alone.
            rtol = max(min(0.3, norm), 0.5 * accuracy * first / norm)
            step = conjugate_gradients(inner.hessian(outputs), gradient, blocks, rtol)
            slope, length = float((gradient * step).sum()), 1.0
            for _ in range(HALVINGS):
                trial = W + length * step
                trial_outputs = matmul_small(inner.Z, trial.T)
                trial_value = inner.value(trial, trial_outputs)
                if trial_value <= value + 1e-4 * length * slope + ROUNDING * abs(value):
                    break
                length /= 2
            else:
                break
            W, outputs, value = trial, trial_outputs, trial_value
            gradient = inner.gradient(W, outputs)
            norm, taken = float(torch.linalg.vector_norm(gradient)), taken + 1
        return inner.result(W, outputs, taken, HeadMemory(W, proximal, blocks, age))

    # -- the proximal weight

    def _adapted(self, blocks: Tensor, inner: _Proximal, share: float) -> float:
        """One step towards the weight at which the head has the freedom it may have."""
        proximal = inner.proximal
        if self.proximal != "auto":
            return proximal
        default = FREEDOM_LEAST_SQUARES if inner.misfit.identity_hessian else FREEDOM
        wanted = share * inner.rows * (default if self.freedom is None else self.freedom)
        inverse = torch.cholesky_inverse(blocks)
        size, trace = blocks.shape[0] * blocks.shape[1], float(inverse.diagonal(dim1=1, dim2=2).sum())
        freedom = size - proximal * trace
        decay = proximal * (trace - proximal * float(inverse.square().sum()))  # - d freedom / d log rho
        least = LEAST * float(blocks.square().sum()) / size  # of H and rho; the traces of both are in the factors
        if wanted >= size:
            return least
        step = (freedom - wanted) / max(decay, 0.05 * freedom, 1e-300)
        return min(max(proximal * math.exp(min(max(step, -CHANGE), CHANGE)), least), MOST)


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor], gradient: Tensor, blocks: Tensor, rtol: float, iterations: int = 60
) -> Tensor:
    """The step D with H D = -gradient, preconditioned by a Cholesky factor for each row of W."""

    def precondition(R: Tensor) -> Tensor:
        return torch.cholesky_solve(R[:, :, None], blocks)[:, :, 0]

    D, residual = torch.zeros_like(gradient), -gradient
    direction = preconditioned = precondition(residual)
    weight = float((residual * preconditioned).sum())
    tolerance = rtol * float(torch.linalg.vector_norm(gradient))
    for _ in range(iterations):
        image = apply(direction)
        curvature = float((direction * image).sum())
        if not curvature > 0:
            break
        D = D + weight / curvature * direction
        residual = residual - weight / curvature * image
        if float(torch.linalg.vector_norm(residual)) <= tolerance:
            break
        preconditioned = precondition(residual)
        before, weight = weight, float((residual * preconditioned).sum())
        direction = preconditioned + weight / before * direction
    return D


@dataclass(frozen=True)
class _Proximal:
    """misfit(Z W') + a2/2 |W|^2 + rho/2 |W - W_last|^2."""

    Z: Tensor
    misfit: Misfit
    head_penalty: float
    proximal: float
    W_last: Tensor

    @property
    def ridge(self) -> float:
        return self.head_penalty + self.proximal

    @property
    def rows(self) -> float:
        return float(self.misfit.over.total(self.W_last.new_tensor(float(len(self.Z)))))

    def value(self, W: Tensor, outputs: Tensor) -> float:
        away = 0.5 * self.proximal * float((W - self.W_last).square().sum()) if self.proximal else 0.0
        return self.misfit.value(outputs) + ridge(self.head_penalty, W) + away

    def gradient(self, W: Tensor, outputs: Tensor) -> Tensor:
        G = self.misfit.over.inner(self.misfit.gradient(outputs), self.Z) + self.head_penalty * W
        return G + self.proximal * (W - self.W_last) if self.proximal else G

    def hessian(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        apply, inner = self.misfit.hessian(outputs), self.misfit.over.inner
        return lambda dW: inner(apply(matmul_small(self.Z, dW.T)), self.Z) + self.ridge * dW

    def blocks(self, outputs: Tensor) -> Tensor:
        """Cholesky factors of the Hessian's diagonal blocks, one for each row of W."""
        blocks = self.misfit.over.sum(weighted_squares, self.Z, self.misfit.hessian_diagonal(outputs))
        blocks.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return torch.stack([damped_cholesky(block)[0] for block in blocks])

    def result(self, W: Tensor, outputs: Tensor, steps: int, memory: HeadMemory) -> BatchFit:
        return BatchFit(W, outputs, self.value(W, outputs), self.misfit.value(outputs), steps, memory)
