"""Both objectives of Algorithm 1 against naive dense derivatives, finite differences and classical VarPro."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.func import jacrev

from cases import CASES, DOUBLE, F64, Case, labels, made, make, mlp, real
from checks import adjoint_gap, against_dense, relative, taylor_order
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.networks import ResNet

every_case = pytest.mark.parametrize("name", CASES)
every_double = pytest.mark.parametrize("name", DOUBLE)


def tolerance(name: str) -> float:
    """Rounding of the network's dtype, times what conditioning makes of it."""
    return 1e-8 if name in DOUBLE else 2e-3


@every_case
def test_value_is_the_models_own_loss_with_penalties_by_torch(name):
    m = made(name)
    expected = float(m.reference.phi(m.theta, m.point.W))
    assert m.point.value == pytest.approx(expected, rel=1e-12 if name in DOUBLE else 1e-5)
    assert m.point.misfit == pytest.approx(
        float(m.mean_loss(m.reference.outputs(m.theta, m.point.W))), rel=1e-12 if name in DOUBLE else 1e-5
    )


@every_double
def test_eliminated_head_is_stationary(name):
    m = made(name)
    assert float(m.reference.gradient_W.norm()) <= 1e-9


@every_case
def test_reduced_gradient_is_autograds(name):
    m = made(name)
    assert relative(m.point.gradient(), m.reference.gradient) <= tolerance(name)


@every_case
def test_reduced_gauss_newton_is_the_dense_one(name):
    m = made(name)
    assert against_dense(m.point.curvature(), m.reference.gauss_newton) <= tolerance(name)


@every_case
def test_reduced_jacobian_is_the_dense_one(name):
    m = made(name)
    assert against_dense(m.point.jacobian(), m.rows(m.reference.reduced_jacobian)) <= tolerance(name)


@every_case
def test_head_jacobian_is_the_dense_one(name):
    m = made(name)
    through = m.point.sensitivity.head_jacobian
    feature_jacobian = m.point.linearization.jvp
    columns = [through.mv(feature_jacobian(e)).reshape(-1) for e in torch.eye(m.theta.numel(), dtype=F64)]
    difference = (torch.stack(columns, 1) - m.reference.head_jacobian).abs().max()
    assert float(difference) <= tolerance(name) * float(m.reference.head_jacobian.abs().max())


@every_case
def test_full_gradient_is_autograds(name):
    m = made(name)
    W = m.some_W()
    point, dense = m.full_at(m.theta, W), m.dense(W)
    assert point.value == pytest.approx(float(dense.phi(m.theta, W)), rel=1e-12 if name in DOUBLE else 1e-5)
    assert relative(point.gradient(), torch.cat([dense.gradient, dense.gradient_W.reshape(-1)])) <= tolerance(name)


@every_case
def test_full_gauss_newton_is_the_dense_joint_one(name):
    m = made(name)
    W = m.some_W()
    point, dense = m.full_at(m.theta, W), m.dense(W)
    assert against_dense(point.curvature(), dense.full_gauss_newton) <= tolerance(name)
    assert against_dense(point.jacobian(), m.rows(torch.cat(dense.partial_jacobians, 1))) <= tolerance(name)


def test_full_gauss_newton_couples_theta_and_W():
    m = made("mlp, multinomial")
    n = m.theta.numel()
    coupling = m.full_at(m.theta, m.some_W()).curvature().dense()[:n, n:]
    assert float(coupling.abs().max()) > 1e-3


@every_double
def test_taylor_remainder_of_the_reduced_objective_is_second_order(name):
    m = made(name)
    d = m.direction(m.theta)
    slope = float(m.point.gradient() @ d)
    order = taylor_order(lambda h: abs(m.reduced_at(m.theta + h * d).value - m.point.value - h * slope), floor=1e-12)
    assert order >= 1.9


@every_double
def test_taylor_remainder_of_the_reduced_outputs_is_second_order(name):
    m = made(name)
    d = m.direction(m.theta)
    dX = m.point.jacobian().mv(d)
    order = taylor_order(
        lambda h: float((m.reduced_at(m.theta + h * d).outputs - m.point.outputs - h * dX).norm()), floor=1e-9
    )
    assert order >= 1.9


@every_double
def test_taylor_remainder_of_the_eliminated_head_is_second_order(name):
    m = made(name)
    d = m.direction(m.theta)
    dW = m.point.sensitivity.head_jacobian.mv(m.point.linearization.jvp(d))
    order = taylor_order(
        lambda h: float((m.reduced_at(m.theta + h * d).W - m.point.W - h * dW).norm()),
        floor=1e-6 * float(m.point.W.norm()),
        steps=[2.0**-k for k in range(3, 17)],
    )
    assert order >= 1.9


