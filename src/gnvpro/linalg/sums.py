"""Sums over samples: the one place where samples are added up.

    inner(A, B)      =  A' B  =  sum_n a_n b_n'      (rows, j) and (rows, k) -> (j, k)
    total(part)      =  part                         what the rows at hand add up to, from which the sum over all rows follows
    triangle(A, B)   =  R, Q' B  with  A = Q R       least squares without squaring the condition of A

Everything else in the formulas acts row by row. Whoever holds only a part of the rows (a chunk of a stream, one of several
processes) adds up its own and hands the result to `total`; a `SampleSum` of its own is all that such a source needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SampleSum:
    """Adds up over samples that are all at hand."""

    def total(self, part: Tensor) -> Tensor:
        """The sum over all samples, from the sum over those at hand."""
        return part

    def inner(self, A: Tensor, B: Tensor) -> Tensor:
        """A' B, summed over the rows."""
        return self.total(A.T @ B)

    def triangle(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """R and Q' B of A = Q R: all that least squares needs of A and B, however many rows they have."""
        Q, R = torch.linalg.qr(A)
        return R, Q.T @ B
