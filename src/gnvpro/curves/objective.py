"""The objective of a curve fit, as the library's trust region minimises it.

    Phi(x) = min_W 1/2 |sqrt(w) (Y - Z(theta(x)) W)|^2

A point holds its columns and coefficients; rows of the Jacobian are made when asked for. Two numbers judge a point:

    offset     |Q_J' r| / |r|                how far the tangent plane is from orthogonal to the residual (Bates and Watts)
    rounding   eps |r| |y|                   what the value of Phi can be wrong by, far more than eps Phi for small residuals
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.curves.basis import Basis
from gnvpro.curves.eliminate import Block, Coefficients, Piece, eliminate
from gnvpro.curves.parameters import Parameters
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.minimize.row_model import RowModel

EPS = torch.finfo(torch.float64).eps
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
        theta, slope = self.parameters.theta(x)
        values = list(self.parameters.values(theta).values())
        Z = self.basis.at(values)
        finite = math.isfinite(float(Z.sum()))
        pieces = [piece for block in self.blocks for piece in eliminate(Z, block, self.asked)] if finite else None
        return CurvePoint(self, x, theta, slope, Z, pieces)

    @cached_property
    def target_norm(self) -> float:
        """|sqrt(w) Y|."""
        return math.sqrt(sum(float(block.Y.square().sum()) for block in self.blocks))

    def with_parameters(self, parameters: Parameters) -> CurveObjective:
        """Return the objective with other bounds or units, or with parameters held."""
        return replace(self, parameters=parameters)


@dataclass(frozen=True)
class CurvePoint:
    """Phi at one x."""

    objective: CurveObjective
    x: Tensor
    theta: Tensor  # free parameters
    slope: Tensor  # of theta in x
    Z: Tensor
    pieces: list[Piece] | None  # None: a column is not finite

    @cached_property
    def residual(self) -> Tensor:
        """All weighted residuals."""
        assert self.pieces is not None
        parts = [piece.residual.reshape(-1) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def rss(self) -> float:
        """The weighted sum of squares."""
        return math.nan if self.pieces is None else float(self.residual @ self.residual)

    @property
    def value(self) -> float:
        """Phi."""
        return 0.5 * self.rss

    @cached_property
    def values(self) -> list[Tensor]:
        """All parameters in the order of their names."""
        return list(self.objective.parameters.values(self.theta).values())

    @cached_property
    def dZ(self) -> Tensor:
        """The derivative of the columns in the free parameters, (n, m, p)."""
        dZ = self.objective.basis.jacobian(self.values)
        return dZ @ self.objective.parameters.jacobian(self.theta) if self.objective.parameters.fixed else dZ

    @cached_property
    def whole_norms(self) -> Tensor:
        """The length of each parameter's derivative before it is projected, coefficients held."""
        assert self.pieces is not None
        moved = [piece.moved(self.dZ).flatten(0, 2) for piece in self.pieces]
        norms: Tensor = torch.linalg.vector_norm(torch.cat(moved), dim=0)
        return norms

    @cached_property
    def jacobian(self) -> Tensor:
        """The projected derivative of the residuals' fit in theta, with its sign: d residual = -J d theta."""
        assert self.pieces is not None
        parts = [piece.jacobian(self.dZ) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def gradient(self) -> Tensor:
        """Gradient of Phi in x."""
        return -self.slope * (self.jacobian.T @ self.residual)

    def curvature(self) -> LinearOperator:
        """The Gauss-Newton matrix."""
        J = self.jacobian * self.slope
        return symmetric((J.shape[1],), lambda v: J.T @ (J @ v))

    def free(self) -> None:
        """Do nothing: the local model needs all that a point holds."""

    def model(self) -> RowModel:
        """The local model."""
        return RowModel(-self.jacobian * self.slope, self.residual, scaling=1.0, least_share=0.0)

    @cached_property
    def triangle(self) -> tuple[Tensor, Tensor, Tensor]:
        """R, Q'r and column norms of the Jacobian in theta, its columns scaled to length one: J = Q R diag(norms)."""
        J = self.jacobian
        norms = torch.linalg.vector_norm(J, dim=0)
        scaled = J / torch.where(norms > 0, norms, 1.0)
        p = J.shape[1]
        R = torch.linalg.qr(torch.cat([scaled, self.residual[:, None]], 1), mode="r").R
        if len(R) <= p:
            R = torch.cat([R, R.new_zeros(p + 1 - len(R), p + 1)])
        return R[:p, :p], R[:p, p], norms

    @cached_property
    def offset(self) -> float:
        """Relative offset from orthogonality; zero if the residual is rounding error."""
        if self.pieces is None:
            return math.inf
        size = math.sqrt(self.rss)
        if size <= AT_ROUNDING * self.objective.target_norm:
            return 0.0
        return float(torch.linalg.vector_norm(self.triangle[1])) / size

    @property
    def resolution(self) -> float:
        """The offset that rounding of the residual alone can show."""
        return 4 * EPS * self.objective.target_norm / max(math.sqrt(self.rss), 1e-300)

    @property
    def rounding(self) -> float:
        """Rounding error of Phi."""
        return 4 * EPS * math.sqrt(self.rss) * self.objective.target_norm + 1e-300
