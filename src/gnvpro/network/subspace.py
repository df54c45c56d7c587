"""Directions in theta that matter: an orthonormal basis of those that move the features.

A network may have more parameters than its function: `gnvpro.networks.NeuralODE` uses K only as K - K', so the
symmetric part of K moves nothing. A module declares this by a class attribute `antisymmetric_parameters`, the names
of its parameters that are used only through the antisymmetric part of their last two axes. In the basis

    (e_ij - e_ji) / sqrt(2),  i < j        for those parameters,        e_i        for all others

lengths of steps are preserved, and the matrices of the dense solver omit the symmetric directions.

Those directions may be omitted only if the penalty needs no step along them: its matrix must not couple them with
the others, and its gradient along them must vanish. `choose_subspace` checks this once, and otherwise keeps all
directions.

Legend: Q -> expand (Q y), Q' -> reduce, kept and mirror: the entries (i, j) and (j, i) of theta behind each
direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from gnvpro.network.derivatives.blocks import Blocks, DenseBlock, JacobianBlock, OuterBlock
from gnvpro.network.derivatives.linearization import Rows

Parameters = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Subspace:
    """An orthonormal basis Q of some directions in theta; `scale` is sqrt(2) for an antisymmetric pair, one otherwise."""

    parameters: Parameters
    n_theta: int
    kept: Tensor
    mirror: Tensor
    scale: Tensor

    @cached_property
    def count(self) -> int:
        """Number of directions."""
        return self.kept.numel()

    @cached_property
    def _pairs(self) -> Tensor:
        """Mask of the antisymmetric pairs."""
        return (self.kept != self.mirror).nonzero()[:, 0]

    def reduce(self, v: Tensor) -> Tensor:
        """Return Q' v, along the first axis."""
        y, pairs = v[self.kept], self._pairs
        if pairs.numel():
            scale = self.scale[pairs].reshape(-1, *[1] * (v.ndim - 1))
            y[pairs] = (y[pairs] - v[self.mirror[pairs]]) / scale
        return y

    def expand(self, y: Tensor) -> Tensor:
        """Return Q y."""
        v = y.new_zeros(self.n_theta)
        v[self.mirror] = -y / self.scale
        v[self.kept] = y / self.scale
        return v

    @cached_property
    def _blocks(self) -> list[tuple[str, slice, Tensor | None]]:
        """Yield, by parameter, its rows here and its entries (None: all)."""
        blocks, start = [], 0
        for name, shape in self.parameters:
            size = math.prod(shape)
            first, last = torch.searchsorted(self.kept, self.kept.new_tensor([start, start + size])).tolist()
            own = self.kept[first:last] - start
            blocks.append((name, slice(first, last), own if own.numel() < size else None))
            start += size
        return blocks

    def parameter_means(self, values: Tensor) -> Tensor:
        """Replace each value (one per direction) by the mean over the directions of its parameter."""
        means = torch.empty_like(values)
        for _, rows, _ in self._blocks:
            means[rows] = values[rows].mean()
        return means

    def gather(self, jacobians: Rows, like: Tensor) -> Blocks:
        """Gather parameter-major Jacobians (numel, m, n) into one, in the dtype of `like`; rows still lack their `scale`."""
        blocks: list[JacobianBlock] = []
        run: list[tuple[Tensor, Tensor | None]] = []  # rows that come between two outer products
        merged = False
        for (name, rows, entries), following in zip(self._blocks, [*self._blocks[1:], None], strict=True):
            if merged:  # a bias that is part of its weight's block
                merged = False
                continue
            block = jacobians.get(name)
            if following and entries is None and isinstance(block, OuterBlock):
                merged = jacobians.get(following[0]) is block.g
                block = block.with_bias() if merged else block
            outer = [block] if isinstance(block, OuterBlock) else block if isinstance(block, list) else []
            if outer and entries is None:
                if run:
                    blocks.append(_stack(run, like))
                    run = []
                blocks += outer if outer[0].g.dtype == like.dtype else map(partial(OuterBlock.to, like=like), outer)
            elif outer:
                run.append((torch.cat([each.dense() for each in outer]), entries))
            elif block is None:
                run.append((like.new_zeros((rows.stop - rows.start, *_seeds_and_samples(jacobians))), None))
            else:
                assert isinstance(block, Tensor)
                run.append((block, entries))
        if run:
            blocks.append(_stack(run, like))
        return Blocks(tuple(blocks))


