"""The linearisation of many samples, by chunks: kept where memory allows, made again at every pass where it does not.

A budget of M bytes goes to the chunk that a pass is at, up to a quarter of it, and to chunks that stay linearised:

    chunk   samples   <=  M / 4 / (peak bytes a sample)
    kept    chunks    <=  (M - that chunk) / (bytes that a linearised chunk holds)

Whether a chunk is kept changes no bit of any result, only the seconds. Its size changes the order of sums, so results
change by rounding error. Both bytes a sample are measured: see `gnvpro.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnvpro.network.derivatives.protocol import FeatureLinearization, Rows
from gnvpro.network.memory import Footprint
from gnvpro.linalg.columns import stack_rows


def samples_at_once(memory: float, footprint: Footprint) -> float:
    """Samples a chunk may have; never less than one, however large that is."""
    return max(1.0, memory / 4 / footprint.peak) if footprint.peak else float("inf")


def chunks_kept(memory: float, footprint: Footprint, samples: int) -> float:
    """Chunks of that many samples which may stay linearised beside the one in work."""
    room = memory - samples * footprint.peak
    return max(0.0, room // (samples * footprint.held)) if footprint.held else float("inf")


@dataclass
class Chunks:
    """Linearisations of chunks of samples."""

    make: Callable[[Tensor], FeatureLinearization]
    inputs: Sequence[Tensor]
    keep: float  # how many of the chunks, the first ones
    made_again: Callable[[int], None]  # is told of samples that were linearised once more
    _kept: dict[int, FeatureLinearization] = field(default_factory=dict)

    def features(self) -> list[Tensor]:
        """Linearise all chunks for the first time."""
        # A copy, since features may be a view of something larger that is not to be kept.
        return [self._keep(i, self.make(part)).features.clone() for i, part in enumerate(self.inputs)]

    def _keep(self, i: int, part: FeatureLinearization) -> FeatureLinearization:
        if i < self.keep:
            self._kept[i] = part
        return part

    def part(self, i: int) -> FeatureLinearization:
        """The linearisation of a chunk."""
        if i in self._kept:
            return self._kept[i]
        self.made_again(self.inputs[i].shape[0])
        return self._keep(i, self.make(self.inputs[i]))

    def forget(self) -> None:
        """Keep nothing until asked again."""
        self._kept.clear()


def linearize_chunks(chunks: Chunks, count: Callable[[int], None], dtype: torch.dtype) -> FeatureLinearization:
    """The linearisation of all samples from those of its chunks; `count` is told the number of passes of each use.

    Work counts the passes that the method asks for, so it is the same for every budget of memory: to linearise a chunk
    again, for want of memory, is not among them. What that costs is told by the seconds.
    """
    features = chunks.features()
    rows = [len(part) for part in features]
    n = range(len(rows))

    def jvp(d_theta: Tensor) -> Tensor:
        count(1)
        return stack_rows([chunks.part(i).jvp(d_theta) for i in n]).to(torch.float64)

    def vjp(d_features: Tensor) -> Tensor:
        count(1)
        pieces = d_features.to(dtype).split(rows)
        total = chunks.part(0).vjp(pieces[0])
        for i in n[1:]:
            total = total + chunks.part(i).vjp(pieces[i])
        return total

    def jacobian(seeds: Tensor) -> Iterator[tuple[slice, Rows]]:
        count(seeds.shape[0])
        start = 0
        for i in n:
            here = slice(start, start + rows[i])
            for _, jacobians in chunks.part(i).jacobian(seeds[:, here].to(dtype)):
                yield here, jacobians
                del jacobians  # before the next ones are made
            start = here.stop

    return FeatureLinearization(stack_rows(features), jvp, vjp, jacobian, chunks.forget)
