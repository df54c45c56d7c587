"""Matrices stored by columns: whatever the layout they come in, the result is torch's, and stored by columns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from checks import F64
from gnvpro.linalg import columns


def matrix(layout: str, rows: int = 50, width: int = 4, seed: int = 0) -> Tensor:
    A = torch.randn(rows, width, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return A if layout == "rows" else A.T.contiguous().T


def in_columns(A: Tensor) -> bool:
    return A.T.is_contiguous()


each_layout = pytest.mark.parametrize("layout", ["rows", "columns"])


@each_layout
def test_by_columns_changes_the_layout_alone(layout):
    A = matrix(layout)
    assert torch.equal(columns.by_columns(A), A)
    assert in_columns(columns.by_columns(A))
    assert (columns.by_columns(A).data_ptr() == A.data_ptr()) == (layout == "columns"), "copied only where it must be"


@each_layout
def test_products(layout):
    A, M, row = matrix(layout), matrix("rows", 4, 3, seed=1), matrix("rows", 1, 3, seed=2)[0]
    for mine, expected in ((columns.matmul_small(A, M), A @ M), (columns.matmul_small(A, M, row), A @ M + row)):
        assert torch.allclose(mine, expected, rtol=1e-14, atol=1e-14)
        assert in_columns(mine)


@each_layout
def test_stacking(layout):
    A, B = matrix(layout), matrix(layout, rows=7, seed=3)
    assert torch.equal(columns.stack_rows([A, B]), torch.cat([A, B]))
    assert in_columns(columns.stack_rows([A, B]))
    assert columns.stack_rows([A]) is A


@each_layout
@pytest.mark.parametrize("scale", [1.0, 1e3])  # exp(1e3) would overflow
def test_what_is_taken_of_every_row(layout, scale):
    A = scale * matrix(layout)
    assert torch.allclose(columns.softmax(A), torch.softmax(A, 1), rtol=1e-14, atol=0)
    assert torch.allclose(columns.log_sum_exp(A), torch.logsumexp(A, 1), rtol=1e-14, atol=0)
    assert in_columns(columns.softmax(A))


def test_infinite_entries_of_a_row():
    A = torch.tensor([[torch.inf, 0.0], [-torch.inf, -torch.inf], [-torch.inf, 2.0]], dtype=F64)
    assert columns.log_sum_exp(A).tolist() == [torch.inf, -torch.inf, 2.0]
