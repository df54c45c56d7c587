"""Samples of a Dataset or DataLoader that are read once and held as tensors, if they are few."""

from __future__ import annotations

from gnvpro.samples.loaders import Loaded
from gnvpro.samples.sample_digest import SampleDigest
from gnvpro.samples.several import tensors_of
from gnvpro.samples.source import ChangingSamples, Part, Samples, stacked

FEW = 4  # samples that are measured to find the bytes of each


def held(source: Samples, most: float) -> Part | None:
    """Return all samples of a loader; None if they take more than `most` bytes, or are arrays on disk.

    A second pass checks that the samples stay the same, except those of a TensorDataset, which do.
    """
    if not isinstance(source, Loaded):
        return None
    few = source.first(FEW)
    if bytes_of(few) / max(len(few), 1) * (source.expected if source.expected < float("inf") else 1.0) > most:
        return None
    if (whole := source.tensors()) is not None:
        return whole
    parts, taken, digest = [], 0.0, SampleDigest()
    for part in source.batches():
        parts.append(part)
        taken += bytes_of(part)
        if taken > most:
            return None
        digest.add(part)
    again = SampleDigest()
    for part in source.batches():
        again.add(part)
    if (trouble := digest.differs(again)) is not None:
        raise ChangingSamples(source.name, trouble)
    whole = stacked(parts)
    source.warn_of_count(len(whole))
    return whole


def bytes_of(part: Part) -> float:
    """Bytes of some samples: inputs in their dtype, targets and weights in float64."""
    numbers = sum(each.numel() for each in (part.targets, part.weights) if each is not None)
    return 8 * numbers + sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(part.inputs))
