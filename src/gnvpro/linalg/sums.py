"""Sums over samples: the only place that adds up samples.

    sum(f, A, B)     =  sum over the rows of f of them                        f takes any number of rows and adds up its own
    inner(A, B)      =  A' B  =  sum_n a_n b_n'                               (rows, j) and (rows, k) -> (j, k)
    total(part)      =  the sum over all rows, from the sum over the local rows
    factor(A)        =  R  with  A = Q R                                      least squares without squaring the condition of A
    triangle(A, B)   =  R, Q' B  with  A = Q R

Everything else in the formulas acts row by row. `ChunkedSum` goes through samples that are not held in memory
(`gnvpro.linalg.rows`), a chunk at a time. It computes its factor by stacking, and Q' B is the block next to R in the
factor of [A B]. Local results are then added up over the processes that hold samples (`gnvpro.processes`):

    [R; A_i] = Q_i R'        R' is the factor of the chunks so far, [A_1; ...; A_i]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gnvpro.linalg.columns import stack_rows
from gnvpro.linalg.rows import Chunk, parts, rowwise
from gnvpro.processes import ALONE, Processes


@dataclass(frozen=True)
class SampleSum:
    """Sums over samples in memory, all of them here or a part in each of several processes."""

    processes: Processes = ALONE  # processes that hold the samples
    samples: int | None = None  # number of samples in all processes together, if there are several processes

    def count(self, at_hand: int) -> int:
        """Return the number of all samples, of which `at_hand` are local."""
        return at_hand if self.samples is None else self.samples

    def of_samples(self, count: int) -> SampleSum:
        """Return the same object for a batch of `count` samples in all processes together."""
        return self if self.processes.alone else replace(self, samples=count)

    @property
    def held(self) -> SampleSum:
        """Return the same object for samples in memory."""
        return self

    def largest(self, at_hand: float) -> float:
        """Return the maximum over all samples, from the maximum over the local ones."""
        return at_hand if self.processes.alone else self.processes.largest(at_hand)

    def total(self, part: Tensor) -> Tensor:
        """Return the sum over all samples, from the sum over the local ones."""
        return part if self.processes.alone else self.processes.total(part)

    def totals(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return several such sums, using one message."""
        if self.processes.alone:
            return parts
        whole = self.total(torch.cat([part.reshape(-1) for part in parts]))
        pieces = whole.split([part.numel() for part in parts])
        return tuple(piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True))

    def sums(self, f: Callable[..., tuple[Tensor, ...]], *rows: Any) -> tuple[Tensor, ...]:
        """Return several sums over all samples in one pass, from a function of the local rows."""
        return self.totals(f(*rows))

    def sum(self, f: Callable[..., Tensor], *rows: Any) -> Tensor:
        """Return one sum over all samples."""
        part = f(*rows)
        return part if self.processes.alone else self.processes.total(part)

    def inner(self, A: Tensor, B: Tensor) -> Tensor:
        """Return A' B, summed over the rows."""
        part = A.T @ B
        return part if self.processes.alone else self.processes.total(part)

    def inners(self, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> tuple[Tensor, ...]:
        """Return A' B and C' D in one pass."""
        return self.sums(lambda a, b, c, d: (a.T @ b, c.T @ d), A, B, C, D)

    def triangle(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """Return R and Q' B of A = Q R: all that least squares needs of A and B, for any number of rows."""
        Q, R = torch.linalg.qr(A)
        return (R, Q.T @ B) if self.processes.alone else self.processes.triangle(R, Q.T @ B)

    def factor(self, A: Tensor) -> Tensor:
        """Return R of A = Q R alone."""
        return self.triangle(A, A.new_zeros((A.shape[0], 1)))[0]


@dataclass(frozen=True)
class ChunkedSum(SampleSum):
    """Sums over samples that come in chunks."""

    chunks: Callable[[], Iterator[Chunk]] = field(kw_only=True, repr=False)  # starts one pass over the chunks

    @property
    def held(self) -> SampleSum:
        """Return the same object for samples in memory."""
        return SampleSum(self.processes, self.samples)

    def sums(self, f: Callable[..., tuple[Tensor, ...]], *rows: Any) -> tuple[Tensor, ...]:
        """Return several sums in one pass over the chunks."""
        added: tuple[Tensor, ...] | None = None
        for chunk in self.chunks():
            new = f(*parts(rows, chunk))
            added = new if added is None else tuple(a + b for a, b in zip(added, new, strict=True))
            del chunk, new  # free them before the next chunk is read
        assert added is not None
        return self.totals(added)

    def sum(self, f: Callable[..., Tensor], *rows: Any) -> Tensor:
        """Return one sum in one pass over the chunks."""
        return self.sums(lambda *at_hand: (f(*at_hand),), *rows)[0]

    def inner(self, A: Tensor, B: Tensor) -> Tensor:
        """Return A' B in one pass over the chunks."""
        return self.sum(_inner, A, B)

    def triangle(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """Return R and Q' B from the factor of [A B]."""
        f = A.shape[1]
        R = self.factor(rowwise(beside, A, B, columns=f + B.shape[1]))
        return R[:f, :f], R[:f, f:]

    def factor(self, A: Tensor) -> Tensor:
        """Return R by stacking: factorise the factor of the chunks so far above the next chunk."""
        R: Tensor | None = None
        for chunk in self.chunks():
            (a,) = parts((A,), chunk)
            R = torch.linalg.qr(a if R is None else stack_rows([R, a]), mode="r").R
            del chunk, a
        assert R is not None
        return self.held.factor(R)


def _inner(A: Tensor, B: Tensor) -> Tensor:
    return A.T @ B


def beside(A: Tensor, B: Tensor) -> Tensor:
    """Return [A B], stored by columns."""
    return torch.cat([A.T, B.T]).T
