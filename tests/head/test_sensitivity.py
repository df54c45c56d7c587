"""The derivative in the features with the head following, against Kronecker products and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch.func import jacrev

from cases import F64, Poisson
from checks import adjoint_gap, against_dense, relative, taylor_order
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.sensitivity import HeadSensitivity
from gnvpro.heads import Newton, NewtonKrylov
from gnvpro.losses import HalfSquaredError, Logistic, Multinomial
from gnvpro.problem.misfit import Misfit


def rand(*shape, seed):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


ROWS, FEATURES = 9, 3
LOSSES = {
    "least squares": (HalfSquaredError(), rand(ROWS, 2, seed=1)),
    "logistic": (Logistic(), (rand(ROWS, 1, seed=2) > 0).to(F64)),
    "multinomial": (Multinomial(), torch.eye(3, dtype=F64)[torch.arange(ROWS) * 7 % 3]),
    "poisson": (Poisson(), rand(ROWS, 2, seed=3).exp()),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
each_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def weights_like(uneven):
    w = torch.arange(1.0, ROWS + 1, dtype=F64) if uneven else torch.ones(ROWS, dtype=F64)
    return (w / w.sum())[:, None]


def derivatives(name, bias, a2=1e-2, features=None, uneven=True, eliminator=None):
    loss, targets = LOSSES[name]
    features = rand(ROWS, FEATURES, seed=4) if features is None else features
    Z = torch.cat([features, torch.ones(ROWS, 1, dtype=F64)], 1) if bias else features
    misfit = Misfit(loss, targets, weights_like(uneven))
    solver = eliminator or (LeastSquares() if name == "least squares" else Newton())
    return HeadSensitivity(Z, FEATURES, misfit, solver.fit(Z, misfit, a2, None), a2)


def kronecker(d, a2=1e-2):
    """dW/dZ, P and the Gauss-Newton matrix with row-major vec: full matrices, nothing factored."""
    K, f = d.fit.W.shape
    n, q = ROWS, d.n_features
    I_K, I_n = torch.eye(K, dtype=F64), torch.eye(n, dtype=F64)
    X = d.fit.outputs

    def misfit(X):
        return (d.misfit.weights[:, 0] * d.misfit.loss.value(X, d.misfit.targets)).sum()

    G = jacrev(misfit)(X)
    H = jacrev(jacrev(misfit))(X).reshape(n * K, n * K)
    W = d.fit.W[:, :q].contiguous()
    dX_dZ = torch.kron(I_n, W)  # vec(dZ W') for fixed W
    # vec(Z dW') is a matrix of Z entries that maps dW[k, j] to dX[i, k]
    dX_dW = torch.einsum("ij,kl->iklj", d.Z, I_K).reshape(n * K, K * f)
    # vec(G' dZ), padded: dZ[i, j] contributes G[i, k] to entry (k, j)
    pad = torch.eye(q, f, dtype=F64)
    S2 = torch.einsum("ik,jl->klij", G, pad).reshape(K * f, n * q)
    mixed = dX_dW.T @ H @ dX_dZ + S2
    hessian = dX_dW.T @ H @ dX_dW + a2 * torch.eye(K * f, dtype=F64)
    dW = -torch.linalg.solve(hessian, mixed)
    P = dX_dZ + dX_dW @ dW
    return dW, P, P.T @ H @ P + a2 * dW.T @ dW


@each_bias
@each_loss
def test_head_and_output_jacobians_and_curvature_are_the_kronecker_matrices(name, bias):
    d = derivatives(name, bias)
    dW, P, curvature = kronecker(d)
    assert against_dense(d.head_jacobian, dW) <= 1e-8
    assert against_dense(d.output_jacobian, P) <= 1e-8
    assert against_dense(d.curvature, curvature) <= 1e-8


@each_loss
def test_three_ways_to_write_the_curvature_agree(name):
    d = derivatives(name, True)
    dZ = rand(ROWS, FEATURES, seed=5)
    composed = d._curvature_composed(dZ)
    assert relative(d._curvature_exact(dZ), composed) <= 1e-9
    assert relative(d.curvature.mv(dZ), composed) <= 1e-9


@each_bias
@each_loss
def test_outputs_follow_the_features_to_second_order(name, bias):
    features, dZ = rand(ROWS, FEATURES, seed=4), rand(ROWS, FEATURES, seed=6) / 5
    d = derivatives(name, bias)

    def remainder(h):
        moved = derivatives(name, bias, features=features + h * dZ)
        return float((moved.fit.outputs - d.fit.outputs - h * d.output_jacobian.mv(dZ)).norm())

    def head_remainder(h):
        moved = derivatives(name, bias, features=features + h * dZ)
        return float((moved.fit.W - d.fit.W - h * d.head_jacobian.mv(dZ)).norm())

    assert taylor_order(remainder, floor=1e-8) >= 1.9
    assert taylor_order(head_remainder, floor=1e-7) >= 1.9


@each_bias
@each_loss
def test_transposes_are_exact(name, bias):
    d = derivatives(name, bias)
    assert adjoint_gap(d.head_jacobian) <= 1e-12
    assert adjoint_gap(d.output_jacobian) <= 1e-12
    assert adjoint_gap(d.curvature) <= 1e-12


@pytest.mark.parametrize("name", ["logistic", "multinomial", "poisson"])
def test_transposes_are_exact_at_every_rank_of_a_low_rank_inverse(name):
    size = derivatives(name, True).fit.W.numel()
    errors = []
    for rank in range(1, size + 1):
        d = derivatives(name, True, eliminator=NewtonKrylov(max_rank=rank, krylov_rtol=1e-14))
        assert adjoint_gap(d.head_jacobian) <= 1e-12
        assert adjoint_gap(d.output_jacobian) <= 1e-12
        assert adjoint_gap(d.curvature) <= 1e-12
        errors.append(relative(d.head_jacobian.dense(), kronecker(d)[0]))
    assert errors[0] > 1e-2  # a low rank is a real approximation
    assert errors[-1] < errors[0]


@each_loss
def test_curvature_is_positive_semi_definite(name):
    curvature = derivatives(name, True).curvature.dense()
    values = torch.linalg.eigvalsh((curvature + curvature.T) / 2)
    assert float(values[0]) >= -1e-12 * float(values[-1])


def test_feature_gradient_is_the_total_derivative_of_the_reduced_misfit_and_penalty():
    features, dZ = rand(ROWS, FEATURES, seed=4), rand(ROWS, FEATURES, seed=6)
    d = derivatives("multinomial", True)

    def phi(features):
        e = derivatives("multinomial", True, features=features)
        return e.misfit.value(e.fit.outputs) + 0.5e-2 * float(e.fit.W.square().sum())

    slope = float((d.feature_gradient() * dZ).sum())
    h = 1e-5
    assert slope == pytest.approx((phi(features + h * dZ) - phi(features - h * dZ)) / (2 * h), rel=1e-6)


@each_loss
def test_the_second_term_is_there(name):
    # Without the term G' dZ (Kaufman's approximation) the Jacobian is a different matrix.
    d = derivatives(name, True)
    dW, *_ = kronecker(d)
    inverse = d.fit.inverse_hessian

    def without(dZ):
        return -inverse.mv(d.misfit.hessian(d.fit.outputs)(dZ @ d.W.T).T @ d.Z)

    columns = [without(e.reshape(ROWS, FEATURES)).reshape(-1) for e in torch.eye(ROWS * FEATURES, dtype=F64)]
    assert relative(torch.stack(columns, 1), dW) > 1e-2
