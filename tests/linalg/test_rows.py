"""Rows that are made chunk by chunk: formulas and sums give what tensors give, each value once per chunk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from checks import relative
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.rows import Chunk, Rows, rowwise
from gnvpro.linalg.sums import ChunkedSum
from gnvpro.processes import Processes

F64 = torch.float64


def chunked(A: Tensor, size: int) -> tuple[Rows, ChunkedSum]:
    def chunks() -> Iterator[Chunk]:
        return (Chunk(part) for part in A.split(size))

    return Rows(lambda chunk: chunk.data, tuple(A.shape)), ChunkedSum(chunks=chunks)


@pytest.fixture
def A() -> Tensor:
    return torch.randn(23, 4, dtype=F64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [1, 3, 5, 23, 40])
def test_sums_over_chunks_are_the_sums(A, size):
    rows, over = chunked(A, size)
    M = A[:4, :3]
    product = matmul_small(rows, M)
    assert product.shape == (23, 3)
    assert relative(over.inner(product, rows), (A @ M).T @ A) <= 1e-14
    first, second = over.inners(rows, rows, 2.0 * rows - rows, product + product)
    assert relative(first, A.T @ A) <= 1e-14
    assert relative(second, A.T @ (2 * A @ M)) <= 1e-14


@pytest.mark.parametrize("size", [1, 3, 5, 23])
def test_the_stacked_triangle_solves_least_squares_of_a_badly_conditioned_matrix(A, size):
    """Columns that differ by 1e-9: their Gram matrix is singular to rounding, their triangle is not."""
    A = torch.cat([A, A[:, :1] + 1e-9 * A[:, 1:2] ** 2], 1)
    b = A @ torch.ones(5, 2, dtype=F64)
    rows, over = chunked(A, size)
    R, projected = over.triangle(rows, rowwise(lambda a: a @ torch.ones(5, 2, dtype=F64), rows, columns=2))
    assert R.shape == (5, 5)
    assert relative(R.T @ R, A.T @ A) <= 1e-14
    solution = torch.linalg.solve_triangular(R, projected, upper=True)
    assert relative(A @ solution, b) <= 1e-14
    assert relative(solution, torch.ones(5, 2, dtype=F64)) <= 1e-5


def test_the_triangle_of_fewer_rows_than_columns(A):
    rows, over = chunked(A[:3], 2)
    R, _ = over.triangle(rows, rows)
    assert R.shape == (3, 4)
    assert relative(R.T @ R, A[:3].T @ A[:3]) <= 1e-14


def test_a_value_is_made_once_per_chunk_and_pass(A):
    made = []

    def count(a: Tensor) -> Tensor:
        made.append(len(a))
        return a

    rows, over = chunked(A, 10)
    seen = rowwise(count, rows)
    over.inner(seen + seen, 2.0 * seen)
    assert made == [10, 10, 3]
    over.inner(seen, seen)
    assert made == [10, 10, 3] * 2


def test_what_others_hold_is_added_to_the_chunks(A):
    class Twice(Processes):
        def __init__(self) -> None:
            super().__init__()
            self.alone = False

        def total(self, part: Tensor) -> Tensor:
            return 2 * part

        def triangle(self, R: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
            Q, both = torch.linalg.qr(torch.cat([R, R]))
            return both, Q.T @ torch.cat([projected, projected])

    rows, over = chunked(A, 10)
    both = ChunkedSum(Twice(), chunks=over.chunks)
    assert relative(both.inner(rows, rows), 2 * A.T @ A) <= 1e-14
    R, _ = both.triangle(rows, rows)
    assert relative(R.T @ R, 2 * A.T @ A) <= 1e-14
