"""Operations of the dense solver on a per-sample Jacobian, as functions of its blocks.

Rows of linear layers stay outer products g x (`protocol.OuterBlock`), so that sums over seeds and samples are m
times cheaper:

    sum_mn g[o] x[i] g'[o'] x'[i']  =  sum_n (sum_m g[o] g'[o']) (x[i] x'[i'])                 a small matrix product

    add_square   A += J J'        sum_with, sum_weighted_with   sum_n J (x) y
    times        J v              reseed                        R_n J_n, other seeds

Legend: J is (directions, m, n): parameter-major, m seeds, n samples. A block is a tensor of that shape or an
`OuterBlock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gnvpro.linalg.symmetric_products import MAX_PRODUCT_ENTRIES, add_square, pair_index, unique_products
from gnvpro.network.derivatives.linearization import Block, OuterBlock


@dataclass(frozen=True)
class Blocks:
    """A Jacobian (directions, m, n) as blocks of consecutive directions."""

    blocks: tuple[Block, ...]

    def __iter__(self) -> Iterator[tuple[slice, Block]]:
        """Yield each block and its directions."""
        start = 0
        for block in self.blocks:
            stop = start + block.shape[0]
            yield slice(start, stop), block
            start = stop

    def add_square(self, out: Tensor) -> None:
        """Add J J' to the lower triangle of `out`."""
        done: list[tuple[slice, Block]] = []
        for rows, block in self:
            for columns, other in done:
                _add_product(out[rows, columns], block, other)
            if isinstance(block, OuterBlock):
                _add_outer_outer(out[rows, rows], block, block)
            else:
                add_square(out[rows, rows], block.flatten(1))
            done.append((rows, block))

    def times(self, v: Tensor) -> Tensor:
        """Return J v, for v (n, m)."""
        v = v.T.contiguous()
        parts = []
        for block in self.blocks:
            if isinstance(block, OuterBlock):
                parts.append(block.in_order((block.g * v).sum(1) @ block.x.T))
            else:
                parts.append(block.flatten(1) @ v.flatten())
        return torch.cat(parts)

    def sum_with(self, y: Tensor) -> Tensor:
        """Sum over the samples of J (x) y: (directions, m, k), for y (n, k)."""
        parts = []
        for block in self.blocks:
            if isinstance(block, OuterBlock):
                o, m, i = *block.g.shape[:2], block.x.shape[0]
                xy = (block.x[:, None] * y.T).flatten(0, 1)  # (i k, n)
                parts.append(block.in_order((block.g.flatten(0, 1) @ xy.T).view(o, m, i, -1).transpose(1, 2)))
            else:
                parts.append((block.flatten(0, 1) @ y).view(*block.shape[:2], -1))
        return torch.cat(parts)

    def sum_weighted_with(self, left: Tensor, z: Tensor) -> Tensor:
        """Sum over the samples of (left J) (x) z: (directions, k, f), for left (k, m, n) and z (f, n)."""
        parts = []
        for block in self.blocks:
            if isinstance(block, OuterBlock):
                seeded, inputs = _over_seeds(block.g, left), block.x[:, None] * z
                product = seeded.flatten(0, 1) @ inputs.flatten(0, 1).T
                parts.append(block.in_order(product.view(*seeded.shape[:2], *inputs.shape[:2]).transpose(1, 2)))
            else:
                y = (left[:, None] * z[:, None]).flatten(0, 1)  # (k f, m, n)
                parts.append((block.flatten(1) @ y.flatten(1).T).unflatten(1, (len(left), len(z))))
        return torch.cat(parts)

    def reseed(self, R: Tensor) -> Blocks:
        """Return R_n J_n, for R (m', n, m)."""
        weights = R.transpose(1, 2)  # (m', m, n)
        return Blocks(
            tuple(
                replace(block, g=_over_seeds(block.g, weights))
                if isinstance(block, OuterBlock)
                else _over_seeds(block, weights)
                for block in self.blocks
            )
        )


def _add_product(out: Tensor, left: Block, right: Block) -> None:
    if isinstance(left, OuterBlock) and isinstance(right, OuterBlock):
        _add_outer_outer(out, left, right)
    elif isinstance(left, OuterBlock):
        assert isinstance(right, Tensor)
        _add_dense_outer(out.T, right, left)
    elif isinstance(right, OuterBlock):
        _add_dense_outer(out, left, right)
    else:
        out.addmm_(left.flatten(1), right.flatten(1).T)


def _add_dense_outer(out: Tensor, dense: Tensor, outer: OuterBlock) -> None:
    size = 32  # rows at a time, so that the summands stay in the cache
    for target, rows in zip(out.split(size), dense.split(size), strict=True):
        target.add_(_columns(_over_seeds(rows, outer.g) @ outer.x.T, outer))


def _over_seeds(left: Tensor, right: Tensor) -> Tensor:
    """Sum over m of left (o, m, n) and right (p, m, n): (o, p, n). With samples last, a loop is faster than einsum."""
    out = left[:, None, 0] * right[:, 0]
    for m in range(1, left.shape[1]):
        out.addcmul_(left[:, None, m], right[:, m])
    return out


def _columns(values: Tensor, block: OuterBlock) -> Tensor:
    """Return values for (..., o, i) as columns, one for each row of the block."""
    return torch.cat([values[..., :-1].flatten(-2), values[..., -1]], -1) if block.bias else values.flatten(-2)


def _add_outer_outer(out: Tensor, left: OuterBlock, right: OuterBlock) -> None:
    """Add sum_n (sum_m g[o] g'[p]) x[i] x'[j]; stores whichever is smaller: products of inputs, or of seeds and an input."""
    (o, p), (i, j) = (len(left.g), len(right.g)), (len(left.x), len(right.x))
    if i > o * p:
        weights = i - left.bias
        for k, row in enumerate(_over_seeds(left.g, right.g).unbind()):
            product = _columns((left.x @ (row[:, None] * right.x).flatten(0, 1).T).view(i, p, j), right)
            out[k * weights : (k + 1) * weights] += product[:weights]
            if left.bias:
                out[o * weights + k] += product[-1]
        return
    if left is right:
        table = _sum_in_parts(left.x.shape[1], o * (o + 1) // 2 + i * (i + 1) // 2, partial(_unique_square, left))
        product = table[pair_index(o, out.device)][:, pair_index(i, out.device)]
    else:
        product = _sum_in_parts(left.x.shape[1], o * p + i * j, partial(_products, left, right))
    out.add_(_columns(left.in_order(product.view(o, p, i, j).transpose(1, 2)), right))


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
