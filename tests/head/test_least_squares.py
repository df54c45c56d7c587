"""The eliminated head for least squares against torch.linalg, also for rank-deficient features."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import F64, against_dense, relative
from gnvpro.head.eliminator import WarmStart
from gnvpro.head.least_squares import LeastSquares
from gnvpro.problem.loss import HalfSquaredError
from gnvpro.problem.misfit import Misfit

SHAPES = {"tall": (20, 4), "wide": (4, 9), "square": (5, 5)}


def data(shape, kind="full", seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows, columns = shape
    Z = torch.randn(rows, columns, dtype=F64, generator=generator)
    if kind == "duplicated":
        Z[:, -1] = Z[:, 0]
    if kind == "zero column":
        Z[:, 1] = 0
    if kind == "zero":
        Z = torch.zeros_like(Z)
    return Z, torch.randn(rows, 3, dtype=F64, generator=generator)


def fit(Z, C, a2, weights=None, start=None):
    misfit = Misfit.mean(HalfSquaredError(), C) if weights is None else Misfit(HalfSquaredError(), C, weights)
    return LeastSquares().fit(Z, misfit, a2, start)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["full", "duplicated", "zero column", "zero"])
def test_with_a_penalty_it_solves_the_normal_equations_and_inverts_the_hessian(shape, kind):
    Z, C = data(SHAPES[shape], kind)
    n, f = Z.shape
    H = Z.T @ Z / n + 1e-3 * torch.eye(f, dtype=F64)
    result = fit(Z, C, 1e-3)
    torch.testing.assert_close(result.W, torch.linalg.solve(H, Z.T @ C / n).T, rtol=1e-9, atol=1e-10)
    inverse = torch.kron(torch.eye(3, dtype=F64), torch.linalg.inv(H).contiguous())
    assert against_dense(result.inverse_hessian, inverse) <= 1e-10
    torch.testing.assert_close(result.outputs, Z @ result.W.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["full", "duplicated", "zero column", "zero"])
def test_without_a_penalty_it_is_the_solution_of_minimum_norm(shape, kind):
    Z, C = data(SHAPES[shape], kind)
    result = fit(Z, C, 0.0)
    expected = torch.linalg.lstsq(Z, C, driver="gelsd").solution.T
    torch.testing.assert_close(result.W, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(result.W, (torch.linalg.pinv(Z) @ C).T, rtol=1e-9, atol=1e-10)
    pinv = torch.kron(torch.eye(3, dtype=F64), torch.linalg.pinv(Z.T @ Z / len(Z), hermitian=True).contiguous())
    assert against_dense(result.inverse_hessian, pinv) <= 1e-8


@pytest.mark.parametrize("a2", [1e-14, 1e-10, 1e-4, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_vanishes(a2, shape):
    Z, C = data(SHAPES[shape], "duplicated")
    W = fit(Z, C, a2).W
    gradient = (Z @ W.T - C).T @ Z / len(Z) + a2 * W
    assert float(gradient.norm()) <= 1e-10


@pytest.mark.parametrize("a2", [0.0, 1e-14, 1e-11, 1e-10])  # singular values below and Cholesky's factor above 1e-12
@pytest.mark.parametrize("least", [1e-3, 1e-5, 1e-7])
def test_gradient_is_rounding_error_however_ill_conditioned_the_features_are(a2, least):
    Z, C = data((50, 6))
    U, _, Vt = torch.linalg.svd(Z, full_matrices=False)
    Z = 50**0.5 * (U * torch.logspace(0, torch.tensor(least).log10(), 6, dtype=F64)) @ Vt
    W = fit(Z, C, a2).W
    gradient = (Z @ W.T - C).T @ Z / len(Z) + a2 * W
    assert float(gradient.norm()) <= 100 * torch.finfo(F64).eps * float(W.norm())  # |Z|^2 / n is one


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 1000), st.sampled_from([0.0, 1e-8, 1e-2]))
def test_no_other_head_is_better(rows, columns, seed, a2):
    Z, C = data((rows, columns), seed=seed)
    W = fit(Z, C, a2).W

    def phi(W):
        return float((Z @ W.T - C).square().sum() / (2 * rows) + 0.5 * a2 * W.square().sum())

    d = torch.randn(W.shape, dtype=F64, generator=torch.Generator().manual_seed(seed + 1))
    assert all(phi(W) <= phi(W + t * d) * (1 + 1e-12) + 1e-14 for t in (1e-3, -1e-3, 0.1, -0.1))


def test_weights_weigh_the_samples():
    Z, C = data((6, 2))
    weights = torch.arange(1.0, 7.0, dtype=F64)[:, None] / 21
    D = torch.diag(weights[:, 0])
    expected = torch.linalg.solve(Z.T @ D @ Z + 0.1 * torch.eye(2, dtype=F64), Z.T @ D @ C).T
    torch.testing.assert_close(fit(Z, C, 0.1, weights).W, expected)


def test_a_start_changes_nothing():
    Z, C = data((20, 4))
    start = WarmStart(torch.full((3, 4), 7.0, dtype=F64))
    assert torch.equal(fit(Z, C, 1e-3, start=start).W, fit(Z, C, 1e-3).W)


def test_a_larger_penalty_gives_a_smaller_head():
    Z, C = data((20, 4))
    norms = [float(fit(Z, C, a2).W.norm()) for a2 in (0.0, 1e-2, 1.0, 100.0)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 0.1 * norms[0]


def test_cholesky_is_taken_only_where_the_penalty_makes_it_safe():
    """Features of condition 1e7: the normal equations lose half of the digits, the singular values do not."""
    generator = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(60, 4, dtype=F64, generator=generator)).Q
    V = torch.linalg.qr(torch.randn(4, 4, dtype=F64, generator=generator)).Q
    s = torch.tensor([1.0, 1e-2, 1e-5, 1e-7], dtype=F64)
    Z = U @ torch.diag(s) @ V.T
    truth = torch.randn(2, 4, dtype=F64, generator=generator)
    misfit = Misfit.mean(HalfSquaredError(), Z @ truth.T)
    W = LeastSquares().fit(Z, misfit, 1e-26, None).W
    assert relative(Z @ W.T, Z @ truth.T) <= 1e-13
    assert relative(W, truth) <= 1e-7
