"""Derivatives in x, carried through the layers together with the value: one pass forward, one backward.

A jet holds, for every point and unit, a value h and the requested derivatives, its channels:

    ()          h                          (0,)    dh/dx0                (0, 1)    d2h/dx0dx1           any order
    Laplacian   sum_i d2h/dxi^2 over some axes, without the single terms (the forward Laplacian)

A linear layer acts on every channel alike, its bias on the value alone. An activation f mixes them: each channel is
a sum over the partitions of its indices into blocks (Faa di Bruno),

    D_a f(h)  = sum_P f^(|P|)(h) prod_{B in P} D_B h          D_01 f(h) = f'(h) h_01 + f''(h) h_0 h_1
    lap f(h)  = f'(h) lap h + f''(h) sum_i h_i^2

so the channels needed on the way are all parts of a: for the Laplacian in d dimensions d + 2 of them. Backward, a
cotangent of the same shape goes through the transposed derivative of these formulas.

Legend: f^(k) -> slopes[k], P -> a term (k, the channels of its blocks), H, G -> (channels, points, units).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gnvpro.pde.activations import Derivatives


@dataclass(frozen=True, order=True)
class Laplacian:
    """The sum of the second derivatives along some axes."""

    axes: tuple[int, ...]


Channel = tuple[int, ...] | Laplacian  # sorted axes to differentiate along; () is the value
Term = tuple[int, tuple[int, ...]]  # the order of the slope, and the channels that it multiplies


@dataclass(frozen=True)
class Channels:
    """The channels of a jet, closed under taking parts; the value is the first."""

    keys: tuple[Channel, ...]

    @staticmethod
    def closed(wanted: Iterable[Channel]) -> Channels:
        """Return the requested channels and the parts that they need, lower orders first."""
        every: set[Channel] = {()}
        for channel in wanted:
            every.add(channel)
            parts = ((i,) for i in channel.axes) if isinstance(channel, Laplacian) else _parts(channel)
            every.update(parts)
        return Channels(tuple(sorted(every, key=_rank)))

    def __len__(self) -> int:
        return len(self.keys)

    def index(self, channel: Channel) -> int:
        """Return its position."""
        return self._positions[channel]

    @cached_property
    def order(self) -> int:
        """Highest order of a derivative."""
        return max(order_of(channel) for channel in self.keys)

    @cached_property
    def _positions(self) -> dict[Channel, int]:
        return {channel: i for i, channel in enumerate(self.keys)}

    @cached_property
    def terms(self) -> tuple[tuple[Term, ...], ...]:
        """Terms of every channel but the first after an activation."""
        made: list[tuple[Term, ...]] = []
        for position, channel in enumerate(self.keys[1:], start=1):
            if isinstance(channel, Laplacian):
                squares = [(2, (self.index((i,)),) * 2) for i in channel.axes]
                made.append(((1, (position,)), *squares))
            else:
                blocks = [
                    tuple(self.index(tuple(channel[i] for i in block)) for block in partition)
                    for partition in partitions(len(channel))
                ]
                made.append(tuple((len(indices), indices) for indices in blocks))
        return tuple(made)

    def of_inputs(self, points: Tensor) -> Tensor:
        """Return the jet of x itself, (channels, points, dimension)."""
        H = points.new_zeros((len(self), *points.shape))
        H[0] = points
        for position, channel in enumerate(self.keys):
            if isinstance(channel, tuple) and len(channel) == 1:
                H[position, :, channel[0]] = 1.0
        return H


def order_of(channel: Channel) -> int:
    """Return the order of a derivative."""
    return 2 if isinstance(channel, Laplacian) else len(channel)


def _rank(channel: Channel) -> tuple[int, bool, tuple[int, ...]]:
    axes = channel.axes if isinstance(channel, Laplacian) else channel
    return order_of(channel), isinstance(channel, Laplacian), axes


def _parts(axes: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return all non-empty sub-multisets."""
    parts: set[tuple[int, ...]] = {()}
    for axis in axes:
        parts |= {(*part, axis) for part in parts}
    return parts - {()}


@lru_cache(maxsize=16)
def partitions(size: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return all ways to split 0, ..., size - 1 into blocks.

    >>> partitions(2)
    (((0, 1),), ((0,), (1,)))
    """
    if size == 0:
        return ((),)
    last, made = size - 1, []
    for partition in partitions(last):
        made += [(*partition[:i], (*block, last), *partition[i + 1 :]) for i, block in enumerate(partition)]
        made.append((*partition, (last,)))
    return tuple(made)


@dataclass(frozen=True)
class ActivatedJet:
    """A jet after an activation, and its backward pass."""

    H: Tensor  # before the activation
    output: Tensor
    slopes: Sequence[Tensor]
    channels: Channels

    @staticmethod
    def of(H: Tensor, activation: Derivatives, channels: Channels) -> ActivatedJet:
        """Apply the activation; one slope more than the output needs is stored for the backward pass."""
        slopes = activation(H[0], channels.order + 1)
        output = torch.empty_like(H)
        output[0] = slopes[0]
        for position, terms in enumerate(channels.terms, start=1):
            output[position] = _sum([_product(H, slopes[k], indices) for k, indices in terms])
        return ActivatedJet(H, output, slopes, channels)

    def pull(self, G: Tensor) -> Tensor:
        """Convert the cotangent of the output to one of the input; extra axes may come first."""
        H, slopes = self.H, self.slopes
        out = torch.zeros_like(G)
        out[..., 0, :, :] = G[..., 0, :, :] * slopes[1]
        for position, terms in enumerate(self.channels.terms, start=1):
            g = G[..., position, :, :]
            for k, indices in terms:
                out[..., 0, :, :] += g * _product(H, slopes[k + 1], indices)
                repeats = {i: indices.count(i) for i in indices}
                for i, count in repeats.items():
                    rest = list(indices)
                    rest.remove(i)
                    out[..., i, :, :] += g * (count * _product(H, slopes[k], rest))
        return out


def _product(H: Tensor, factor: Tensor, indices: Sequence[int]) -> Tensor:
    for i in indices:
        factor = factor * H[i]
    return factor


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
