"""Sources of samples outside memory.

    Samples     first(count), chunks(rows), take(indices)      arrays on disk (`arrays`), Datasets and DataLoaders (`loaders`)
    Part        some samples in raw form: inputs, and targets and weights if there are any

A method that minimises one fixed function needs the same samples in every pass, in any order. Each pass adds up a
`SampleDigest`, which changes if a sample is lost, drawn twice or changed (turned, cropped, with noise added), or if a
target goes to another sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gnvpro.samples.several import joined


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
    return Part(*(joined([vars(part)[name] for part in parts]) for name in ("inputs", "targets", "weights")))


def rechunked(parts: Iterator[Part], rows: int) -> Iterator[Part]:
    """Join and cut parts so that each holds the same number of samples, the last one perhaps fewer."""
    waiting: list[Part] = []
    count = 0  # samples in `waiting`; counting them again for every part would take quadratic time
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
        """Return the first few samples, or all if there are fewer."""

    def chunks(self, rows: int) -> Iterator[Part]:
        """Yield one pass over all samples, in chunks of this size."""

    def take(self, indices: Tensor) -> Part:
        """The samples of these numbers, in this order."""

    @property
    def expected(self) -> float:
        """Samples that a pass should find; infinite if that is not known before a pass."""

    @property
    def takes_fast(self) -> bool:
        """Return whether samples with arbitrary numbers are read about as fast as a slice."""


class ChangingSamples(ValueError):
    """Two passes over a source have different samples."""

    def __init__(self, name: str, trouble: str) -> None:
        super().__init__(
            f"two passes over {name} differ: {trouble}; training by this method needs the same samples in every pass: leave "
            "out what is random (augmentation, sampling with replacement), or use a method on random batches, such as "
            "method='adam-vpro'"
        )
