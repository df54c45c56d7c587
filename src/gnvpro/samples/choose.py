"""What a user's samples are: held in memory, or read again in every pass."""

from __future__ import annotations

from typing import Any

from gnvpro.samples.arrays import Arrays, holds_arrays_on_disk, is_on_disk
from gnvpro.samples.source import Samples


def as_stream(name: str, inputs: Any, targets: Any, weights: Any) -> Samples | None:
    """The source of samples that are not held; None where all are in memory."""
    if targets is None:
        raise TypeError(
            f"{name}targets must be a tensor or an array, got NoneType; only a Dataset or DataLoader has its own"
        )
    if holds_arrays_on_disk(inputs) or is_on_disk(targets) or is_on_disk(weights):
        return Arrays.of(f"{name}inputs", inputs, targets, weights)
    return None
