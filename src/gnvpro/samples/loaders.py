"""Samples of torch: a Dataset, or a DataLoader, of (inputs, targets) or (inputs, targets, weights).

A Dataset is read in its own order. A DataLoader gives its own batches, in its own order and by its own workers; they are put
together to the chunks of a pass, so their size changes nothing. A method that means the same function at every call needs
every sample in every pass: a loader that shuffles or drops its last batch is refused for it, one that changes its samples is
found out by the second pass (`gnvpro.samples.source`). Stochastic methods take a loader as it is, with its own batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate

from gnvpro.samples.several import Several
from gnvpro.samples.source import Part, rechunked

READ_TOGETHER = 1000  # samples of a Dataset


def is_loader(value: Any) -> bool:
    """Whether it brings its own targets."""
    return isinstance(value, Dataset | DataLoader)


@dataclass(frozen=True, eq=False)
class Loaded:
    """Samples from a Dataset or a DataLoader."""

    name: str
    loader: Any  # a DataLoader, whose batches are taken as they come
    own_batches: bool  # whether stochastic methods should take its batches, or draw their own

    @staticmethod
    def of(name: str, given: Any, same_samples: bool) -> Loaded:
        """From what the user gave; a loader whose passes are meant to differ is refused where they must not."""
        if isinstance(given, DataLoader):
            trouble = _why_passes_differ(given)
            if same_samples and trouble is not None:
                raise ValueError(
                    f"{name}: the DataLoader {trouble}, and this method needs every sample in every pass; give it without, or "
                    "use a stochastic method, such as method='adam', which takes a loader as it is"
                )
            return Loaded(name, given, own_batches=True)
        return Loaded(name, DataLoader(given, batch_size=READ_TOGETHER), own_batches=False)

    @property
    def expected(self) -> float:
        """Samples in a pass; infinite if the Dataset does not say."""
        dataset = self.loader.dataset
        return math.inf if isinstance(dataset, IterableDataset) else len(dataset)

    def first(self, count: int) -> Part:
        """The first few samples."""
        return next(self.chunks(count))

    def batches(self) -> Iterator[Part]:
        """One pass, in the loader's own batches."""
        some = False
        for batch in self.loader:
            some = True
            yield self._part(batch)
        if not some:
            raise ValueError(f"{self.name} is empty: it has no samples")

    def chunks(self, rows: int) -> Iterator[Part]:
        """One pass over all samples, so many at a time."""
        return rechunked(self.batches(), rows)

    def take(self, indices: Tensor) -> Part:
        """The samples of these numbers, where the loader goes by the order of its Dataset."""
        loader = self.loader
        if isinstance(loader.dataset, IterableDataset) or not isinstance(loader.sampler, SequentialSampler):
            raise ValueError(
                f"{self.name}: this method draws samples by their number, and the DataLoader has them in an order of its own; "
                "give the Dataset itself, or arrays"
            )
        collate = loader.collate_fn if loader.batch_size is not None else default_collate
        return self._part(collate([loader.dataset[i] for i in indices.tolist()]))

    @property
    def takes_fast(self) -> bool:
        """Of a Dataset, which gives sample by sample anyway; a loader's workers are there for its own batches."""
        return not (self.own_batches or isinstance(self.loader.dataset, IterableDataset))

    def _part(self, batch: Any) -> Part:
        if not isinstance(batch, list | tuple) or len(batch) not in (2, 3):
            what = f"{len(batch)} things" if isinstance(batch, list | tuple) else type(batch).__name__
            raise TypeError(
                f"{self.name}: a loader must give (inputs, targets) or (inputs, targets, weights), got {what}"
            )
        inputs, *others = batch
        if isinstance(inputs, Mapping):
            inputs = Several((), {key: self._tensor(value) for key, value in inputs.items()})
        elif isinstance(inputs, list | tuple):
            inputs = Several(tuple(map(self._tensor, inputs)))
        else:
            inputs = self._tensor(inputs)
        part = Part(inputs, *map(self._tensor, others))
        if any(each is not None and len(each) != len(part) for each in (part.targets, part.weights)):
            raise ValueError(
                f"{self.name}: a batch has {len(part)} inputs and {len(batch[1])} targets; they must agree"
            )
        return part

    def _tensor(self, value: Any) -> Tensor:
        try:
            tensor = torch.as_tensor(value).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{self.name}: a loader must give tensors, got {type(value).__name__} ({error})") from None
        if tensor.ndim == 0:
            raise ValueError(f"{self.name}: a loader must give batches, samples first, got a single number")
        return tensor


def _why_passes_differ(loader: Any) -> str | None:
    """What shows without a pass."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    if not isinstance(loader.sampler, SequentialSampler):
        return (
            f"does not go by the order of its Dataset (shuffle=True, or a {type(loader.sampler).__name__} of its own)"
        )
    dropped = len(loader.dataset) % loader.batch_size if loader.drop_last and loader.batch_size else 0
    return f"drops its last batch, {dropped} samples (drop_last=True)" if dropped else None
