"""The linear model that a network must not fall behind: ridge regression, its penalty by exact leave-one-out.

With standardised columns Z = U diag(d) V' (rows times the square roots of their weights w) and centred targets c,

    b(alpha)  =  V diag(d / (d^2 + alpha)) U' c               coefficients; the mean of c is not penalised
    h_i       =  w_i (1 / sum w + spread_i)                   leverage; spread(z) = sum_j (z'v_j)^2 / (d_j^2 + alpha)
    c_i - f_-i  =  (c_i - f_i) / (1 - h_i)                    residual of a row that is left out, weight and all

Legend: V -> directions, d^2 -> squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALPHAS = torch.logspace(-7, 3, 21, dtype=torch.float64)  # penalties over the sum of the weights
LEAST_LEFT = 1e-10  # lower limit of 1 - h
MOST_DIRECTIONS = 1000  # a factorisation with this many directions takes about a second


@dataclass(frozen=True)
class LinearSpread:
    """Variance of predictions over the variance of the noise."""

    directions: Tensor  # (columns, rank)
    squares: Tensor  # (rank,)
    alphas: Tensor  # (targets,): penalties
    total: float  # sum of the weights

    def of(self, columns: Tensor) -> Tensor:
        """Return the variance of each row and target."""
        along = (columns @ self.directions).square()
        across = (columns.square().sum(1) - along.sum(1)).clamp_min(0.0)[:, None]
        return 1 / self.total + along @ (1 / (self.squares[:, None] + self.alphas)) + across / self.alphas


@dataclass(frozen=True)
class LinearModel:
    """Ridge regression on standardised columns, one penalty per target."""

    coefficients: Tensor  # (columns, targets)
    left_out: Tensor  # (rows, targets): predictions of rows without their own target
    leverage: Tensor  # (rows, targets)
    spread: LinearSpread


def fit_linear(columns: Tensor, targets: Tensor, weights: Tensor) -> LinearModel | None:
    """Fit to columns of weighted mean zero; each target has the penalty with the smallest error of left-out rows.

    Returns None if rows and columns are too many for a quick factorisation.
    """
    total = float(weights.sum())
    root = weights.sqrt()[:, None]
    bias = (weights[:, None] * targets).sum(0) / total
    if min(columns.shape) > MOST_DIRECTIONS:
        return None
    U, d, V = thin_svd(root * columns)
    along, squares = U.T @ (root * (targets - bias)), d.square()
    best = torch.full_like(bias, torch.inf)
    alphas, coefficients = torch.ones_like(bias), columns.new_zeros(columns.shape[1], len(bias))
    left_out, leverage = targets.clone(), torch.zeros_like(targets)
    for alpha in ALPHAS * total:
        share = squares / (squares + alpha)
        fitted = bias + (U @ (share[:, None] * along)) / root
        taken = (weights / total + U.square() @ share).clamp_max(1 - LEAST_LEFT)[:, None]
        residuals = (targets - fitted) / (1 - taken)
        errors = (weights[:, None] * residuals.square()).sum(0)
        better = errors < best
        best, alphas = torch.where(better, errors, best), torch.where(better, alpha, alphas)
        coefficients[:, better] = (V @ ((d / (squares + alpha))[:, None] * along))[:, better]
        left_out = torch.where(better, targets - residuals, left_out)
        leverage = torch.where(better, taken, leverage)
    return LinearModel(coefficients, left_out, leverage, LinearSpread(V, squares, alphas, total))


def thin_svd(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, d and V of the directions in which rows differ, from the smaller of the two matrices of inner products."""
    wide = rows.shape[1] > rows.shape[0]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = values > values.max().clamp_min(1e-300) * 1e-13
    d, vectors = values[kept].sqrt(), vectors[:, kept]
    other = (rows.T if wide else rows) @ vectors / d
    return (vectors, d, other) if wide else (other, d, vectors)
