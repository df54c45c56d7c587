"""Choice between samples in memory and samples that are read again in every pass."""

from __future__ import annotations

from typing import Any

from gnvpro.samples.arrays import Arrays, holds_arrays_on_disk, is_on_disk
from gnvpro.samples.loaders import Loaded, is_loader
from gnvpro.samples.source import Samples


def as_stream(name: str, inputs: Any, targets: Any, weights: Any, same_samples: bool = True) -> Samples | None:
    """Return the source of samples that are not held in memory; None if all are in memory.

    `same_samples`: every pass must have the same samples.
    """
    if is_loader(inputs):
        if targets is not None or weights is not None:
            raise TypeError(
                f"{name}inputs is a {type(inputs).__name__}, which brings its own targets and weights; leave {name}targets "
                f"and {name}sample_weight out"
            )
        return Loaded.of(f"{name}inputs", inputs, same_samples)
    if targets is None:
        raise TypeError(
            f"{name}targets must be a tensor or an array, got NoneType; only a Dataset or DataLoader has its own"
        )
    if holds_arrays_on_disk(inputs) or is_on_disk(targets) or is_on_disk(weights):
        return Arrays.of(f"{name}inputs", inputs, targets, weights)
    return None
