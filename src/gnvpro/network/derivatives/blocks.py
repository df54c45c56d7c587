"""The blocks of a per-sample Jacobian, and the operations of the dense solver on them.

Rows of linear layers stay outer products g x (`OuterBlock`), so that sums over seeds and samples are m times cheaper:

    sum_mn g[o] x[i] g'[o'] x'[i']  =  sum_n (sum_m g[o] g'[o']) (x[i] x'[i'])                 a small matrix product

    add_square   A += J J'        sum_with, sum_weighted_with   sum_n J (x) y
    times        J v              reseed                        R_n J_n, other seeds

Legend: J is (directions, m, n): parameter-major, m seeds, n samples. A block is a `DenseBlock`, a tensor of that shape, or
an `OuterBlock`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gnvpro.linalg.symmetric_products import MAX_PRODUCT_ENTRIES, add_square, pair_index, unique_products


class JacobianBlock(ABC):
    """Consecutive rows of a Jacobian, (size, m, n)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of rows."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the rows as a tensor."""

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """Return J v, for v (m, n)."""

    @abstractmethod
    def sum_with(self, y: Tensor) -> Tensor:
        """Sum over the samples of J (x) y: (size, m, k), for y (n, k)."""

    @abstractmethod
    def sum_weighted_with(self, left: Tensor, z: Tensor) -> Tensor:
        """Sum over the samples of (left J) (x) z: (size, k, f), for left (k, m, n) and z (f, n)."""

    @abstractmethod
    def reseed(self, weights: Tensor) -> JacobianBlock:
        """Return the block of other seeds, for weights (m', m, n)."""

    @abstractmethod
    def add_square(self, out: Tensor) -> None:
        """Add J J' to the lower triangle of `out`."""

    @abstractmethod
    def add_product(self, out: Tensor, right: JacobianBlock) -> None:
        """Add J right' to `out`."""

    @abstractmethod
    def add_after_dense(self, out: Tensor, left: Tensor) -> None:
        """Add left J' to `out`, for rows (., m, n)."""

    @abstractmethod
    def add_after_outer(self, out: Tensor, left: OuterBlock) -> None:
        """Add left J' to `out`."""


@dataclass(frozen=True)
class DenseBlock(JacobianBlock):
    """Rows as a tensor."""

    rows: Tensor

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def dense(self) -> Tensor:
        """Return the tensor."""
        return self.rows

    def times(self, v: Tensor) -> Tensor:
        """Return J v."""
        return self.rows.flatten(1) @ v.flatten()

    def sum_with(self, y: Tensor) -> Tensor:
        """Sum J (x) y."""
        return (self.rows.flatten(0, 1) @ y).view(*self.rows.shape[:2], -1)

    def sum_weighted_with(self, left: Tensor, z: Tensor) -> Tensor:
        """Sum (left J) (x) z."""
        y = (left[:, None] * z[:, None]).flatten(0, 1)  # (k f, m, n)
        return (self.rows.flatten(1) @ y.flatten(1).T).unflatten(1, (len(left), len(z)))

    def reseed(self, weights: Tensor) -> DenseBlock:
        """Return the rows of other seeds."""
        return DenseBlock(_over_seeds(self.rows, weights))

    def add_square(self, out: Tensor) -> None:
        """Add J J'."""
        add_square(out, self.rows.flatten(1))

    def add_product(self, out: Tensor, right: JacobianBlock) -> None:
        """Add J right'."""
        right.add_after_dense(out, self.rows)

    def add_after_dense(self, out: Tensor, left: Tensor) -> None:
        """Add left J'."""
        out.addmm_(left.flatten(1), self.rows.flatten(1).T)

    def add_after_outer(self, out: Tensor, left: OuterBlock) -> None:
        """Add left J'."""
        left.add_after_dense(out.T, self.rows)


