"""Matrices with one row per sample that are not held in memory, but computed chunk by chunk in every sum.

    A = rowwise(f, B, C)         a_n = f(b_n, c_n), row by row
    B, C tensors  ->  f(B, C)    at once
    B, C `Rows`   ->  `Rows`     that store f and are computed when a `SampleSum` goes through the chunks

Formulas are written once, for tensors and for `Rows`. Within a chunk every value is computed once, however many
formulas use it, and freed when the pass continues with the next chunk. A row may stand for anything that belongs to
a chunk: numbers, or the linearisation of a network on its samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Chunk:
    """Part of the samples during a pass."""

    data: Any
    known: dict[Rows, Any] = field(default_factory=dict)  # values computed for this chunk in this pass


class Rows:
    """A matrix with at least one row per sample, computed chunk by chunk.

    >>> numbers = Rows(lambda chunk: chunk.data, (4, 1))
    >>> (2.0 * numbers - 1.0).on(Chunk(torch.tensor([[1.0], [2.0]])))
    tensor([[1.],
            [3.]])
    """

    def __init__(
        self, make: Callable[[Chunk], Any], shape: tuple[int, int], device: torch.device | str = "cpu"
    ) -> None:
        self.shape, self.device = torch.Size(shape), torch.device(device)
        self._make = make

    def on(self, chunk: Chunk) -> Any:
        """Return the rows of a chunk."""
        if self not in chunk.known:
            chunk.known[self] = self._make(chunk)
        return chunk.known[self]

    def new_zeros(self, shape: Any) -> Tensor:
        """Return zeros in float64, the dtype of all such rows."""
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def __len__(self) -> int:
        return self.shape[0]

    def __add__(self, other: Any) -> Any:
        return rowwise(torch.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return rowwise(torch.sub, self, other)

    def __mul__(self, other: Any) -> Any:
        return rowwise(torch.mul, self, other)

    __rmul__ = __mul__


def rowwise(f: Callable[..., Any], *values: Any, columns: int | None = None) -> Any:
    """Apply f to the values row by row: at once if they are tensors, else as `Rows` with this number of columns.

    By default there are as many columns as in the widest value. A tensor next to `Rows` is the same for all rows.
    """
    if Rows not in map(type, values):
        return f(*values)
    streamed = [value for value in values if isinstance(value, Rows)]
    shape = (streamed[0].shape[0], columns or max(value.shape[1] for value in streamed))
    return Rows(lambda chunk: f(*parts(values, chunk)), shape, streamed[0].device)


def parts(values: tuple[Any, ...], chunk: Chunk) -> list[Any]:
    """Return the rows of a chunk of those values that are `Rows`, and the others unchanged."""
    return [value.on(chunk) if isinstance(value, Rows) else value for value in values]
