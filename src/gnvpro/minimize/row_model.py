"""Damped Gauss-Newton steps from the rows of the Jacobian, without the matrix J'J.

    s = argmin |J s + r|^2 + damping |s|_D^2,          |s|_D^2 = s'D s,      D_k = (|J_k|^2 / max |J_k|^2)^(1/2)

With y = D^(1/2) s and K = J D^(-1/2):

    more variables than rows    y = -K' (K K' + damping I)^-1 r                                  a matrix of rows x rows
    else, large damping         y = -(K'K + damping I)^-1 K'r                                    a Gram matrix
    else, small damping         K = Q R,  then   [R; sqrt(damping) I] = Q' R',   y = -R'^-1 Q' [Q'r; 0]

A Gram matrix loses everything below 1e-8 of the largest singular value. Damping above 1e-8 of the largest diagonal
entry of K'K hides this loss: the step is accurate to eight digits, at a fifth of the cost. With less damping the
step would be wrong long before the residuals are exact, and a run would stop ("no step reduces the objective") at a
hundred times the error.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.symmetric_products import add_square
from gnvpro.linalg.triangular import solve_triangular
from gnvpro.minimize.dense_model import LEAST_CURVATURE, scaled_metric
from gnvpro.minimize.step_rules import Step

TINY = 1e-200  # avoids division by zero for a column of zeros
GRAM_IS_SAFE = 1e-8  # damping, relative to the largest diagonal entry of K'K, above which K'K may be used
GRAM_BLOCKS = 8  # blocks of its rows; only the lower triangle is computed
ROUNDING = 1e-15  # with a Gram matrix, damping below this fraction of the largest squared singular value counts as none


class RowModel:
    """The local model |J s + r|^2 / 2 around a point."""

    def __init__(self, J: Tensor, residual: Tensor, scaling: float = 0.5, least_share: float = LEAST_CURVATURE) -> None:
        squares = J.square().sum(0)
        self.metric = scaled_metric(squares, scaling, max(least_share, TINY))
        self.root = self.metric.sqrt()
        self.J, self.residual = J, residual
        self.gradient = J.T @ residual
        self.scale = float((squares / self.metric).max()) if squares.numel() else 0.0

    @property
    def rank(self) -> int:
        """Dimension of the space of its steps."""
        return self.J.shape[1]

    @cached_property
    def _scaled(self) -> Tensor:
        return self.J / self.root

    @cached_property
    def _triangle(self) -> tuple[Tensor, Tensor]:
        """Return R and Q'r of the scaled Jacobian; the residual is appended as a column, so that Q is never formed."""
        width = self.rank
        R = torch.linalg.qr(torch.cat([self._scaled, self.residual[:, None]], 1), mode="r").R
        return R[:width, :width], R[:width, width]

    @cached_property
    def _gram(self) -> Tensor:
        """Return the lower triangle of K'K or K K', whichever is smaller."""
        K = self._scaled if self.J.shape[0] < self.J.shape[1] else self._scaled.T
        gram = K.new_zeros(len(K), len(K))
        add_square(gram, K, blocks=GRAM_BLOCKS)
        return gram

    @cached_property
    def offset(self) -> float:
        """Length of the residual in the range of J, relative to the whole residual."""
        whole = float(torch.linalg.vector_norm(self.residual))
        return float(torch.linalg.vector_norm(self._triangle[1])) / whole if whole > 0 else 0.0

    @property
    def first_radius(self) -> float:
        """Length of a safely damped step."""
        return self.solve_damped(1e-3 * self.scale).norm

    def solve_within(self, radius: float) -> Step:
        """Raise an error: steps of this model are damped."""
        raise TypeError("steps from rows are bounded by a damping, not by a radius")

    def solve_damped(self, damping: float) -> Step:
        """Return the step for this damping, or for a larger one if rounding requires it."""
        rows, width = self.J.shape
        if rows < width:
            y, promised, damping = self._by_rows(damping)
        elif damping >= GRAM_IS_SAFE * self.scale:
            y, promised, damping = self._by_gram(damping)
        else:
            y, promised = self._by_triangle(damping)
        return Step((y / self.root).detach(), float(torch.linalg.vector_norm(y)), promised, damping)

    def _by_rows(self, damping: float) -> tuple[Tensor, float, float]:
        damping = max(damping, ROUNDING * float(self._gram.diagonal().max()))
        factor, damping = damped_cholesky(self._gram, damping)
        y = -(self._scaled.T @ torch.cholesky_solve(self.residual[:, None], factor)[:, 0])
        moved = self._scaled @ y
        return y, -float(self.residual @ moved + 0.5 * moved @ moved), damping

    def _by_gram(self, damping: float) -> tuple[Tensor, float, float]:
        factor, damping = damped_cholesky(self._gram, damping)
        y = -torch.cholesky_solve((self.gradient / self.root)[:, None], factor)[:, 0]
        moved = self._scaled @ y
        return y, float(0.5 * moved @ moved + damping * y @ y), damping

    def _by_triangle(self, damping: float) -> tuple[Tensor, float]:
        R, along = self._triangle
        width = self.rank
        stacked = torch.zeros(2 * width, width + 1, dtype=R.dtype)
        stacked[:width, :width], stacked[:width, width] = R, along
        stacked[width:, :width].diagonal().fill_(math.sqrt(damping))
        inner = torch.linalg.qr(stacked, mode="r").R
        y = -solve_triangular(inner[:width, :width], inner[:width, width])
        moved = R @ y
        return y, -float(along @ moved + 0.5 * moved @ moved)
