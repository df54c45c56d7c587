"""Matrices of one row per sample that are not held: made chunk by chunk, each time they are summed over.

    A = rowwise(f, B, C)         a_n = f(b_n, c_n), row by row
    B, C tensors  ->  f(B, C)    at once
    B, C `Rows`   ->  `Rows`     that remember f, and are computed where a `SampleSum` goes through the chunks

Formulas are written once, for tensors and for `Rows`. Within a chunk every value is computed once, however many formulas use
it; when the pass goes on to the next chunk all of them are forgotten. A row may stand for anything that belongs to a chunk:
numbers, or the linearisation of a network on its samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Chunk:
    """Some of the samples while a pass is at them."""

    data: Any
    known: dict[Rows, Any] = field(default_factory=dict)  # what was computed for them in this pass


class Rows:
    """A matrix of one row or more per sample, made chunk by chunk.

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
        """The rows of a chunk."""
        if self not in chunk.known:
            chunk.known[self] = self._make(chunk)
        return chunk.known[self]

    def new_zeros(self, shape: Any) -> Tensor:
        """Zeros beside such rows, which are computed in float64."""
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
    """What f makes of the values row by row: at once where they are tensors, else as `Rows` of so many columns.

    Left out, there are as many columns as the widest of the values has. A tensor beside `Rows` is the same for all rows.
    """
    if Rows not in map(type, values):
        return f(*values)
    streamed = [value for value in values if isinstance(value, Rows)]
    shape = (streamed[0].shape[0], columns or max(value.shape[1] for value in streamed))
    return Rows(lambda chunk: f(*parts(values, chunk)), shape, streamed[0].device)


def parts(values: tuple[Any, ...], chunk: Chunk) -> list[Any]:
    """The rows of a chunk, of those values that are made so; the others as they are."""
    return [value.on(chunk) if isinstance(value, Rows) else value for value in values]