@every_double
def test_taylor_remainder_of_the_full_objective_is_second_order(name):
    m = made(name)
    point = m.full_at(m.theta, m.some_W())
    d = m.direction(point.x)
    slope = float(point.gradient() @ d)
    full = m.problem.full
    order = taylor_order(lambda h: abs(full.at(point.x + h * d, None).value - point.value - h * slope))
    assert order >= 1.9


@every_double
def test_jacobians_are_exact_transposes(name):
    m = made(name)
    assert adjoint_gap(m.point.jacobian()) <= 1e-12
    assert adjoint_gap(m.point.sensitivity.head_jacobian) <= 1e-12
    assert adjoint_gap(m.full_at(m.theta, m.some_W()).jacobian()) <= 1e-12


@every_double
def test_curvature_is_symmetric(name):
    # It is a Schur complement of the full matrix, so rounding is measured against what it was subtracted from.
    m = made(name)
    A, whole = m.point.curvature(), m.full_at(m.theta, m.point.W).curvature()
    x, y = m.direction(m.theta, 1), m.direction(m.theta, 2)
    gap = abs(float(A.mv(x) @ y - x @ A.mv(y)))
    assert gap <= 1e-12 * float(whole.mv(torch.cat([x, torch.zeros(m.point.W.numel(), dtype=F64)])).norm())


@pytest.mark.parametrize("name", ["mlp, multinomial", "mlp, logistic", "fewer samples than features, multinomial"])
def test_jacobians_are_exact_transposes_at_every_rank_of_the_inner_krylov_space(name):
    m = made(name)
    gaps, ranks = [], set()
    for rank in range(1, m.point.W.numel() + 1):
        point = m.reduced_at(m.theta, NewtonKrylov(max_rank=rank, krylov_rtol=1e-14))
        gaps.append(adjoint_gap(point.jacobian()))
        gaps.append(adjoint_gap(point.sensitivity.head_jacobian))
        gaps.append(adjoint_gap(point.curvature()))
        inverse = point.sensitivity.fit.inverse_hessian
        gaps.append(adjoint_gap(inverse))
        ranks.add(int(torch.linalg.matrix_rank(inverse.dense())))
    assert max(gaps) <= 1e-12
    assert len(ranks) >= 4  # the loop did see low ranks and high ones


def test_at_full_rank_the_pseudo_inverse_gives_the_dense_gauss_newton_matrix():
    m = made("mlp, logistic")
    eliminator = NewtonKrylov(max_rank=100, krylov_rtol=1e-14)
    point = m.reduced_at(m.theta, eliminator)
    assert not point.sensitivity.fit.inverse_is_exact
    assert against_dense(point.curvature(), m.reference.gauss_newton) <= 1e-6


def peaks_like_resnet(theta_penalty: float = 5e-6, head_penalty: float = 1e-5):
    """A stand-in for appendix A's experiment: a ResNet of width 4, depth 8, final time 5, five classes."""
    case = Case(
        lambda: nn.Sequential(ResNet(2, 4, depth=8, final_time=5.0), nn.Linear(4, 5)),
        "multinomial",
        labels(5),
        inputs=(100, 2),
        theta_penalty=theta_penalty,
        head_penalty=head_penalty,
    )
    return make(case)


@pytest.mark.parametrize("kind", [NewtonKrylov, Newton])
def test_gradient_is_second_order_only_when_the_head_is_eliminated_well(kind):
    # Appendix A: the gradient's error is J_W' grad_W Phi, so a loose inner tolerance costs the order.
    m = peaks_like_resnet()
    d = m.direction(m.theta)
    exact = {
        h: m.reduced_at(m.theta + h * d, Newton(atol=1e-13, rtol=1e-13)).value for h in [2.0**-k for k in range(3, 16)]
    }

    def order(tolerance: float) -> float:
        point = m.reduced_at(m.theta, kind(atol=tolerance, rtol=tolerance))
        slope = float(point.gradient() @ d)
        value = m.reduced_at(m.theta, Newton(atol=1e-13, rtol=1e-13)).value
        return taylor_order(lambda h: abs(exact[h] - value - h * slope), steps=list(exact), floor=1e-12)

    assert order(1e-10) >= 1.9
    assert order(1e-1) <= 1.3


def projected_residual(theta, m):
    """Golub and Pereyra's variable projection functional: the residual orthogonal to the range of Z."""
    features = m.network.model[:-1]
    values, start = {}, 0
    for name, p in features.named_parameters():
        values[name] = theta[start : start + p.numel()].reshape(p.shape)
        start += p.numel()
    Z = torch.func.functional_call(features, values, (m.inputs,))
    Z = torch.cat([Z, Z.new_ones(len(Z), 1)], 1)
    orthogonal = torch.eye(len(Z), dtype=F64) - Z @ torch.linalg.solve(Z.T @ Z, Z.T)
    return (orthogonal @ m.targets).reshape(-1)


