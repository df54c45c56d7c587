"""Fewer targets with the same sum of squares."""

from __future__ import annotations

import pytest
import torch

from gnvpro.problem.compress import compressed


@pytest.mark.parametrize("targets", [3, 7, 8, 40, 500])
def test_compressed_targets_have_the_same_products(targets: int) -> None:
    Y = torch.randn(7, targets, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    L = compressed(Y)
    assert L.shape == (7, min(7, targets))
    assert torch.allclose(L @ L.T, Y @ Y.T, rtol=1e-13, atol=1e-12)


def test_small_parts_of_the_targets_are_kept_to_full_accuracy() -> None:
    # Y Y' alone would lose what is below 1e-8 of the largest
    draw = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=torch.float64)).Q
    V = torch.linalg.qr(torch.randn(200, 5, generator=draw, dtype=torch.float64)).Q
    s = torch.tensor([1.0, 1e-3, 1e-6, 1e-9, 1e-12], dtype=torch.float64)
    found = torch.linalg.svdvals(compressed(U * s @ V.T))
    assert torch.allclose(found, s, rtol=1e-3)
