"""Eliminating the head for least squares directly, by one factorisation.

    sqrt(w) Z = Q R,   R = U S V'            (w = 1/n; thin, so Q is (rows, k), V is (n_features, k))
    W         = (Q' sqrt(w) C)' U S (S^2 + a2)^-1 V'
    D inv     = D V (S^2 + a2)^-1 V' + D (I - V V') / a2

The last term exists only if there are fewer rows than features. With a2 = 0 the solution has minimum norm: singular
values that are rounding error count as zero, and so do their inverses.

W alone comes from the Cholesky factor of Z'wZ + a2 I, in a third of the time, if a2 makes this safe: rounding then
leaves epsilon |Z|^2 |W| of the gradient in W, the same as with singular values. Derivatives need inv, which always
comes from the singular values.

Samples that are not held in memory give all of this in one pass: with [sqrt(w) Z, sqrt(w) C] = Q [R r; 0 rho] the
misfit is

    misfit(W) = 1/2 |r - R W'|^2 + 1/2 |rho|^2

If entries of a row differ in weight, each output has its own factorisation, and inv uses it for that row of D.

Legend: paper's U and V are swapped here (its features are columns), Sigma -> s, alpha_2 -> head_penalty (a2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from gnvpro.head.eliminator import HeadFit, WarmStart
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.once import Once
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.linalg.rows import Rows, rowwise
from gnvpro.linalg.sums import beside
from gnvpro.minimize.status import Status
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit

CHOLESKY_SAFE_ABOVE = 1e-12  # penalty, relative to the trace of Z'wZ, that bounds the condition of the normal equations


@dataclass(frozen=True)
class LeastSquares:
    """The exact solution of the inner problem for losses whose Hessian is the identity, such as `HalfSquaredError`.

    Args:
        resolution: relative rounding error of the features; without a penalty, smaller singular values count as zero.
            Default: the rounding unit of float64.

    >>> import gnvpro
    >>> Z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    >>> targets = torch.tensor([[1.0], [3.0], [5.0]], dtype=torch.float64)  # 1 + 2 x
    >>> fit = LeastSquares().fit(Z, Misfit.mean(gnvpro.losses.HalfSquaredError(), targets), 0.0, None)
    >>> [round(w, 6) for w in fit.W[0].tolist()]
    [1.0, 2.0]
    """

    resolution: float = field(default=torch.finfo(torch.float64).eps, repr=False)
    supports_exact_steps: ClassVar[bool] = True
    inverse_acts_on_rows: ClassVar[bool] = True

    def why_not(self, loss: Loss) -> str | None:
        """Return a reason unless the loss is the squared error, the only one with a closed solution."""
        if loss.is_least_squares:
            return None
        return f"it solves least squares only, and the loss is {loss.name}; use gnvpro.heads.Newton()"

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """Return the head that minimises the penalised squared error; `start` is not needed."""
        if misfit.by_entry:
            return self._fit_by_output(Z, misfit, head_penalty)
        if isinstance(Z, Rows):
            return self._fit_in_one_pass(Z, misfit, head_penalty)
        root, inner = misfit.sqrt_weights, misfit.over.inner
        X = root * Z
        decomposition = _Decomposition(misfit, Z, partial(_factor, misfit, X), head_penalty, self.resolution)
        gram = inner(X, X)
        diagonal = gram.diagonal()
        if head_penalty > CHOLESKY_SAFE_ABOVE * float(diagonal.sum()):
            diagonal.add_(head_penalty)
            W = torch.cholesky_solve(inner(root * X, misfit.targets), torch.linalg.cholesky(gram)).T
        else:
            W = decomposition.head()
        return _fit(Z, W, decomposition)

    def _fit_by_output(self, Z: Tensor, misfit: Misfit, head_penalty: float) -> HeadFit:
        """Fit every output with its own factorisation, for entries that differ in weight."""
        made = []
        for k in range(misfit.targets.shape[1]):
            root = rowwise(lambda w, k=k: w[:, k, None], misfit.sqrt_weights, columns=1)
            target = rowwise(lambda w, c, k=k: w * c[:, k, None], root, misfit.targets, columns=1)
            triangle = Once(partial(misfit.over.triangle, root * Z, target))
            made.append(_Decomposition(misfit, Z, triangle, head_penalty, self.resolution))
        W = torch.cat([each.head() for each in made])

        def inverse() -> tuple[LinearOperator, Tensor | None]:
            rows = [each.inverse(W[:1].shape) for each in made]
            solve = symmetric(
                tuple(W.shape), lambda D: torch.cat([row.mv(d[None]) for row, d in zip(rows, D, strict=True)])
            )
            return solve, torch.block_diag(*(each.cholesky() for each in made)) if head_penalty > 0 else None

        return HeadFit(W, matmul_small(Z, W.T), Status.CONVERGED, 1, Once(inverse))

    def _fit_in_one_pass(self, Z: Tensor, misfit: Misfit, head_penalty: float) -> HeadFit:
        """Fit samples that are not held in memory."""
        f, K = Z.shape[1], misfit.targets.shape[1]
        both = rowwise(lambda w, z, c: w * beside(z, c), misfit.sqrt_weights, Z, misfit.targets, columns=f + K)
        factor = misfit.over.factor(both)
        R, r, rho = factor[:f, :f], factor[:f, f:], factor[f:, f:]
        if not torch.isfinite(factor).all():  # then no head is finite either
            W = factor.new_full((K, f), torch.nan)
            return HeadFit(
                W, matmul_small(Z, W.T), Status.NOT_FINITE, 1, Once(lambda: (symmetric((K, f), torch.clone), None))
            )
        decomposition = _Decomposition(misfit, Z, lambda: (R, r), head_penalty, self.resolution)

        def value(W: Tensor) -> float:
            return 0.5 * float((r - R @ W.T).square().sum() + rho.square().sum())

        return replace(_fit(Z, decomposition.head(), decomposition), misfit=value)


def _factor(misfit: Misfit, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return R and Q' sqrt(w) C."""
    return misfit.over.triangle(X, misfit.sqrt_weights * misfit.targets)


