"""The objective of a curve fit, as the library's trust region minimises it.

    Phi(x) = min_W 1/2 |sqrt(w) (Y - Z(theta(x)) W)|^2

A point holds its columns and coefficients; rows of the Jacobian J are made when asked for, and factorised once:

    J diag(1 / norms) = Q R,    along = Q'r          steps for any damping, the gradient and the covariance follow from these

Two numbers judge a point:

    offset     |Q'r| / |r|                   how far the tangent plane is from orthogonal to the residual (Bates and Watts)
    rounding   eps |r| |y|                   what the value of Phi can be wrong by, far more than eps Phi for small residuals
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnvpro.curves.algebra import Array, lengths, triangle
from gnvpro.curves.basis import Basis, Evaluated
from gnvpro.curves.coefficients import Block, Coefficients, Piece, eliminate
from gnvpro.curves.parameters import Parameters
from gnvpro.curves.step import TriangleModel
from gnvpro.linalg.operators import LinearOperator, symmetric

EPS = float(np.finfo(np.float64).eps)
AT_ROUNDING = 30 * EPS  # residual, relative to the targets, that is rounding error


@dataclass(frozen=True)
class CurveObjective:
    """Phi of a basis and curves."""

    basis: Basis
    parameters: Parameters
    blocks: Sequence[Block]
    asked: Coefficients
    epsilon: float = 10 * EPS

    def at(self, x: Tensor, near: CurvePoint | None = None) -> CurvePoint:
        """Evaluate at x; the elimination needs no start."""
        theta, slope = self.parameters.theta(x.numpy())
        return self.given(x, theta, slope, self.basis.at(self.parameters.values(theta)))

    def given(self, x: Tensor, theta: Array, slope: Array, columns: Evaluated) -> CurvePoint:
        """The point with these columns."""
        finite = math.isfinite(columns.Z.sum())
        pieces = [p for block in self.blocks for p in eliminate(columns.Z, block, self.asked)] if finite else None
        return CurvePoint(self, x, theta, slope, columns, pieces)

    @cached_property
    def target_norm(self) -> float:
        """|sqrt(w) Y|."""
        return math.sqrt(sum(float(np.vdot(block.Y, block.Y)) for block in self.blocks))

    def with_parameters(self, parameters: Parameters) -> CurveObjective:
        """Return the objective with other bounds or units, or with parameters held."""
        return replace(self, parameters=parameters)


@dataclass(frozen=True)
class CurvePoint:
    """Phi at one x."""

    objective: CurveObjective
    x: Tensor
    theta: Array  # free parameters
    slope: Array  # of theta in x
    columns: Evaluated
    pieces: list[Piece] | None  # None: a column is not finite

    @property
    def Z(self) -> Array:
        """The columns, (n, m)."""
        return self.columns.Z

    @property
    def values(self) -> Array:
        """All parameters in the order of their names."""
        return self.columns.values

    @cached_property
    def residual(self) -> Array:
        """All weighted residuals."""
        assert self.pieces is not None
        parts = [piece.residual.reshape(-1) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @cached_property
    def rss(self) -> float:
        """The weighted sum of squares."""
        return math.nan if self.pieces is None else float(self.residual @ self.residual)

    @property
    def value(self) -> float:
        """Phi."""
        return 0.5 * self.rss

    @cached_property
    def ties(self) -> Array | None:
        """The derivative of all parameters in the free ones; None if it is the identity."""
        return self.objective.parameters.jacobian(self.theta) if self.objective.parameters.fixed else None

    @property
    def dZ(self) -> Array:
        """The derivative of the columns in the free parameters, (n, m, p)."""
        return self.columns.dZ if self.ties is None else self.columns.dZ @ self.ties

    @cached_property
    def _rows(self) -> tuple[Array, Array]:
        """The projected Jacobian, and the length of each parameter's derivative before it is projected."""
        assert self.pieces is not None
        squares, parts = np.zeros(len(self.theta)), []
        for piece in self.pieces:
            if len(self.pieces) > 1:
                _ = self.columns.dZ  # once for all pieces
            moved = piece.moved(self.columns, self.ties)
            flat = moved.reshape(math.prod(moved.shape[:3]), len(self.theta))
            squares += np.einsum("ij,ij->j", flat, flat)
            parts.append(piece.projected(moved))
        return parts[0] if len(parts) == 1 else np.concatenate(parts), np.sqrt(squares)

    @property
    def jacobian(self) -> Array:
        """The projected derivative of the fitted curves in theta: d residual = -J d theta."""
        return self._rows[0]

    @property
    def whole_norms(self) -> Array:
        """The length of each parameter's derivative before it is projected, coefficients held."""
        return self._rows[1]

    @cached_property
    def triangle(self) -> tuple[Array, Array, Array]:
        """R, Q'r and column norms of the Jacobian in theta, its columns scaled to length one: J = Q R diag(norms)."""
        norms = lengths(self.jacobian)
        R, along = triangle(self.jacobian / np.where(norms > 0, norms, 1.0), self.residual)
        return R, along, norms

    @property
    def descent(self) -> Array:
        """Minus the gradient of Phi in theta."""
        R, along, norms = self.triangle
        return norms * (R.T @ along)

    def slopes(self) -> Array:
        """Gradient of Phi in x."""
        return -self.slope * self.descent

    def gradient(self) -> Tensor:
        """Gradient of Phi in x, for the trust region."""
        return torch.from_numpy(self.slopes())

    def curvature(self) -> LinearOperator:
        """The Gauss-Newton matrix."""
        J = torch.from_numpy(self.jacobian * self.slope)
        return symmetric((J.shape[1],), lambda v: J.T @ (J @ v))

    def free(self) -> None:
        """Do nothing: the local model needs all that a point holds."""

    def model(self) -> TriangleModel:
        """The local model."""
        R, along, norms = self.triangle
        return TriangleModel(R, along, norms * self.slope, math.sqrt(self.rss))

    @cached_property
    def offset(self) -> float:
        """Relative offset from orthogonality; zero if the residual is rounding error."""
        if self.pieces is None:
            return math.inf
        size = math.sqrt(self.rss)
        if size <= AT_ROUNDING * self.objective.target_norm:
            return 0.0
        return math.sqrt(float(self.triangle[1] @ self.triangle[1])) / size

    @property
    def resolution(self) -> float:
        """The offset that rounding of the residual alone can show."""
        return 4 * EPS * self.objective.target_norm / max(math.sqrt(self.rss), 1e-300)

    @property
    def rounding(self) -> float:
        """Rounding error of Phi."""
        return 4 * EPS * math.sqrt(self.rss) * self.objective.target_norm + 1e-300
