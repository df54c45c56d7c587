"""Intervals: the noise changed as far as it takes for them to cover."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnvpro.objectives.posterior import covering, probit_scaled

F64 = torch.float64


def covered(residuals: Tensor, variance: Tensor) -> Tensor:
    return (residuals.abs() <= 1.96 * variance.sqrt()).to(F64).mean(0)


def test_gaussian_residuals_leave_the_noise_as_it_is() -> None:
    torch.manual_seed(0)
    residuals = torch.randn(4000, 2, dtype=F64) * torch.tensor([1.0, 3.0])
    variance = residuals.square().mean(0)
    assert torch.equal(covering(variance, residuals, torch.ones(4000, 1)), variance)


@pytest.mark.parametrize(("share", "size"), [(0.01, 30.0), (0.08, 2.0)])
def test_outliers_neither_widen_nor_narrow_intervals(share: float, size: float) -> None:
    """One far away in a hundred would make intervals cover nearly all; eight not so far would be left out."""
    torch.manual_seed(0)
    residuals = torch.randn(4000, 1, dtype=F64)
    outliers = size * residuals.sign() * (1 + torch.rand(4000, 1))
    residuals = torch.where(torch.rand(4000, 1) < share, outliers, 0.5 * residuals)
    variance = residuals.square().mean(0)
    assert not 0.94 <= float(covered(residuals, variance)) <= 0.96
    changed = covering(variance, residuals, torch.ones(4000, 1))
    assert 0.939 <= float(covered(residuals, changed)) <= 0.961


def test_a_weight_counts_samples() -> None:
    torch.manual_seed(0)
    residuals = torch.randn(50, 1, dtype=F64) ** 3
    counts = torch.randint(1, 4, (50,))
    repeated = [a.repeat_interleave(counts, 0) for a in (residuals, torch.ones(50, 1, dtype=F64))]
    one = torch.ones(1, dtype=F64)
    assert torch.allclose(covering(one, residuals, counts[:, None].to(F64)), covering(one, *repeated))


def test_a_shift_of_all_outputs_changes_no_probability() -> None:
    torch.manual_seed(0)
    outputs, spread = torch.randn(5, 3, dtype=F64), torch.rand(5, 3, dtype=F64)
    moved = probit_scaled(outputs + torch.randn(5, 1, dtype=F64), spread)
    assert torch.allclose(moved.softmax(1), probit_scaled(outputs, spread).softmax(1))
