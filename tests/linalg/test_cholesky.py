"""Cholesky factors of matrices that may be singular."""

from __future__ import annotations

import pytest
import torch

from checks import F64, relative
from gnvpro.linalg.cholesky import damped_cholesky


def test_a_singular_matrix_gets_as_little_damping_as_it_takes():
    H = torch.ones(3, 3, dtype=F64)
    factor, damping = damped_cholesky(H)
    assert relative(factor @ factor.T, H) <= 1e-12
    assert 0 < damping <= 1e-12
    factor, damping = damped_cholesky(torch.eye(3, dtype=F64))
    assert damping == 0
    assert torch.equal(factor, torch.eye(3, dtype=F64))


def test_damping_is_measured_in_the_metric():
    H = torch.diag(torch.tensor([1.0, -1e-3], dtype=F64))
    metric = torch.tensor([1.0, 3e-2], dtype=F64)  # -1e-3 needs a damping above 1/30
    factor, damping = damped_cholesky(H, 1e-8, metric)
    assert damping == pytest.approx(0.1, rel=1e-6)
    assert relative(factor @ factor.T, H + damping * metric.diag()) <= 1e-14


def test_the_given_damping_is_kept_where_it_is_enough():
    H = torch.eye(2, dtype=F64)
    factor, damping = damped_cholesky(H, 0.5)
    assert damping == 0.5
    assert relative(factor @ factor.T, 1.5 * H) <= 1e-15


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 1), (2, 2)])
def test_a_matrix_that_is_not_finite_ends(bad, place):
    H = torch.eye(3, dtype=F64)
    H[place] = H[place[::-1]] = bad
    factor, _ = damped_cholesky(H)
    assert torch.equal(factor, torch.eye(3, dtype=F64))