def _seeds_and_samples(jacobians: Rows) -> torch.Size:
    """Return (m, n) of (numel, m, n)."""
    first = next(iter(jacobians.values()))
    block = first[0] if isinstance(first, list) else first
    return (block if isinstance(block, Tensor) else block.g).shape[1:]


def _stack(parts: Sequence[tuple[Tensor, Tensor | None]], like: Tensor) -> DenseBlock:
    """Stack the given rows of each part."""
    if len(parts) == 1 and parts[0][1] is None:
        return DenseBlock(parts[0][0].to(like))
    counts = [len(part) if entries is None else len(entries) for part, entries in parts]
    out = like.new_empty((sum(counts), *parts[0][0].shape[1:]))
    for target, (part, entries) in zip(out.split(counts), parts, strict=True):
        if entries is None:
            target.copy_(part)
        else:
            # Row (j, i) is minus row (i, j), so (row - mirrored row) / sqrt(2) is sqrt(2) times the row.
            torch.index_select(part.to(like), 0, entries, out=target)
    return DenseBlock(out)


@dataclass(frozen=True)
class AllDirections(Subspace):
    """Every direction: Q is the identity."""

    reduce = staticmethod(torch.positive)  # type: ignore[assignment]  # returns the vector itself
    expand = staticmethod(torch.positive)  # type: ignore[assignment]


def all_directions(parameters: Parameters, device: torch.device) -> Subspace:
    """Return the identity."""
    n = sum([math.prod(shape) for _, shape in parameters])
    every = torch.arange(n, device=device)
    return AllDirections(parameters, n, every, every, torch.ones(n, dtype=torch.float64, device=device))


def moving_directions(model: nn.Module, parameters: Parameters, device: torch.device) -> Subspace:
    """Return all directions except those that a module declares irrelevant."""
    skew = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(module, "antisymmetric_parameters", ())
    }
    if not skew:
        return all_directions(parameters, device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    kept, mirror, start = [none], [none], 0
    for name, shape in parameters:
        own = torch.arange(start, start + math.prod(shape), device=device).reshape(shape)
        start += own.numel()
        if name in skew:
            i, j = torch.triu_indices(shape[-1], shape[-1], 1, device=device)
            kept.append(own[..., i, j].reshape(-1))
            mirror.append(own[..., j, i].reshape(-1))
        else:
            kept.append(own.reshape(-1))
            mirror.append(own.reshape(-1))
    first, second = torch.cat(kept), torch.cat(mirror)
    scale = torch.ones(first.shape, dtype=torch.float64, device=device)
    scale[first != second] = math.sqrt(2.0)
    return Subspace(parameters, start, first, second, scale)


def choose_subspace(few: Subspace, theta: Tensor, penalty: Tensor) -> Subspace:
    """Return the directions that move the features, or all if the penalty (its matrix) moves along others."""
    if few.count == few.n_theta:
        return few
    force = penalty @ theta
    outside = force - few.expand(few.reduce(force))
    half = few.reduce(penalty)  # Q' M
    inside = few.reduce(half.T)  # Q' M Q
    moved = torch.linalg.matrix_norm(half)  # including the coupling
    scale = float(torch.linalg.matrix_norm(penalty))
    coupled = float(moved.square() - torch.linalg.matrix_norm(inside).square()) > 1e-14 * scale**2
    pushed = float(torch.linalg.vector_norm(outside)) > 1e-13 * scale * float(torch.linalg.vector_norm(theta))
    return all_directions(few.parameters, theta.device) if coupled or pushed else few
