"""Several inputs of a model that is called with more than one argument, samples first in each.

    Batch = Tensor | Several       some samples, as the model is called with them
    Inputs = Batch | Streamed      all samples, held in memory or not

`Several` supports what is used of a tensor of samples: its length, some of its samples, parts of a size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Several:
    """Tensors that belong to the same samples: positional arguments of a model, and those by name.

    >>> pair = Several((torch.zeros(3, 2),), {"scale": torch.ones(3)})
    >>> len(pair), [tuple(t.shape) for t in pair[:2].tensors]
    (3, [(2, 2), (2,)])
    """

    positional: tuple[Tensor, ...] = ()
    named: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors."""
        return [*self.positional, *self.named.values()]

    @property
    def device(self) -> torch.device:
        """Device of the first tensor."""
        return self.tensors[0].device

    def map(self, f: Callable[[Tensor], Tensor]) -> Several:
        """Apply f to each tensor."""
        return Several(tuple(map(f, self.positional)), {name: f(value) for name, value in self.named.items()})

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, samples: Any) -> Several:
        return self.map(lambda tensor: tensor[samples])

    def split(self, size: int) -> list[Several]:
        """Split into parts of `size` samples."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def clone(self) -> Several:
        """Return a copy."""
        return self.map(torch.Tensor.clone)


Batch = Tensor | Several


class Streamed(ABC):
    """Inputs that are not held in memory: without a pass, only the first few are known."""

    few: Batch

    @property
    @abstractmethod
    def takes_fast(self) -> bool:
        """True if samples are read by their numbers about as fast as a slice."""

    @property
    def device(self) -> torch.device:
        """Device of the chunks."""
        return self.few.device

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, first: slice) -> Batch:
        assert first.start is None, "only the first few samples are held"
        return self.few[first]


Inputs = Batch | Streamed


def tensors_of(batch: Inputs) -> list[Tensor]:
    """Return the tensors of some samples; of the first few if samples are not held in memory."""
    if isinstance(batch, Streamed):
        batch = batch.few
    return [batch] if isinstance(batch, Tensor) else batch.tensors


def arguments_of(batch: Batch) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and named arguments of a model."""
    return ((batch,), {}) if isinstance(batch, Tensor) else (batch.positional, dict(batch.named))


def cast(batch: Batch, dtype: torch.dtype | None) -> Batch:
    """Return the floating-point tensors of a batch in this dtype, or unchanged if it is None."""

    if dtype is None:
        return batch

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return convert(batch) if isinstance(batch, Tensor) else batch.map(convert)


def shapes_of(batch: Inputs) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of one sample."""
    return tuple([tuple(tensor.shape[1:]) for tensor in tensors_of(batch)])


def entries_per_sample(batch: Inputs) -> int:
    """Return the count of numbers in one sample."""
    if isinstance(batch, Tensor):
        return prod(batch.shape[1:])
    return sum([prod(tensor.shape[1:]) for tensor in tensors_of(batch)])


def description(batch: Inputs) -> str:
    """Return shapes and dtypes, for messages."""
    return ", ".join(f"shape {tuple(tensor.shape)} and {tensor.dtype}" for tensor in tensors_of(batch))


def joined(batches: list[Any]) -> Any:
    """Join parts in order."""
    first = batches[0]
    if first is None or len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(batches)
    positional = tuple(torch.cat(parts) for parts in zip(*(b.positional for b in batches), strict=True))
    return Several(positional, {name: torch.cat([b.named[name] for b in batches]) for name in first.named})