def _fit(Z: Tensor, W: Tensor, decomposition: _Decomposition) -> HeadFit:
    inverse = Once(partial(decomposition.inverse_alone, W.shape))
    return HeadFit(W, matmul_small(Z, W.T), Status.CONVERGED, 1, inverse, inverse_acts_on_rows=True)


@dataclass(frozen=True)
class _Decomposition:
    """U S V' of the triangular factor of weighted features, computed at first use."""

    misfit: Misfit
    Z: Tensor
    triangle: Callable[[], tuple[Tensor, Tensor]]  # R and Q' sqrt(w) C
    head_penalty: float
    resolution: float

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return U' Q' sqrt(w) C, s, V' and s^2 + a2."""
        R, projected = self.triangle()
        U, s, Vt = torch.linalg.svd(R, full_matrices=False)
        denominator = s.square() + self.head_penalty
        if self.head_penalty == 0:
            rows = float(self.misfit.over.total(torch.tensor(float(self.Z.shape[0]), dtype=torch.float64)))
            denominator[s <= self.resolution * max(rows, R.shape[1]) * s[0]] = torch.inf
        return U.T @ projected, s, Vt, denominator

    def head(self) -> Tensor:
        """Return W."""
        projected, s, Vt, denominator = self.parts
        return projected.T * (s / denominator) @ Vt

    def cholesky(self) -> Tensor:
        """Return the lower triangular factor of the Hessian for one row of W."""
        R, _ = self.triangle()
        ridge = self.head_penalty**0.5 * torch.eye(R.shape[1], dtype=R.dtype, device=R.device)
        return torch.linalg.qr(torch.cat([R, ridge]), mode="r").R.T

    def inverse_alone(self, shape: torch.Size) -> tuple[LinearOperator, Tensor | None]:
        """Return the inverse Hessian without a Cholesky factor."""
        return self.inverse(shape), None

    def inverse(self, shape: torch.Size) -> LinearOperator:
        """Return the inverse Hessian of the inner problem, for W of this shape."""
        _, _, Vt, denominator = self.parts
        spectrum = 1.0 / denominator
        outside = 1.0 / self.head_penalty if self.head_penalty > 0 and Vt.shape[0] < Vt.shape[1] else 0.0

        def solve(D: Tensor) -> Tensor:
            projected = D @ Vt.T
            solution = (projected * spectrum) @ Vt
            return solution + outside * (D - projected @ Vt) if outside else solution

        space = tuple(shape)
        return LinearOperator(space, space, solve, solve)
