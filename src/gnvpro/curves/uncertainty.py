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

import torch
from torch import Tensor

from gnvpro.curves.eliminate import Piece


@dataclass(frozen=True)
class Curve:
    """One curve: its free columns, R^-1 and A."""

    columns: tuple[int, ...]
    inverse: Tensor  # (f, f)
    follows: Tensor  # A, (f, p)


@dataclass(frozen=True)
class Uncertainty:
    """Variances at a solution."""

    pieces: Sequence[Piece]  # curves themselves, not rotated
    dZ: Tensor  # (n, m, p), in the free parameters
    root: Tensor  # (p, p), root root' = (R_J' R_J)^-1
    variance: float
    n_curves: int

    @cached_property
    def theta(self) -> Tensor:
        """The covariance of the free parameters."""
        return self.variance * self.root @ self.root.T

    @cached_property
    def _solved(self) -> list[tuple[Tensor, Tensor]]:
        """R^-1 and -R^-1 Q' dZ of every piece, (B, f, f) and (B, f, m, p)."""
        found = []
        for piece in self.pieces:
            inverse = torch.linalg.inv(piece.R) if piece.R.shape[-1] else piece.R
            moved = torch.einsum("bnf,bnmp->bfmp", piece.Q, piece.block.weighted(self.dZ))
            found.append((inverse, -torch.einsum("bfg,bgmp->bfmp", inverse, moved)))
        return found

    def coefficients(self) -> Tensor:
        """The coefficients of all curves, (m, curves)."""
        W = self.pieces[0].W.new_zeros(self.pieces[0].W.shape[1], self.n_curves)
        for piece, curves in self._placed():
            W[:, curves] = piece.W.transpose(0, 1).reshape(len(W), -1)
        return W

    def coefficient_errors(self) -> Tensor:
        """Their standard errors, (m, curves); zero if a coefficient is fixed or held at zero."""
        errors = self.coefficients().zero_()
        for (piece, curves), (inverse, moves) in zip(self._placed(), self._solved, strict=True):
            follows = torch.einsum("bfmp,bmr->bfrp", moves, piece.W) @ self.root
            squares = follows.square().sum(-1) + inverse.square().sum(-1)[..., None]  # (B, f, r)
            for i, column in enumerate(piece.columns):
                errors[column, curves] = (self.variance * squares[:, i].reshape(-1)).sqrt()
        return errors

    def _placed(self) -> Iterator[tuple[Piece, Tensor]]:
        """Pieces with the curves that they are."""
        begun = 0
        for piece in self.pieces:
            count = piece.W.shape[0] * piece.W.shape[2]
            if piece.block.curves is None:
                yield piece, torch.arange(begun, begun + count)
                begun += count
            else:
                yield piece, piece.block.curves

    def curves(self) -> list[Curve]:
        """Every curve, in order."""
        found: dict[int, Curve] = {}
        for (piece, curves), (inverse, moves) in zip(self._placed(), self._solved, strict=True):
            B, _, r = piece.W.shape
            follows = torch.einsum("bfmp,bmr->brfp", moves, piece.W).reshape(B * r, len(piece.columns), -1)
            for i, curve in enumerate(curves.tolist()):
                found[curve] = Curve(piece.columns, inverse[i // r], follows[i])
        return [found[k] for k in sorted(found)]

    def covariance(self, all_in_free: Tensor) -> Tensor:
        """Covariance of all parameters, given their derivative in the free ones, and of all coefficients, curve by curve."""
        m = self.pieces[0].W.shape[1]
        T = [all_in_free]
        own = self.root.new_zeros(len(all_in_free) + m * self.n_curves, len(all_in_free) + m * self.n_curves)
        for k, curve in enumerate(self.curves()):
            A = self.root.new_zeros(m, self.root.shape[0])
            A[list(curve.columns)] = curve.follows
            T.append(A)
            at = len(all_in_free) + m * k + torch.tensor(curve.columns, dtype=torch.int64)
            own[at[:, None], at] = self.variance * curve.inverse @ curve.inverse.T
        moves = torch.cat(T) @ self.root
        return self.variance * moves @ moves.T + own

    def band(self, Z: Tensor, dZ: Tensor, W: Tensor) -> Tensor:
        """The standard errors of the curves at other samples, (samples, curves)."""
        squares = []
        for k, curve in enumerate(self.curves()):
            own = Z[:, list(curve.columns)]
            moves = torch.einsum("nmp,m->np", dZ, W[:, k]) + own @ curve.follows
            squares.append((moves @ self.root).square().sum(1) + (own @ curve.inverse).square().sum(1))
        return (self.variance * torch.stack(squares, 1)).sqrt()
