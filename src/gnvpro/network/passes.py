"""Passes over many samples in chunks. Linearised chunks are kept if memory allows, else computed again in every pass.

A budget of M bytes goes to the current chunk of a pass, up to a quarter of it, and to chunks that stay linearised:

    size   samples   <=  M / 4 / (peak bytes per sample)
    kept   chunks    <=  (M - that chunk) / (bytes that a linearised chunk holds)

Keeping a chunk changes no bit of any result, only the time. Its size changes the order of sums, so results
change by rounding error: a `PassPlan` is decided once for a problem and its solver, and handed down. Both numbers of bytes
are measured: see `gnvpro.network.memory`. Samples outside memory (`gnvpro.samples`) come in smaller chunks, none of which
is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gnvpro.linalg.columns import stack_rows
from gnvpro.linalg.rows import Rows as LazyRows
from gnvpro.linalg.rows import rowwise
from gnvpro.linalg.sums import SampleSum
from gnvpro.network.derivatives.linearization import FeatureLinearization, Rows
from gnvpro.network.memory import Footprint
from gnvpro.network.theta_and_head import ThetaAndHead
from gnvpro.network.work import WorkMeter
from gnvpro.samples.several import Batch, Inputs, Streamed, entries_per_sample, tensors_of

CACHED_NUMBERS = 300_000  # image entries in a chunk, such that activations stay within reach of the cache
# bytes per chunk of samples outside memory: larger chunks leave the cache and are no faster
STREAMED_BYTES = 10_000_000


@dataclass(frozen=True)
class PassPlan:
    """The chunks of the passes over the samples."""

    size: int  # samples per chunk
    kept: float = inf  # chunks that stay linearised, the first ones

    @staticmethod
    def within(memory: float, footprint: Footprint, inputs: Inputs, most: float = inf) -> PassPlan:
        """Return chunks that fit into a number of bytes, of at most `most` samples; a chunk has at least one sample.

        A hundred CIFAR images at a time take a fifth to a third less time than a thousand, and a third of the memory.
        """
        if max(map(torch.Tensor.dim, tensors_of(inputs))) > 2:
            most = min(most, max(1, CACHED_NUMBERS // max(1, entries_per_sample(inputs))))
        if isinstance(inputs, Streamed):
            most = min(most, max(1, STREAMED_BYTES // max(1, footprint.peak)))
        fits = max(1.0, memory / 4 / footprint.peak) if footprint.peak else inf
        size = int(max(1, min(len(inputs), most, fits)))
        if isinstance(inputs, Streamed):
            return PassPlan(size, 0.0)
        room = memory - size * footprint.peak
        kept = max(0.0, room // (size * footprint.held)) if footprint.held else inf
        return PassPlan(size, kept)


def chunks_of(inputs: Batch, passes: PassPlan) -> list[Any]:
    """Yield the samples in chunks; nothing without samples."""
    return list(inputs.split(passes.size)) if len(inputs) else []


@dataclass
class Chunks:
    """Linearisations of chunks of samples."""

    make: Callable[[Any], FeatureLinearization]
    inputs: Sequence[Batch]
    most: float  # number of kept chunks, the first ones
    meter: WorkMeter
    kept: dict[int, FeatureLinearization] = field(default_factory=dict)

    def part(self, i: int) -> FeatureLinearization:
        """The linearisation of a chunk."""
        if i in self.kept:
            return self.kept[i]
        self.meter.made_again += len(self.inputs[i])
        part = self.make(self.inputs[i])
        if i < self.most:
            self.kept[i] = part
        return part


def linearize_stream(
    make: Callable[[Any], FeatureLinearization],
    run: Callable[[Any], Tensor],
    shape: tuple[int, int],
    samples: Streamed,
    meter: WorkMeter,
    over: SampleSum,
    dtype: torch.dtype,
) -> FeatureLinearization:
    """The linearisation of samples that are not held: every pass makes what it needs of each chunk again."""
    n, device = over.count(len(samples)), samples.device
    linear = LazyRows(lambda chunk: make(chunk.data.inputs), shape, device)
    # if nothing else is needed, a forward pass alone
    features = LazyRows(
        lambda chunk: linear.on(chunk).features if linear in chunk.known else run(chunk.data.inputs), shape, device
    )
    meter.count(n)

    def jvp(d_theta: Tensor) -> Any:
        meter.count(n)
        return rowwise(lambda part: part.jvp(d_theta).to(torch.float64), linear)

    def vjp(d_features: Any) -> Tensor:
        begun = perf_counter()
        total = over.sum(lambda part, d: part.vjp(d.to(dtype)), linear, d_features)
        meter.timed("vjp", n, perf_counter() - begun)
        meter.made_again += n
        return total

    def jacobian(seeds: Tensor) -> Iterator[tuple[slice, Rows]]:
        raise AssertionError("rows of the Jacobian are made chunk by chunk: see FeatureLinearization.parts")

    return FeatureLinearization(features, jvp, vjp, jacobian, parts=linear)  # type: ignore[arg-type]  # rows of features


def linearize_chunks(chunks: Chunks, over: SampleSum, parameters: ThetaAndHead) -> FeatureLinearization:
    """The linearisation of all samples, from the linearisations of its chunks.

    Work counts the passes that the method needs, so it is the same for every memory budget. Linearising a chunk
    again for lack of memory does not count as work; it only takes time.
    """
    here = sum(map(len, chunks.inputs))
    samples = here if over.samples is None else over.samples
    begun = perf_counter()
    features = []
    for i, inputs in enumerate(chunks.inputs):
        part = chunks.make(inputs)
        if i < chunks.most:
            chunks.kept[i] = part
        # A copy, since features may be a view of something larger that is not to be kept.
        features.append(part.features.clone())
        del part
    chunks.meter.timed("forward", samples, perf_counter() - begun)
    rows = [*map(len, features)]
    n = range(len(rows))

    def jvp(d_theta: Tensor) -> Tensor:
        begun = perf_counter()
        d_features = stack_rows([chunks.part(i).jvp(d_theta) for i in n] or [parameters.no_features()])
        chunks.meter.timed("jvp", samples, perf_counter() - begun)
        return d_features.to(torch.float64)

    def vjp(d_features: Tensor) -> Tensor:
        begun = perf_counter()
        pieces = d_features.to(parameters.dtype).split(rows)
        total = chunks.part(0).vjp(pieces[0]) if rows else torch.zeros_like(parameters.theta())
        for i in n[1:]:
            total = total + chunks.part(i).vjp(pieces[i])
        chunks.meter.timed("vjp", samples, perf_counter() - begun)
        return over.total(total)

    def jacobian(seeds: Tensor) -> Iterator[tuple[slice, Rows]]:
        chunks.meter.count(samples, seeds.shape[0])
        start = 0
        for i in n:
            here = slice(start, start + rows[i])
            for _, jacobians in chunks.part(i).jacobian(seeds[:, here].to(parameters.dtype)):
                yield here, jacobians
                del jacobians  # before the next ones are made
            start = here.stop

    every = features[0] if len(features) == 1 else stack_rows(features or [parameters.no_features()])
    return FeatureLinearization(every, jvp, vjp, jacobian, chunks.kept.clear)
