"""Arnoldi, the step within a radius and the pseudo-inverse, on operators small enough to write down."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import gmres

from cases import made
from checks import F64
from gnvpro.minimize.krylov import Arnoldi, KrylovModel, arnoldi

SPECTRA = {
    "well conditioned": lambda n: torch.linspace(1, 3, n, dtype=F64),
    "badly conditioned": lambda n: torch.logspace(-8, 2, n, dtype=F64),
    "repeated": lambda n: torch.tensor([1.0, 1.0, 2.0] * n, dtype=F64)[:n],
    "singular": lambda n: torch.cat([torch.zeros(n // 2, dtype=F64), torch.linspace(1, 2, n - n // 2, dtype=F64)]),
    "identity": lambda n: torch.ones(n, dtype=F64),
    "zero": lambda n: torch.zeros(n, dtype=F64),
}


def operator(spectrum, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(n, n, dtype=F64, generator=generator))
    A = Q @ torch.diag(SPECTRA[spectrum](n)) @ Q.T
    return (A + A.T) / 2, torch.randn(n, dtype=F64, generator=generator)


def model_of(factors: Arnoldi) -> KrylovModel:
    return KrylovModel(-factors.beta * factors.basis[0], factors)


every_spectrum = pytest.mark.parametrize("spectrum", SPECTRA)


@every_spectrum
@pytest.mark.parametrize("max_rank", [1, 3, 8, 30])
def test_factorisation_holds_with_an_orthonormal_basis(spectrum, max_rank):
    A, b = operator(spectrum, 8)
    factors = arnoldi(lambda v: A @ v, b, max_rank, 0.0)
    r = factors.rank
    assert 1 <= r <= min(max_rank, 8)
    Q, H = factors.basis, torch.from_numpy(factors.hessenberg)
    torch.testing.assert_close(A @ Q[:r].T, Q.T @ H, rtol=0, atol=1e-12 * max(float(A.norm()), 1))
    torch.testing.assert_close(Q[:r] @ Q[:r].T, torch.eye(r, dtype=F64), rtol=0, atol=1e-13)
    torch.testing.assert_close(factors.beta * Q[0], b)


@every_spectrum
def test_breakdown_is_exact_and_stops_there(spectrum):
    A, b = operator(spectrum, 8)
    products = []
    factors = arnoldi(lambda v: products.append(1) or A @ v, b, 50, 0.0)
    assert factors.rank == len(products) <= 8
    if spectrum in ("identity", "zero"):
        assert factors.rank == 1
    if spectrum == "repeated":
        assert factors.rank == 2
    assert np.isfinite(factors.hessenberg).all()
    step = model_of(factors).solve_within(math.inf)
    # The least-squares solution in the Krylov space: A s = b as far as the range of A allows.
    best = float((b - A @ (torch.linalg.pinv(A, hermitian=True, rtol=1e-12) @ b)).norm())
    assert float((A @ step.d_x - b).norm()) <= best * (1 + 1e-6) + 1e-6 * float(b.norm())


def test_residual_estimate_is_the_residual():
    A, b = operator("well conditioned", 10)
    for rank in range(1, 10):
        factors = arnoldi(lambda v: A @ v, b, rank, 0.0)
        s = model_of(factors).solve_within(math.inf).d_x
        assert factors.residual == pytest.approx(float((A @ s - b).norm() / b.norm()), rel=1e-6, abs=1e-13)


def test_rtol_stops_the_space_as_soon_as_the_residual_is_below_it():
    A, b = operator("well conditioned", 20)
    ranks = []
    for rtol in (0.5, 1e-1, 1e-3, 1e-6):
        factors = arnoldi(lambda v: A @ v, b, 20, rtol)
        assert factors.residual <= rtol
        smaller = arnoldi(lambda v: A @ v, b, factors.rank - 1, 0.0)
        assert smaller.residual > rtol
        ranks.append(factors.rank)
    assert ranks == sorted(set(ranks))


@pytest.mark.parametrize("rank", [1, 2, 5, 9])
@pytest.mark.parametrize("spectrum", ["well conditioned", "badly conditioned", "repeated"])
def test_unconstrained_step_is_scipys_gmres(spectrum, rank):
    A, b = operator(spectrum, 10)
    expected, _ = gmres(
        ScipyOperator((10, 10), matvec=lambda v: A.numpy() @ v), b.numpy(), rtol=1e-14, restart=rank, maxiter=1
    )
    s = model_of(arnoldi(lambda v: A @ v, b, rank, 0.0)).solve_within(math.inf).d_x
    np.testing.assert_allclose(s.numpy(), expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["mlp, least squares", "mlp, multinomial", "autodiff, multinomial"])
def test_training_step_with_an_inactive_radius_is_scipys_gmres_on_the_dense_matrix(name):
    m = made(name)
    A, g = m.reference.gauss_newton.numpy(), m.reference.gradient.numpy()
    expected, _ = gmres(A, -g, rtol=1e-14, restart=12, maxiter=1)
    factors = arnoldi(m.point.curvature().mv, -m.point.gradient(), 12, 0.0)
    s = model_of(factors).solve_within(1e6).d_x.numpy()
    np.testing.assert_allclose(s, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


models = st.builds(
    lambda spectrum, n, seed, rank: (operator(spectrum, n, seed), rank),
    st.sampled_from([s for s in SPECTRA if s != "zero"]),
    st.integers(1, 12),
    st.integers(0, 10_000),
    st.integers(1, 12),
)


# A badly conditioned model knows the length of its free step to 1e-7 or so: closer to it nothing is said.
@settings(max_examples=150, deadline=None)
@given(models, st.floats(1e-12, 1 - 1e-6) | st.just(1.0))
def test_step_is_on_the_sphere_when_the_radius_is_active_and_never_outside(model, fraction):
    (A, b), rank = model
    local = model_of(arnoldi(lambda v: A @ v, b, rank, 0.0))
    free = local.solve_within(math.inf)
    radius = fraction * free.norm
    step = local.solve_within(radius)
    assert float(step.d_x.norm()) == pytest.approx(step.norm, rel=1e-12)
    if fraction < 1:
        assert step.norm == pytest.approx(radius, rel=1e-12)
    if fraction < 1 - 1e-9:
        assert step.damping > 0
    if fraction == 1:
        assert step.norm == pytest.approx(free.norm, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(models, st.floats(1e-10, 10.0))
def test_predicted_reduction_is_that_of_the_quadratic_model_and_never_negative(model, fraction):
    (A, b), rank = model
    local = model_of(arnoldi(lambda v: A @ v, b, rank, 0.0))
    step = local.solve_within(fraction * local.solve_within(math.inf).norm)
    s = step.d_x
    model_reduction = float(b @ s - 0.5 * s @ (A @ s))
    terms = float(b.norm() * s.norm() + torch.linalg.norm(A, 2) * s.norm() ** 2)  # rounding is relative to these
    assert step.predicted_reduction == pytest.approx(model_reduction, abs=1e-13 * terms)
    assert step.predicted_reduction >= 0


@settings(max_examples=60, deadline=None)
@given(models)
def test_longer_radius_gives_a_longer_step_and_less_damping(model):
    (A, b), rank = model
    local = model_of(arnoldi(lambda v: A @ v, b, rank, 0.0))
    free = local.solve_within(math.inf).norm
    steps = [local.solve_within(f * free) for f in (1e-3, 1e-2, 0.1, 0.5, 0.9, 1.5, 10.0)]
    norms = [step.norm for step in steps]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(norms))
    dampings = [step.damping for step in steps]
    assert all(a >= b for a, b in itertools.pairwise(dampings))
    assert dampings[-1] == 0


@pytest.mark.parametrize("spectrum", ["well conditioned", "badly conditioned", "repeated"])
def test_step_on_the_sphere_satisfies_the_optimality_conditions_of_the_trust_region(spectrum):
    # (Q'AQ + damping I) z = Q'b, damping > 0, |z| = radius
    A, b = operator(spectrum, 8)
    factors = arnoldi(lambda v: A @ v, b, 5, 0.0)
    local = model_of(factors)
    step = local.solve_within(0.3 * local.solve_within(math.inf).norm)
    Q = factors.basis[: factors.rank]
    z = Q @ step.d_x
    residual = Q @ A @ Q.T @ z + step.damping * z - Q @ b
    assert float(residual.norm()) <= 1e-9 * float(b.norm())


@settings(max_examples=60, deadline=None)
@given(models, st.floats(1e-3, 0.99), st.integers(0, 1000))
def test_no_other_step_of_the_krylov_space_within_the_radius_promises_more(model, fraction, seed):
    (A, b), rank = model
    factors = arnoldi(lambda v: A @ v, b, rank, 0.0)
    local = model_of(factors)
    radius = fraction * local.solve_within(math.inf).norm
    step = local.solve_within(radius)
    Q = factors.basis[: factors.rank]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        z = torch.randn(factors.rank, dtype=F64, generator=generator)
        other = radius * (z / z.norm()) @ Q
        promised = float(b @ other - 0.5 * other @ (A @ other))
        assert promised <= step.predicted_reduction * (1 + 1e-9) + 1e-12


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_half_of_beta_with_the_identity_is_the_end_of_the_bracket_and_does_not_crash(seed, scale):
    b = torch.randn(4, dtype=F64, generator=torch.Generator().manual_seed(seed)) * scale
    factors = arnoldi(lambda v: v, b, 4, 0.0)
    step = model_of(factors).solve_within(factors.beta / 2)
    torch.testing.assert_close(step.d_x, b / 2)


def test_zero_gradient_gives_a_zero_step():
    A, _ = operator("well conditioned", 5)
    factors = arnoldi(lambda v: A @ v, torch.zeros(5, dtype=F64), 5, 0.0)
    step = model_of(factors).solve_within(1.0)
    assert torch.equal(step.d_x, torch.zeros(5, dtype=F64))
    assert (step.norm, step.predicted_reduction, factors.rank) == (0.0, 0.0, 0)


def test_zero_operator_gives_a_zero_step():
    b = torch.ones(5, dtype=F64)
    step = model_of(arnoldi(torch.zeros_like, b, 5, 0.0)).solve_within(1.0)
    assert step.norm == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_product_that_is_not_finite_ends_the_space_before_it(bad):
    A, b = operator("well conditioned", 6)
    calls = []

    def mv(v):
        calls.append(1)
        return A @ v if len(calls) < 3 else v * bad

    factors = arnoldi(mv, b, 6, 0.0)
    assert factors.rank == 2
    assert torch.isfinite(model_of(factors).solve_within(1.0).d_x).all()


@every_spectrum
@pytest.mark.parametrize("rank", range(1, 9))
def test_pseudo_inverse_is_that_of_the_factorisation_and_its_transpose_is_exact(spectrum, rank):
    A, b = operator(spectrum, 8)
    factors = arnoldi(lambda v: A @ v, b, rank, 0.0)
    Q, r = factors.basis, factors.rank
    hessenberg = torch.from_numpy(factors.hessenberg)
    dense = Q[:r].T @ torch.linalg.pinv(hessenberg, rtol=1e-15) @ Q
    eye = torch.eye(8, dtype=F64)
    forward = torch.stack([factors.pseudo_inverse(e) for e in eye], 1)
    backward = torch.stack([factors.pseudo_inverse_transposed(e) for e in eye], 1)
    scale = max(float(forward.abs().max()), 1.0)
    # each has a relative rounding error of the condition of the matrix, times a small number
    rounding = 8 * torch.finfo(F64).eps * float(torch.linalg.cond(hessenberg))
    assert float((forward - dense).abs().max()) <= max(1e-11, rounding) * scale
    assert float((forward - backward.T).abs().max()) <= 1e-12 * scale


@pytest.mark.parametrize("spectrum", ["well conditioned", "badly conditioned"])
def test_pseudo_inverse_of_the_whole_space_is_the_inverse(spectrum):
    A, b = operator(spectrum, 6)
    factors = arnoldi(lambda v: A @ v, b, 6, 0.0)
    forward = torch.stack([factors.pseudo_inverse(e) for e in torch.eye(6, dtype=F64)], 1)
    assert float((forward @ A - torch.eye(6, dtype=F64)).abs().max()) <= 1e-14 * float(torch.linalg.cond(A)) + 1e-12
