"""Products of rows, each pair once."""

from __future__ import annotations

import pytest
import torch

from checks import F64
from gnvpro.linalg.symmetric_products import pair_index, unique_products


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_ordered_pair_is_found_among_the_unique_products(count):
    rows = torch.randn(count, 7, dtype=F64, generator=torch.Generator().manual_seed(0))
    products = unique_products(rows)
    assert products.shape == (count * (count + 1) // 2, 7)
    assert torch.equal(products[pair_index(count, rows.device)].view(count, count, 7), rows[:, None] * rows)
