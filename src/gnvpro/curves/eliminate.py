"""The coefficients of a basis, eliminated by QR without squaring a condition number.

    sqrt(w) Z = Q R,     W = R^-1 Q' sqrt(w) Y,     residual = sqrt(w) (Y - Z W),     a second solve removes rounding

How the residual moves with theta when the coefficients follow is the projection of the derivative onto the complement of Q
(Kaufman): J = (I - Q Q') sqrt(w) dZ W. Its gradient J' residual is exact, and it is the block of the joint Jacobian that
the covariance of theta needs.

Curves that share their weights share Q (`Block`), and are first rotated to at most as many columns as there are samples:
sums of squares depend on Y Y' alone (`problem.compress`). A column of coefficients may be fixed, or not negative: then a
curve uses the columns that are free for it (`Piece`), found by Lawson and Hanson's active sets on the small R.

Shapes: B sets of weights, n samples, r curves per set, m columns, p parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from gnvpro.problem.compress import compressed

MOST_SHARED = 16  # sets of weights that are shared by several curves and handled one after the other


@dataclass(frozen=True)
class Block:
    """Curves with their weights: B sets of weights, each shared by r curves."""

    root: Tensor | None  # (B, n, 1), square roots of the weights; None: all one
    Y: Tensor  # (B, n, r), times the root
    curves: Tensor | None = None  # which curves these are, (B r,); None: rotated, or all in order

    def weighted(self, A: Tensor) -> Tensor:
        """Rows (n, ...) times the roots, (B, n, ...)."""
        if self.root is None:
            return A[None]
        return self.root.view(*self.root.shape[:2], *([1] * (A.ndim - 1))) * A


@dataclass(frozen=True)
class Coefficients:
    """Constraints on the coefficients: fixed values by column, and whether all must be nonnegative."""

    fixed: Mapping[int, float]
    nonnegative: bool = False


@dataclass(frozen=True)
class Piece:
    """Curves that use the same columns: what elimination leaves of them."""

    block: Block
    columns: tuple[int, ...]  # that are free
    Q: Tensor  # (B, n, f)
    R: Tensor  # (B, f, f)
    W: Tensor  # (B, m, r), fixed and inactive ones included
    residual: Tensor  # (B, n, r)

    def moved(self, dZ: Tensor) -> Tensor:
        """Derivative of the weighted outputs in the parameters, coefficients held, (B, n, r, p)."""
        moved = (dZ.mT @ self.W[:, None]).mT
        return moved if self.block.root is None else self.block.root[..., None] * moved

    def jacobian(self, dZ: Tensor) -> Tensor:
        """The rows of the projected Jacobian, (B n r, p)."""
        moved = self.moved(dZ)
        B, n, r, p = moved.shape
        flat = moved.reshape(B, n, r * p)
        return (flat - self.Q @ (self.Q.mT @ flat)).reshape(B * n * r, p)


def blocks_of(Y: Tensor, weights: Tensor | None, apart: bool) -> list[Block]:
    """Curves (n, K) by their weights (n, 1) or (n, K); rotated unless the curves must stay `apart`."""

    def block(root: Tensor | None, rows: Tensor, curves: Tensor | None = None) -> Block:
        return Block(root, rows[None], curves) if apart else Block(root, compressed(rows)[None])

    if weights is None:
        return [block(None, Y)]
    root = weights.sqrt()
    if root.shape[1] == 1:
        return [block(root[None], root * Y)]
    sets, which, counts = torch.unique(root, dim=1, return_inverse=True, return_counts=True)
    found, alone = [], torch.ones(len(which), dtype=torch.bool)
    for i in counts.argsort(descending=True).tolist()[:MOST_SHARED]:
        if counts[i] == 1:
            break
        own = which == i
        alone &= ~own
        found.append(block(sets[None, :, i, None], sets[:, i, None] * Y[:, own], own.nonzero()[:, 0]))
    if alone.any():
        own_root = root[:, alone].T[..., None].contiguous()
        found.append(Block(own_root, own_root * Y[:, alone].T[..., None], alone.nonzero()[:, 0]))
    return found


def eliminate(Z: Tensor, block: Block, asked: Coefficients) -> list[Piece]:
    """The best coefficients of a block, in one piece or by the columns that are free."""
    free = tuple(j for j in range(Z.shape[1]) if j not in asked.fixed)
    if not asked.nonnegative:
        return [solve(Z, block, free, asked.fixed)]
    A = block.weighted(Z)
    Q, R = torch.linalg.qr(A[..., free])
    target = Q.mT @ (block.Y - fixed_part(A, asked.fixed))  # (B, f, r)
    patterns: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for b in range(len(target)):
        small, columns = R[min(b, len(R) - 1)].numpy(), target[b].numpy()
        for k in range(columns.shape[1]):
            positive = np.flatnonzero(nnls(small, columns[:, k])[0])
            patterns.setdefault(tuple(free[j] for j in positive), []).append((b, k))
    return [solve(Z, part(block, members), columns, asked.fixed) for columns, members in patterns.items()]


def part(block: Block, members: Sequence[tuple[int, int]]) -> Block:
    """Some curves of a block, which has either one set of weights or one curve for each."""
    own = torch.tensor([b + k for b, k in members])  # one of the two is zero
    curves = own if block.curves is None else block.curves[own]
    if len(block.Y) == 1:
        return Block(block.root, block.Y[:, :, own], curves)
    assert block.root is not None
    return Block(block.root[own], block.Y[own], curves)


def solve(Z: Tensor, block: Block, columns: tuple[int, ...], fixed: Mapping[int, float]) -> Piece:
    """Least squares on the given columns."""
    A = block.weighted(Z)
    free = A[..., columns]
    Q, R = torch.linalg.qr(free)
    target = block.Y - fixed_part(A, fixed) if fixed else block.Y
    found = torch.linalg.solve_triangular(R, Q.mT @ target, upper=True)
    found = found + torch.linalg.solve_triangular(R, Q.mT @ (target - free @ found), upper=True)
    W = A.new_zeros(len(block.Y), Z.shape[1], block.Y.shape[2])
    W[:, list(columns)] = found
    for j, value in fixed.items():
        W[:, j] = value
    return Piece(block, columns, Q, R, W, target - free @ found)


def fixed_part(A: Tensor, fixed: Mapping[int, float]) -> Tensor:
    """Contribution of the columns with given coefficients, (B, n, 1)."""
    total = A.new_zeros(*A.shape[:2], 1)
    for j, value in fixed.items():
        total = total + value * A[..., j, None]
    return total