def test_least_squares_is_classical_variable_projection():
    m = make(Case(lambda: mlp(2), "least_squares", real(2), theta_penalty=1e-3, head_penalty=0.0))
    r = projected_residual(m.theta, m)
    J = jacrev(projected_residual)(m.theta, m)
    n = len(m.inputs)
    point = m.point
    assert point.misfit == pytest.approx(float(r @ r) / (2 * n), rel=1e-12)
    gradient = J.T @ r / n + 1e-3 * m.theta
    matrix = J.T @ J / n + 1e-3 * torch.eye(m.theta.numel(), dtype=F64)
    assert relative(point.gradient(), gradient) <= 1e-9
    assert against_dense(point.curvature(), matrix) <= 1e-9
    step = torch.linalg.solve(point.curvature().dense(), -point.gradient())
    assert relative(step, torch.linalg.solve(matrix, -gradient)) <= 1e-7


def test_least_squares_with_a_head_penalty_is_classical_on_the_augmented_problem():
    # Appending sqrt(n a2) I to Z and zeros to C turns the penalty into rows of data, whose Jacobian is a2 J_W'J_W.
    m = make(Case(lambda: mlp(2), "least_squares", real(2), theta_penalty=0.0, head_penalty=1e-2))
    n, k = len(m.inputs), 5

    def residual(theta):
        features, values, start = m.network.model[:-1], {}, 0
        for name, p in features.named_parameters():
            values[name] = theta[start : start + p.numel()].reshape(p.shape)
            start += p.numel()
        Z = torch.func.functional_call(features, values, (m.inputs,))
        Z = torch.cat([torch.cat([Z, Z.new_ones(n, 1)], 1), (n * 1e-2) ** 0.5 * torch.eye(k, dtype=F64)])
        C = torch.cat([m.targets, torch.zeros(k, 2, dtype=F64)])
        return (C - Z @ torch.linalg.solve(Z.T @ Z, Z.T @ C)).reshape(-1)

    r, J = residual(m.theta), jacrev(residual)(m.theta)
    assert m.point.value == pytest.approx(float(r @ r) / (2 * n), rel=1e-12)
    assert relative(m.point.gradient(), J.T @ r / n) <= 1e-10
    assert against_dense(m.point.curvature(), J.T @ J / n) <= 1e-10


def test_reduced_gradient_is_what_autograd_finds_through_the_elimination():
    m = make(Case(lambda: mlp(2), "least_squares", real(2)))

    def reduced(theta):
        features, values, start = m.network.model[:-1], {}, 0
        for name, p in features.named_parameters():
            values[name] = theta[start : start + p.numel()].reshape(p.shape)
            start += p.numel()
        Z = torch.func.functional_call(features, values, (m.inputs,))
        Z = torch.cat([Z, Z.new_ones(len(Z), 1)], 1)
        n = len(Z)
        Wt = torch.linalg.solve(Z.T @ Z / n + 1e-3 * torch.eye(Z.shape[1], dtype=F64), Z.T @ m.targets / n)
        return ((Z @ Wt - m.targets) ** 2).sum() / (2 * n) + 5e-3 * (theta**2).sum() + 5e-4 * (Wt**2).sum()

    assert m.point.value == pytest.approx(float(reduced(m.theta)), rel=1e-13)
    assert relative(m.point.gradient(), jacrev(reduced)(m.theta)) <= 1e-11


def test_features_that_are_not_finite_give_a_value_that_is_not_a_number():
    m = made("mlp, least squares")
    point = m.reduced_at(torch.full_like(m.theta, torch.inf))
    assert point.fit is None
    assert point.value != point.value


def test_a_point_near_by_starts_the_elimination():
    m = made("mlp, multinomial")
    objective = m.problem.reduced
    near = m.reduced_at(m.theta + 1e-6 * m.direction(m.theta))
    warm, cold = objective.at(m.theta, near), objective.at(m.theta, None)
    assert warm.fit.iterations < cold.fit.iterations
    assert relative(warm.W, cold.W) <= 1e-7


@pytest.mark.parametrize("switch", ["theta_penalty", "head_penalty"])
def test_each_penalty_changes_value_gradient_and_curvature(switch):
    base = CASES["mlp, least squares"]
    other = make(dataclasses.replace(base, **{switch: 0.5}))
    m = make(base)
    assert abs(other.point.value - m.point.value) > 1e-4
    assert relative(other.point.gradient(), m.point.gradient()) > 1e-3
    assert relative(other.point.curvature().dense(), m.point.curvature().dense()) > 1e-3
