"""Where samples come from when they are not held in memory: the protocol, and what two passes over it must agree on.

    Samples     first(count), chunks(rows), take(indices)      arrays on disk (`arrays`), Datasets and DataLoaders (`loaders`)
    Part        some samples as they come: inputs, and targets and weights where there are any
    Checksum    sums over a pass that do not depend on the order of the samples or the size of the chunks

A method that means the same function at every call needs the same samples in every pass. Each pass therefore adds up

    s = sum_n r'x_n,   t = sum_n q'y_n,   sum_n r'x_n q'y_n,   sum_n r'x_n w_n

with fixed random vectors r and q: a sample that is lost, drawn twice or changed (turned, cropped, with noise added) changes
them, and so does a target that goes to another sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from gnvpro.samples.several import joined, tensors_of

AGREEMENT = 1e3 * torch.finfo(torch.float64).eps  # of two sums of the same numbers in another order


@dataclass(frozen=True)
class Part:
    """Some samples."""

    inputs: Any  # a tensor, or `Several`
    targets: Tensor | None = None
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Part:
        """On a device."""
        inputs = self.inputs.to(device) if isinstance(self.inputs, Tensor) else self.inputs.map(lambda t: t.to(device))
        return Part(inputs, *(None if each is None else each.to(device) for each in (self.targets, self.weights)))

    def __getitem__(self, samples: Any) -> Part:
        chosen = (None if each is None else each[samples] for each in (self.targets, self.weights))
        return Part(self.inputs[samples], *chosen)


def stacked(parts: list[Part]) -> Part:
    """Parts one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Part(*(joined([getattr(part, name) for part in parts]) for name in ("inputs", "targets", "weights")))


def rechunked(parts: Iterator[Part], rows: int) -> Iterator[Part]:
    """Join and cut parts so that each holds the same number of samples, the last one perhaps fewer."""
    waiting: list[Part] = []
    count = 0  # samples in `waiting`: adding them up again for every part takes quadratic time
    for part in parts:
        waiting.append(part)
        count += len(part)
        if count < rows:
            continue
        whole = stacked(waiting)
        full = count - count % rows
        for start in range(0, full, rows):
            yield whole[start : start + rows]
        waiting, count = ([whole[full:]], count - full) if full < count else ([], 0)
    if waiting:
        yield stacked(waiting)


class Samples(Protocol):
    """Samples that can be gone through any number of times; the first pass counts them."""

    def first(self, count: int) -> Part:
        """The first few, or all where there are fewer."""

    def chunks(self, rows: int) -> Iterator[Part]:
        """One pass over all samples, so many at a time."""

    def take(self, indices: Tensor) -> Part:
        """The samples of these numbers, in this order."""

    @property
    def expected(self) -> float:
        """Samples that a pass should find; infinite if that is not known before a pass."""

    @property
    def takes_fast(self) -> bool:
        """Whether samples of any numbers are read about as fast as those of a slice."""


@dataclass(frozen=True)
class Checksum:
    """Sums over the samples of a pass."""

    count: int = 0
    sums: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()  # the same of absolute values: what rounding errors are relative to

    @staticmethod
    def of(part: Part) -> Checksum:
        """Of some samples."""
        x = torch.stack([_project(tensor, k) for k, tensor in enumerate(tensors_of(part.inputs))]).sum(0)
        values = [x]
        for seed, other in ((101, part.targets), (102, part.weights)):
            if other is not None:
                y = _project(other, seed)
                values += [y, x * y]
        every = torch.stack(values)
        return Checksum(len(part), tuple(every.sum(1).tolist()), tuple(every.abs().sum(1).tolist()))

    def __add__(self, other: Checksum) -> Checksum:
        if not self.sums:
            return other
        added = [
            tuple(map(sum, zip(a, b, strict=True))) for a, b in ((self.sums, other.sums), (self.sizes, other.sizes))
        ]
        return Checksum(self.count + other.count, *added)

    def differs(self, other: Checksum) -> str | None:
        """What another pass has that this one has not; None where they agree."""
        if self.count != other.count:
            return f"{self.count} samples, then {other.count}"
        close = all(
            abs(a - b) <= AGREEMENT * size for a, b, size in zip(self.sums, other.sums, self.sizes, strict=True)
        )
        return None if close else f"{self.count} samples each, with other content"


def _project(tensor: Tensor, seed: int) -> Tensor:
    """One number per sample."""
    flat = tensor.reshape(len(tensor), -1).to(torch.float64).nan_to_num()
    return flat @ _direction(flat.shape[1], seed).to(flat.device)


@lru_cache(maxsize=16)
def _direction(size: int, seed: int) -> Tensor:
    return torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(1 + seed)) + 0.5
