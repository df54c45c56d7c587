"""Matrices with many rows and few columns, one row per sample, stored by columns.

Features, outputs, targets and their tangents are such matrices, (rows, columns) in every formula. Each column is
contiguous in memory, so products with a small matrix, sums over columns and the exponentials of a softmax run along
the samples. With 5000 rows of 4 or 5 columns that is 3 to 5 times as fast as row-major storage, with 3000 rows of 32
still 1.5 times.

torch stores the result of a product by rows, whatever the layout of its factors, but preserves the layout in
pointwise operations. So the functions below suffice; each accepts any layout and returns columns. `matmul_small`
also accepts rows that are not held in memory (`gnvpro.linalg.rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnvpro.linalg.rows import Rows, rowwise


def by_columns(A: Tensor) -> Tensor:
    """Return the same matrix stored by columns; the matrix itself if it already is."""
    return A.T.contiguous().T


def matmul_small(A: Tensor, M: Tensor, row: Tensor | None = None) -> Tensor:
    """Return A M for a small matrix M, plus the same row everywhere, if given."""
    if isinstance(A, Rows):
        return rowwise(lambda a: matmul_small(a, M, row), A, columns=M.shape[1])
    return (M.T @ A.T if row is None else torch.addmm(row[:, None], M.T, A.T)).T


def weighted_squares(A: Tensor, weights: Tensor) -> Tensor:
    """Return A' diag(w) A for every column w of the weights: (columns of w, columns of A, columns of A)."""
    return torch.stack([(w[:, None] * A).T @ A for w in weights.T])


def stack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Stack the parts vertically; return a single part unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat([part.T for part in parts], 1).T


def softmax(A: Tensor) -> Tensor:
    """Softmax of each row."""
    return torch.softmax(A.T, 0).T


def log_sum_exp(A: Tensor) -> Tensor:
    """log sum exp of each row."""
    return torch.logsumexp(A.T, 0)
