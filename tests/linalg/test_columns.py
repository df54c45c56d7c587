"""Tall matrices: whatever the layout they come in, the result is that of torch, and stored by columns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from checks import F64
from gnvpro.linalg import columns as tall


def matrix(layout: str, rows: int = 50, columns: int = 4, seed: int = 0) -> Tensor:
    A = torch.randn(rows, columns, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return A if layout == "rows" else A.T.contiguous().T


def in_columns(A: Tensor) -> bool:
    return A.T.is_contiguous()


each_layout = pytest.mark.parametrize("layout", ["rows", "columns"])


@each_layout
def test_by_columns_changes_the_layout_alone(layout):
    A = matrix(layout)
    assert torch.equal(tall.by_columns(A), A)
    assert in_columns(tall.by_columns(A))
    assert (tall.by_columns(A).data_ptr() == A.data_ptr()) == (layout == "columns"), "copied only where it must be"


@each_layout
def test_products(layout):
    A, M, row = matrix(layout), matrix("rows", 4, 3, seed=1), matrix("rows", 1, 3, seed=2)[0]
    for mine, expected in ((tall.matmul_small(A, M), A @ M), (tall.matmul_small(A, M, row), A @ M + row)):
        assert torch.allclose(mine, expected, rtol=1e-14, atol=1e-14)
        assert in_columns(mine)


@each_layout
def test_stacking(layout):
    A, B = matrix(layout), matrix(layout, rows=7, seed=3)
    assert torch.equal(tall.stack_rows([A, B]), torch.cat([A, B]))
    assert in_columns(tall.stack_rows([A, B]))
    assert tall.stack_rows([A]) is A


@each_layout
@pytest.mark.parametrize("scale", [1.0, 1e3])  # exp(1e3) would overflow
def test_what_is_taken_of_every_row(layout, scale):
    A = scale * matrix(layout)
    assert torch.allclose(tall.softmax(A), torch.softmax(A, 1), rtol=1e-14, atol=0)
    assert torch.allclose(tall.log_sum_exp(A), torch.logsumexp(A, 1), rtol=1e-14, atol=0)
    assert torch.equal(tall.argmax(A), A.argmax(1))
    assert in_columns(tall.softmax(A))
