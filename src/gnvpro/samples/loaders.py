"""Samples of torch: a Dataset, or a DataLoader, of (inputs, targets) or (inputs, targets, weights).

A Dataset is read in its own order. A DataLoader gives its own batches, which are put together to the chunks of a pass, so
their size changes nothing.

A method that means the same function at every call needs every sample in every pass, in any order. For it a loader that
shuffles, or drops its last batch, is read in the order of its Dataset, by the loader's own collate function and workers. Other
samplers, batch samplers and IterableDatasets are read in their own order; passes that differ raise an error
(`gnvpro.samples.source`). Stochastic methods take every loader with its own batches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from gnvpro.samples.sample_digest import SampleDigest
from gnvpro.samples.several import Several
from gnvpro.samples.source import Part, rechunked

READ_TOGETHER = 1000  # samples of a Dataset read at once


def is_loader(value: Any) -> bool:
    """Return whether this source includes targets."""
    return isinstance(value, Dataset | DataLoader)


@dataclass(frozen=True, eq=False)
class Loaded:
    """Samples from a Dataset or a DataLoader."""

    name: str
    loader: Any  # a DataLoader, read batch by batch
    own_batches: bool  # whether stochastic methods should take its batches, or draw their own

    @staticmethod
    def of(name: str, given: Any, same_samples: bool) -> Loaded:
        """Wrap the user's source; with `same_samples`, read a shuffling loader in the order of its Dataset."""
        if isinstance(given, DataLoader):
            given = _in_order(given) if same_samples else given
            return Loaded(name, given, own_batches=True)
        return Loaded(name, DataLoader(given, batch_size=READ_TOGETHER), own_batches=False)

    @property
    def expected(self) -> float:
        """Samples in a pass; infinite if the Dataset does not say."""
        dataset = self.loader.dataset
        return math.inf if isinstance(dataset, IterableDataset) else len(dataset)

    def warn_of_count(self, seen: int) -> None:
        """Warn if a whole pass gave another number of samples than the Dataset says that it has."""
        try:
            said = len(self.loader.dataset)
        except (TypeError, NotImplementedError):  # it does not say
            return
        left_out = (self.loader.batch_size or 1) - 1 if self.loader.drop_last else 0
        if not said - left_out <= seen <= said and isinstance(self.loader.dataset, IterableDataset):
            warnings.warn(
                f"{self.name}: the Dataset says that it has {said} samples, but a pass gives {seen}: trained on these; correct "
                "its __len__, or what it yields",
                UserWarning,
                stacklevel=2,
            )

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
        """Yield one pass over all samples, in chunks of this size."""
        return rechunked(self.batches(), rows)

    def take(self, indices: Tensor) -> Part:
        """Return the samples of these numbers, if the loader goes by the order of its Dataset."""
        if not self.in_order:
            raise ValueError(
                f"{self.name}: this method draws samples by their number, and the DataLoader has them in an order of its own; "
                "give the Dataset itself, or arrays"
            )
        return self._collated(indices.tolist())

    def changes(self, few: int) -> bool:
        """Return whether the first samples of the Dataset differ when read again; False if they have no numbers."""
        if isinstance(self.loader.dataset, IterableDataset):
            return False
        numbers, single = list(range(min(few, len(self.loader.dataset)))), self.loader.batch_sampler is None
        digests = [SampleDigest(), SampleDigest()]
        for digest in digests if numbers else []:
            digest.add(self._part(self.loader.dataset[0]) if single else self._collated(numbers))
        return digests[0].differs(digests[1]) is not None

    def _collated(self, numbers: list[int]) -> Part:
        loader = self.loader
        grouped = loader.batch_sampler is not None
        collate = loader.collate_fn if grouped else default_collate
        return self._part(collate([loader.dataset[i] for i in numbers]))

    def tensors(self) -> Part | None:
        """Return all samples of a TensorDataset, which need not be read one by one."""
        loader = self.loader
        plain = type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate
        return self._part(list(loader.dataset.tensors)) if plain and self.in_order and len(loader.dataset) else None

    @property
    def in_order(self) -> bool:
        """Return whether the loader follows the order of its Dataset."""
        loader = self.loader
        return not isinstance(loader.dataset, IterableDataset) and type(_sampler(loader)) is SequentialSampler

    @property
    def takes_fast(self) -> bool:
        """Read from the Dataset, sample by sample; a loader's workers only read its own batches."""
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


def _sampler(loader: Any) -> Any:
    """Return what decides the order of the samples; None if that is a batch sampler of the user's own."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else None


def _in_order(loader: Any) -> Any:
    """Return a loader of the same samples in the order of the Dataset, or the given one if its order is its own matter."""
    if isinstance(loader.dataset, IterableDataset):
        return loader
    sampler, drops = _sampler(loader), loader.drop_last
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(loader.dataset)
    if not shuffles and not (drops and type(sampler) is SequentialSampler):
        return loader
    workers = {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        **(workers if loader.num_workers else {}),
    )