@dataclass(frozen=True)
class OuterBlock(JacobianBlock):
    """The rows g[o] x[i] of a Jacobian, (o i, m, n), as factors.

    With a bias the last x is one everywhere, and its rows g[o] come after those of the weight.
    """

    g: Tensor  # (o, m, n)
    x: Tensor  # (i, n)
    bias: bool = False

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.g) * len(self.x)

    def dense(self) -> Tensor:
        """Return the product."""
        return self.in_order(self.g[:, None] * self.x[:, None])

    def in_order(self, values: Tensor) -> Tensor:
        """Return values for (o, i) in the order of the rows."""
        return torch.cat([values[:, :-1].flatten(0, 1), values[:, -1]]) if self.bias else values.flatten(0, 1)

    def with_bias(self) -> OuterBlock:
        """Return the block with rows g[o] for a bias of the same layer."""
        return OuterBlock(self.g, torch.cat([self.x, torch.ones_like(self.x[:1])]), bias=True)

    def to(self, like: Tensor) -> OuterBlock:
        """Return the block in the dtype of another tensor."""
        return OuterBlock(self.g.to(like), self.x.to(like), self.bias)

    def times(self, v: Tensor) -> Tensor:
        """Return J v."""
        return self.in_order((self.g * v).sum(1) @ self.x.T)

    def sum_with(self, y: Tensor) -> Tensor:
        """Sum J (x) y."""
        o, m, i = *self.g.shape[:2], self.x.shape[0]
        xy = (self.x[:, None] * y.T).flatten(0, 1)  # (i k, n)
        return self.in_order((self.g.flatten(0, 1) @ xy.T).view(o, m, i, -1).transpose(1, 2))

    def sum_weighted_with(self, left: Tensor, z: Tensor) -> Tensor:
        """Sum (left J) (x) z."""
        seeded, inputs = _over_seeds(self.g, left), self.x[:, None] * z
        product = seeded.flatten(0, 1) @ inputs.flatten(0, 1).T
        return self.in_order(product.view(*seeded.shape[:2], *inputs.shape[:2]).transpose(1, 2))

    def reseed(self, weights: Tensor) -> OuterBlock:
        """Return the factors of other seeds."""
        return OuterBlock(_over_seeds(self.g, weights), self.x, self.bias)

    def add_square(self, out: Tensor) -> None:
        """Add J J'."""
        self.add_after_outer(out, self)

    def add_product(self, out: Tensor, right: JacobianBlock) -> None:
        """Add J right'."""
        right.add_after_outer(out, self)

    def add_after_dense(self, out: Tensor, left: Tensor) -> None:
        """Add left J'."""
        size = 32  # rows at a time, so that the summands stay in the cache
        for target, rows in zip(out.split(size), left.split(size), strict=True):
            target.add_(_columns(_over_seeds(rows, self.g) @ self.x.T, self))

    def add_after_outer(self, out: Tensor, left: OuterBlock) -> None:
        """Add sum_n (sum_m g[o] g'[p]) x[i] x'[j].

        It stores whichever is smaller: products of inputs, or of seeds and an input.
        """
        (o, p), (i, j) = (len(left.g), len(self.g)), (len(left.x), len(self.x))
        if i > o * p:
            weights = i - left.bias
            for k, row in enumerate(_over_seeds(left.g, self.g).unbind()):
                product = _columns((left.x @ (row[:, None] * self.x).flatten(0, 1).T).view(i, p, j), self)
                out[k * weights : (k + 1) * weights] += product[:weights]
                if left.bias:
                    out[o * weights + k] += product[-1]
            return
        if left is self:
            table = _sum_in_parts(left.x.shape[1], o * (o + 1) // 2 + i * (i + 1) // 2, partial(_unique_square, left))
            product = table[pair_index(o, out.device)][:, pair_index(i, out.device)]
        else:
            product = _sum_in_parts(left.x.shape[1], o * p + i * j, partial(_products, left, self))
        out.add_(_columns(left.in_order(product.view(o, p, i, j).transpose(1, 2)), self))


@dataclass(frozen=True)
class Blocks:
    """A Jacobian (directions, m, n) as blocks of consecutive directions."""

    blocks: tuple[JacobianBlock, ...]

    def add_square(self, out: Tensor) -> None:
        """Add J J' to the lower triangle of `out`."""
        start = 0
        done: list[tuple[slice, JacobianBlock]] = []
        for block in self.blocks:
            rows = slice(start, start + block.size)
            for columns, other in done:
                block.add_product(out[rows, columns], other)
            block.add_square(out[rows, rows])
            done.append((rows, block))
            start = rows.stop

    def times(self, v: Tensor) -> Tensor:
        """Return J v, for v (n, m)."""
        v, parts = v.T.contiguous(), []
        for block in self.blocks:
            parts.append(block.times(v))
        return torch.cat(parts)

    def sum_with(self, y: Tensor) -> Tensor:
        """Sum over the samples of J (x) y: (directions, m, k), for y (n, k)."""
        parts = []
        for block in self.blocks:
            parts.append(block.sum_with(y))
        return torch.cat(parts)

    def sum_weighted_with(self, left: Tensor, z: Tensor) -> Tensor:
        """Sum over the samples of (left J) (x) z: (directions, k, f), for left (k, m, n) and z (f, n)."""
        return torch.cat([block.sum_weighted_with(left, z) for block in self.blocks])

    def reseed(self, R: Tensor) -> Blocks:
        """Return R_n J_n, for R (m', n, m)."""
        weights = R.transpose(1, 2)  # (m', m, n)
        return Blocks(tuple([block.reseed(weights) for block in self.blocks]))


def _over_seeds(left: Tensor, right: Tensor) -> Tensor:
    """Sum over m of left (o, m, n) and right (p, m, n): (o, p, n). With samples last, a loop is faster than einsum."""
    out = left[:, None, 0] * right[:, 0]
    for m in range(1, left.shape[1]):
        out.addcmul_(left[:, None, m], right[:, m])
    return out


def _columns(values: Tensor, block: OuterBlock) -> Tensor:
    """Return values for (..., o, i) as columns, one for each row of the block."""
    return torch.cat([values[..., :-1].flatten(-2), values[..., -1]], -1) if block.bias else values.flatten(-2)


def _sum_in_parts(samples: int, entries: int, of: Callable[[slice], Tensor]) -> Tensor:
    """Sum over samples in parts whose products fit into the limit, given the entries per sample."""
    size = max(1, MAX_PRODUCT_ENTRIES // entries)
    total = of(slice(0, size))
    for k in range(size, samples, size):
        total += of(slice(k, k + size))
    return total


def _products(left: OuterBlock, right: OuterBlock, samples: slice) -> Tensor:
    """Return (o p, i j) from some samples."""
    seeded = _over_seeds(left.g[:, :, samples], right.g[:, :, samples])
    return seeded.flatten(0, 1) @ (left.x[:, None, samples] * right.x[:, samples]).flatten(0, 1).T


def _unique_square(block: OuterBlock, samples: slice) -> Tensor:
    """Return the products of a block with itself, each pair once: (pairs of o, pairs of i)."""
    seeded, device = _over_seeds(block.g[:, :, samples], block.g[:, :, samples]), block.x.device
    k, l = torch.triu_indices(len(seeded), len(seeded), device=device)
    return seeded[k, l] @ unique_products(block.x[:, samples]).T
