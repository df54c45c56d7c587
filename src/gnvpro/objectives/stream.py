"""Samples outside memory: checked once, then prepared chunk by chunk in every pass.

    raw source  ->  inputs in the model's dtype, target rows in the loss's form, weights that sum to one

The first pass checks every sample, counts, and adds up the weights. Every later pass must have the same count and content, in
any order (see `gnvpro.samples.source`). Samples of weight zero are left out of the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.linalg.columns import by_columns
from gnvpro.linalg.rows import Chunk, Rows
from gnvpro.linalg.sums import ChunkedSum, SampleSum
from gnvpro.network.separable import SeparableNetwork
from gnvpro.objectives.problem_arguments import check_inputs, check_targets, check_weights
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit
from gnvpro.samples.loaders import Loaded
from gnvpro.samples.sample_digest import SampleDigest
from gnvpro.samples.several import Batch, Streamed
from gnvpro.samples.source import ChangingSamples, Part, Samples

FEW = 4  # samples on which a model is tried
CHECKED_ROWS = 10_000  # samples per chunk of the first pass


@dataclass(frozen=True)
class Prepared:
    """Samples in the form that formulas need."""

    inputs: Batch
    targets: Tensor  # (rows, n_targets)
    weights: Tensor  # (rows, 1)


@dataclass(frozen=True, eq=False)
class Stream(Streamed):
    """Samples outside memory."""

    name: str  # prefix of messages: "" or "validation "
    source: Samples
    model: nn.Module
    few: Batch
    given_weights: int  # columns of weights; zero if all samples count the same
    same_samples: bool  # whether every pass must return the same samples
    checked: Checked | None = None

    @staticmethod
    def of(name: str, source: Samples, model: nn.Module, same_samples: bool = True) -> Stream:
        """Return an unchecked stream, sufficient to try the model."""
        few = source.first(FEW).to(device_of(model))
        inputs = check_inputs(f"{name}inputs", few.inputs, model)
        columns = 0 if few.weights is None else few.weights.shape[1] if few.weights.ndim == 2 else 1
        return Stream(name, source, model, inputs, columns, same_samples or not isinstance(source, Loaded))

    @property
    def weighted(self) -> bool:
        """Return whether samples differ in weight."""
        return self.given_weights > 0

    @property
    def weight_columns(self) -> int:
        """Return one, or the number of outputs if entries differ in weight."""
        return max(1, self.given_weights)

    def __len__(self) -> int:
        return self._known.count

    @property
    def expected(self) -> float:
        """Samples before counting; infinite if the source does not know."""
        return self.source.expected

    @property
    def takes_fast(self) -> bool:
        """Return whether batches can be drawn by number without reading much more than these batches."""
        return self.source.takes_fast

    @property
    def own_batch_size(self) -> int | None:
        """Number of samples in a batch of the user's own loader; None if batches are drawn from all samples."""
        if not isinstance(self.source, Loaded) or not self.source.own_batches:
            return None
        return self.source.loader.batch_size or FEW

    # -- the first pass

    def check(self, network: SeparableNetwork, loss: Loss) -> Stream:
        """Check every sample; raise ValueError for an unusable one."""
        total, digest, kept, seen = 0.0, SampleDigest(), [], 0
        for part in self._parts(CHECKED_ROWS):
            inputs = self._inputs(part, seen)
            weights = check_weights(f"{self.name}sample_weight", part.weights, inputs, seen)
            self._targets(part, inputs, network, loss, seen)
            if weights is not None:
                total += float(weights.sum()) * len(weights) / weights.numel()
                kept.append(_has_weight(weights))
            digest.add(part)
            seen += len(part)
        if not seen:
            raise ValueError(f"{self.name}inputs is empty: it has no samples")
        if isinstance(self.source, Loaded):
            self.source.warn_of_count(seen)
        if kept and not total > 0:
            raise ValueError(f"{self.name}sample_weight is zero for every sample: there is nothing to train on")
        positive = torch.cat(kept).nonzero()[:, 0].cpu() if kept else None
        if positive is not None and len(positive) == seen:
            positive = None
        count = seen if positive is None else len(positive)
        return replace(self, checked=Checked(network, loss, digest, count, count, total, positive))

    @property
    def observed(self) -> float:
        """Number of observations: rows in this process, or the sum of their weights."""
        known = self._known
        return known.rows * (known.weight if self.weighted else known.count)

    def shared(self, over: SampleSum) -> Stream:
        """Include the samples of other processes: weights then sum to one over all of them."""
        known = self._known
        weight = float(over.total(torch.tensor(known.weight, dtype=torch.float64)))
        return replace(self, checked=replace(known, everywhere=over.count(known.count), weight=weight))

    def _parts(self, size: int) -> Iterator[Part]:
        device = device_of(self.model)
        return (part.to(device) for part in self.source.chunks(size))

    def _inputs(self, part: Part, first: int) -> Batch:
        return check_inputs(f"{self.name}inputs", part.inputs, self.model, first=first)

    def _targets(self, part: Part, inputs: Batch, network: SeparableNetwork, loss: Loss, first: int) -> Tensor:
        return check_targets(f"{self.name}targets", part.targets, inputs, network, loss, first, part.weights)

    # -- later passes

    @property
    def _known(self) -> Checked:
        assert self.checked is not None, "the stream is not checked yet"
        return self.checked

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield one pass over all samples that have weight; raise at its end if they differ from the first pass."""
        known, digest = self._known, SampleDigest()
        for part in self._parts(size):
            if self.same_samples:
                digest.add(part)
            if known.positive is not None:
                assert part.weights is not None
                part = part[_has_weight(part.weights)]
            if len(part):
                yield Chunk(self._prepared(part))
        trouble = known.digest.differs(digest) if self.same_samples else None
        if trouble is not None:
            raise ChangingSamples(f"{self.name}inputs", trouble)

    def _prepared(self, part: Part) -> Prepared:
        known = self._known
        # no sample of a batch may be in this process
        inputs = check_inputs(f"{self.name}inputs", part.inputs, self.model, may_be_empty=True, finite=False)
        targets = self._targets(part, inputs, known.network, known.loss, 0)
        each = known.rows  # rows per sample
        if part.weights is None:
            share = 1.0 / (known.everywhere * each)
            weights = torch.full((targets.shape[0], 1), share, dtype=torch.float64, device=targets.device)
        else:
            shares = part.weights.to(targets.device, torch.float64) / known.weight / each
            weights = by_columns(shares if shares.ndim == 2 else shares.repeat_interleave(each)[:, None])
        return Prepared(inputs, by_columns(targets), weights)

    def take(self, samples: Tensor) -> Prepared:
        """Read some of the samples into memory."""
        positive = self._known.positive
        chosen = samples.cpu() if positive is None else positive[samples.cpu()]
        part = self.source.take(chosen) if len(chosen) else self.source.first(1)[:0]
        return self._prepared(part.to(device_of(self.model)))

    def batches(self, over: SampleSum) -> Iterator[tuple[Batch, Misfit]]:
        """Yield one pass in the batches of the user's own loader."""
        assert isinstance(self.source, Loaded)
        if not over.processes.alone:
            raise ValueError(
                f"{self.name}inputs: the batches of a DataLoader of its own need not be as many in every process; give each "
                "process a Dataset or arrays"
            )
        for part in self.source.batches():
            made = self._prepared(part.to(device_of(self.model)))
            whole = Misfit(self._known.loss, made.targets, made.weights, self.weighted, over.held)
            yield made.inputs, whole.scaled(len(part), len(self))

    def misfit(self, size: int, holders: SampleSum) -> Misfit:
        """Return the misfit over all samples, in chunks of this size."""
        known = self._known
        rows = len(self) * known.rows
        over = ChunkedSum(holders.processes, holders.samples, chunks=lambda: self.chunks(size))
        targets: Any = Rows(lambda chunk: chunk.data.targets, (rows, known.network.n_targets), self.device)
        weights: Any = Rows(lambda chunk: chunk.data.weights, (rows, self.weight_columns), self.device)
        return Misfit(known.loss, targets, weights, self.weighted, over)

    def held(self, samples: Tensor, count: int, over: SampleSum) -> tuple[Batch, Misfit]:
        """Return inputs and misfit of some samples out of `count`, scaled like tensors (see `Misfit.take`)."""
        part = self.take(samples)
        whole = Misfit(self._known.loss, part.targets, part.weights, self.weighted, over.held)
        return part.inputs, whole.scaled(count, len(self))


def _has_weight(weights: Tensor) -> Tensor:
    """Return a mask of the samples that count."""
    return weights > 0 if weights.ndim == 1 else (weights > 0).any(1)


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@dataclass(frozen=True, eq=False)
class Checked:
    """The findings of the first pass."""

    network: SeparableNetwork
    loss: Loss
    digest: SampleDigest
    count: int  # samples with weight
    everywhere: int  # the same, over all processes
    weight: float  # of all samples
    positive: Tensor | None = field(repr=False)  # indices of the samples with weight; None if all have weight

    @property
    def rows(self) -> int:
        """Rows of outputs per sample."""
        shape = self.network.location.output_shape
        return int(torch.Size(shape).numel()) // self.network.n_targets
