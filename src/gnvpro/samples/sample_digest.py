"""A hash of samples that depends neither on their order nor on which process holds which.

A checkpoint compares it to refuse other data, and two passes over a loader must agree in it.

    h(sample)  =  mix(sum_j c_j x_j)          x_j the 64-bit words of its bytes, c_j fixed odd numbers, modulo 2^64
    hash       =  sum over the samples of h

Inputs, targets and weights have a hash each, so that a message can name what differs, and one together, which changes
where a target goes to another sample. Weights are hashed in single precision: they are divided by their sum, whose last
bits depend on the order in which it was added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnvpro.processes import Processes
from gnvpro.samples.several import tensors_of
from gnvpro.samples.source import Part

Words = NDArray[np.uint64]
WORDS = 1_000_000  # at a time
PARTS = ("inputs", "targets", "sample_weight", "targets of the inputs")


class SampleDigest:
    """Adds up the hashes of samples in any order."""

    def __init__(self) -> None:
        self.count, self.kinds = 0, dict.fromkeys(PARTS, "")
        self.sums = dict.fromkeys(PARTS, 0)

    def add(self, part: Part) -> None:
        """Add some samples as a source gives them."""
        self.update(tensors_of(part.inputs), part.targets, part.weights)

    def update(self, inputs: Sequence[Tensor], targets: Tensor | None, weights: Tensor | None) -> None:
        """Add some samples; targets and weights may have several rows for each."""
        samples = len(inputs[0])
        singles = [] if weights is None else [weights.to(torch.float32)]
        parts = dict(zip(PARTS, (list(inputs), [] if targets is None else [targets], singles), strict=False))
        together = np.zeros(samples, dtype=np.uint64)
        for i, (name, tensors) in enumerate(parts.items()):
            hashes = _hashes(tensors, samples)
            self.kinds[name] = ", ".join(f"{tuple(t.shape[1:])} {t.dtype}" for t in tensors)
            self.sums[name] += int(hashes.sum(dtype=np.uint64))
            together += hashes * _factors(len(PARTS))[i]
        self.sums[PARTS[-1]] += int(_mixed(together).sum(dtype=np.uint64))
        self.count += samples

    def differs(self, other: SampleDigest) -> str | None:
        """Return what another pass has that this one has not; None if they agree."""
        if self.count != other.count:
            return f"{self.count} samples, then {other.count}"
        same = all((self.sums[name] - other.sums[name]) % 2**64 == 0 for name in PARTS)
        return None if same else f"{self.count} samples each, with other content"

    def texts(self, processes: Processes) -> dict[str, str]:
        """The hashes of the samples of all processes, by name."""
        halves = [half for name in PARTS for half in divmod(self.sums[name] % 2**64, 2**32)]
        total = [int(number) for number in processes.gather([self.count, *halves]).sum(0)]
        sums = (high * 2**32 + low for high, low in zip(total[1::2], total[2::2], strict=True))
        return {
            name: f"{total[0]} samples {self.kinds[name]} {value % 2**64:016x}"
            for name, value in zip(PARTS, sums, strict=True)
        }


def _hashes(tensors: Sequence[Tensor], samples: int) -> Words:
    """A hash of each sample."""
    total = np.zeros(samples, dtype=np.uint64)
    for tensor in tensors:
        row_bytes = tensor.numel() // max(samples, 1) * tensor.element_size()
        words = -(-row_bytes // 8)
        size = max(1, WORDS // max(words, 1))
        each = tensor.shape[0] // max(samples, 1)  # rows of a sample
        for start in range(0, samples, size):
            stop = min(start + size, samples)
            part = tensor[start * each : stop * each].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            padded = np.zeros((stop - start, 8 * words), dtype=np.uint8)
            padded[:, :row_bytes] = part.numpy().reshape(stop - start, row_bytes)
            total[start:stop] += padded.view(np.uint64) @ _factors(words)
        total = _mixed(total)
    return total


@lru_cache(maxsize=16)
def _factors(count: int) -> Words:
    return np.random.default_rng(16).integers(2**63, size=count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _mixed(x: Words) -> Words:
    """Sebastiano Vigna's splitmix64: sums of its results carry no information on sums of x."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
