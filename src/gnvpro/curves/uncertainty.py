"""Covariance of parameters and coefficients together, from the joint Jacobian and without squaring its condition number.

    joint Jacobian    [J  Z]         J = d outputs / d theta with coefficients held, Z one block of columns per curve
    Z = Q R,          (I - Q Q') J = Q_J R_J,          A_k = d W_k / d theta = -R^-1 Q' dZ W_k

    cov theta         = s^2 (R_J' R_J)^-1
    cov W_k, theta    = A_k cov theta
    cov W_k, W_l      = A_k cov theta A_l' + [k = l] s^2 (R' R)^-1

s^2 is the sum of squares over the degrees of freedom, or the known variance of a value of weight one. Every variance is the
sum of squared entries of triangular solves. Curves are independent given theta, so errors of any number of them are cheap.

Legend: s^2 -> variance, R_J^-1 -> root (its columns in the units of theta).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnvpro.curves.algebra import Array
from gnvpro.curves.coefficients import Piece
from gnvpro.curves.curve_objective import CurvePoint


@dataclass(frozen=True)
class Curve:
    """One curve: its free columns, R^-1 and A."""

    columns: tuple[int, ...]
    inverse: Array  # (f, f)
    follows: Array  # A, (f, p)


@dataclass(frozen=True)
class Uncertainty:
    """Variances at a solution."""

    pieces: Sequence[Piece]  # curves themselves, not rotated
    point: CurvePoint  # the solution
    root: Array  # (p, p), root root' = (R_J' R_J)^-1
    variance: float
    n_curves: int

    @cached_property
    def theta(self) -> Array:
        """The covariance of the free parameters."""
        return self.variance * self.root @ self.root.T

    @cached_property
    def _solved(self) -> list[tuple[Array, Array]]:
        """R^-1 and -R^-1 Q' dZ of every piece, (B, f, f) and (B, f, m, p)."""
        found = []
        for piece in self.pieces:
            inverse = np.asarray(np.linalg.inv(piece.R), dtype=np.float64)
            moved = np.einsum("bnf,bnmp->bfmp", piece.Q, piece.block.weighted(self.point.dZ), optimize=True)
            found.append((inverse, -np.einsum("bfg,bgmp->bfmp", inverse, moved)))
        return found

    def coefficient_errors(self) -> Array:
        """Their standard errors, (m, curves); zero if a coefficient is fixed or held at zero."""
        errors = np.zeros((self.pieces[0].W.shape[1], self.n_curves))
        for (piece, curves), (inverse, moves) in zip(placed(self.pieces), self._solved, strict=True):
            follows = np.einsum("bfmp,bmr->bfrp", moves, piece.W, optimize=True) @ self.root
            squares = np.square(follows).sum(-1) + np.square(inverse).sum(-1)[..., None]  # (B, f, r)
            for i, column in enumerate(piece.columns):
                errors[column, curves] = np.sqrt(self.variance * squares[:, i].reshape(-1))
        return errors

    def curves(self) -> list[Curve]:
        """Every curve, in order."""
        found: dict[int, Curve] = {}
        for (piece, curves), (inverse, moves) in zip(placed(self.pieces), self._solved, strict=True):
            B, _, r = piece.W.shape
            follows = np.einsum("bfmp,bmr->brfp", moves, piece.W).reshape(B * r, len(piece.columns), -1)
            for i, curve in enumerate(curves.tolist()):
                found[curve] = Curve(piece.columns, inverse[i // r], follows[i])
        return [found[k] for k in sorted(found)]

    def covariance(self, all_in_free: Array) -> Array:
        """Covariance of all parameters, given their derivative in the free ones, and of all coefficients, curve by curve."""
        m = self.pieces[0].W.shape[1]
        T = [all_in_free]
        size = len(all_in_free) + m * self.n_curves
        own = np.zeros((size, size))
        for k, curve in enumerate(self.curves()):
            A = np.zeros((m, len(self.root)))
            A[list(curve.columns)] = curve.follows
            T.append(A)
            at = len(all_in_free) + m * k + np.array(curve.columns, dtype=np.int64)
            own[at[:, None], at] = self.variance * curve.inverse @ curve.inverse.T
        moves = np.concatenate(T) @ self.root
        return self.variance * moves @ moves.T + own

    def band(self, Z: Array, dZ: Array, W: Array) -> Array:
        """The standard errors of the curves at other samples, (samples, curves)."""
        squares = []
        for k, curve in enumerate(self.curves()):
            own = Z[:, list(curve.columns)]
            moves = np.einsum("nmp,m->np", dZ, W[:, k]) + own @ curve.follows
            squares.append(np.square(moves @ self.root).sum(1) + np.square(own @ curve.inverse).sum(1))
        return np.sqrt(self.variance * np.stack(squares, 1))


def placed(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, NDArray[np.integer]]]:
    """Pieces with the curves that they are."""
    begun = 0
    for piece in pieces:
        count = piece.W.shape[0] * piece.W.shape[2]
        if piece.block.curves is None:
            yield piece, np.arange(begun, begun + count)
            begun += count
        else:
            yield piece, piece.block.curves


def coefficients(pieces: Sequence[Piece], n_curves: int) -> Array:
    """The coefficients of all curves, (m, curves)."""
    W = np.zeros((pieces[0].W.shape[1], n_curves))
    for piece, curves in placed(pieces):
        W[:, curves] = piece.W.swapaxes(0, 1).reshape(len(W), -1)
    return W
