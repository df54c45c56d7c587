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
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from gnvpro.curves.algebra import Array, back_substitute, factorise
from gnvpro.curves.basis import Evaluated
from gnvpro.problem.compress import compressed

MOST_SHARED = 16  # sets of weights that are shared by several curves and handled one after the other


@dataclass(frozen=True)
class Block:
    """Curves with their weights: B sets of weights, each shared by r curves."""

    root: Array | None  # (B, n, 1), square roots of the weights; None: all one
    Y: Array  # (B, n, r), times the root
    curves: NDArray[np.integer] | None = None  # which curves these are, (B r,); None: rotated, or all in order

    def weighted(self, A: Array) -> Array:
        """Rows (n, ...) times the roots, (B, n, ...)."""
        if self.root is None:
            return A[None]
        return self.root.reshape(*self.root.shape[:2], *([1] * (A.ndim - 1))) * A


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
    Q: Array  # (B, n, f)
    R: Array  # (B, f, f)
    W: Array  # (B, m, r), fixed and inactive ones included
    residual: Array  # (B, n, r)

    @cached_property
    def joint(self) -> Array:
        """The coefficients of all curves, (m, B r)."""
        B, m, r = self.W.shape
        return self.W[0] if B == 1 else self.W.transpose(1, 0, 2).reshape(m, B * r)

    def moved(self, at: Evaluated, T: Array | None) -> Array:
        """Derivative of the weighted outputs in the parameters, coefficients held, (B, n, r, p)."""
        B, _, r = self.W.shape
        moved = at.moved(self.joint)
        moved = (moved if T is None else moved @ T).reshape(len(moved), B, r, -1).transpose(1, 0, 2, 3)
        return moved if self.block.root is None else self.block.root[..., None] * moved

    def projected(self, moved: Array) -> Array:
        """The rows of the projected Jacobian from `moved`, (B n r, p)."""
        B, n, r, p = moved.shape
        flat = moved.reshape(B, n, r * p)
        return (flat - self.Q @ (self.Q.swapaxes(1, 2) @ flat)).reshape(B * n * r, p)


def blocks_of(Y: Array, weights: Array | None, apart: bool) -> list[Block]:
    """Curves (n, K) by their weights (n, 1) or (n, K); rotated unless the curves must stay `apart`."""

    def block(root: Array | None, rows: Array, curves: NDArray[np.integer] | None = None) -> Block:
        if apart or rows.shape[1] <= len(rows):
            return Block(root, rows[None], curves if apart else None)
        return Block(root, compressed(torch.from_numpy(rows)).numpy()[None])

    if weights is None:
        return [block(None, Y)]
    root = np.sqrt(weights)
    if root.shape[1] == 1:
        return [block(root[None], root * Y)]
    sets, which, counts = np.unique(root, axis=1, return_inverse=True, return_counts=True)
    found, alone = [], np.ones(len(which), dtype=bool)
    for i in np.argsort(-counts, kind="stable").tolist()[:MOST_SHARED]:
        if counts[i] == 1:
            break
        own = which == i
        alone &= ~own
        found.append(block(sets[None, :, i, None], sets[:, i, None] * Y[:, own], own.nonzero()[0]))
    if alone.any():
        own_root = np.ascontiguousarray(root[:, alone].T[..., None])
        found.append(Block(own_root, own_root * Y[:, alone].T[..., None], alone.nonzero()[0]))
    return found


def eliminate(Z: Array, block: Block, asked: Coefficients) -> list[Piece]:
    """The best coefficients of a block, in one piece or by the columns that are free."""
    free = tuple(j for j in range(Z.shape[1]) if j not in asked.fixed)
    if not asked.nonnegative:
        return [solve(Z, block, free, asked.fixed)]
    A = block.weighted(Z)
    Q, R = factorise(A[..., free])
    target = Q.swapaxes(1, 2) @ (block.Y - fixed_part(A, asked.fixed))  # (B, f, r)
    patterns: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    inside = np.all(back_substitute(R, target) > 0, axis=1)  # no constraint binds
    for b, columns in enumerate(target):
        small = R[min(b, len(R) - 1)]
        for k in range(columns.shape[1]):
            positive = np.arange(len(free)) if inside[b, k] else np.flatnonzero(nnls(small, columns[:, k])[0])
            patterns.setdefault(tuple(free[j] for j in positive), []).append((b, k))
    return [solve(Z, part(block, members), columns, asked.fixed) for columns, members in patterns.items()]


def part(block: Block, members: Sequence[tuple[int, int]]) -> Block:
    """Some curves of a block, which has either one set of weights or one curve for each."""
    own = np.array([b + k for b, k in members])  # one of the two is zero
    curves = own if block.curves is None else block.curves[own]
    if len(block.Y) == 1:
        return Block(block.root, block.Y[:, :, own], curves)
    assert block.root is not None
    return Block(block.root[own], block.Y[own], curves)


def solve(Z: Array, block: Block, columns: tuple[int, ...], fixed: Mapping[int, float]) -> Piece:
    """Least squares on the given columns."""
    A = block.weighted(Z)
    free = A if len(columns) == Z.shape[1] else A[..., columns]
    Q, R = factorise(free)
    target = block.Y - fixed_part(A, fixed) if fixed else block.Y
    transposed = Q.swapaxes(1, 2)
    found = back_substitute(R, transposed @ target)
    found = found + back_substitute(R, transposed @ (target - free @ found))
    W = found
    if len(columns) < Z.shape[1]:
        W = np.zeros((len(block.Y), Z.shape[1], block.Y.shape[2]))
        W[:, list(columns)] = found
        for j, value in fixed.items():
            W[:, j] = value
    return Piece(block, columns, Q, R, W, target - free @ found)


def fixed_part(A: Array, fixed: Mapping[int, float]) -> Array:
    """Contribution of the columns with given coefficients, (B, n, 1)."""
    total = np.zeros((*A.shape[:2], 1))
    for j, value in fixed.items():
        total = total + value * A[..., j, None]
    return total
