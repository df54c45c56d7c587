"""The Gauss-Newton matrix as a matrix: it is the one of the Krylov path, whatever the chunks, and its work is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dense_cases import CASES, EXACT, F64, LS, Case, make, ode, relative
from gnvpro import Tikhonov, time_differences
from gnvpro.minimize.dense_model import DenseModel
from gnvpro.network.passes import PassPlan
from gnvpro.objectives.gauss_newton_matrix import GaussNewtonMatrix
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.loss import HalfSquaredError


def theta_matrix(local: GaussNewtonMatrix) -> Tensor:
    Q = torch.stack([local.subspace.expand(unit) for unit in torch.eye(local.subspace.count, dtype=F64)], 1)
    return Q @ local.matrix @ Q.T


@pytest.mark.parametrize("name", CASES)
def test_matrix_and_gradient_are_those_of_the_krylov_path(name: str) -> None:
    builder, point = make(CASES[name], residual_term=True)
    local = builder.build(point)
    assert relative(theta_matrix(local), point.curvature().dense()) < 1e-10
    assert relative(local.gradient, point.gradient()) < 1e-12


@pytest.mark.parametrize("name", EXACT)
def test_kaufmans_matrix_is_the_krylov_path_without_the_residuals_term(name: str) -> None:
    builder, point = make(CASES[name], residual_term=False)
    derivatives, linear = point.sensitivity, point.linearization

    def residual_term(v: Tensor) -> Tensor:
        return linear.vjp(derivatives._residual_term(derivatives.misfit.over.inner(derivatives.G, linear.jvp(v))))

    dropped = torch.stack([residual_term(unit) for unit in torch.eye(point.x.numel(), dtype=F64)], 1)
    want = point.curvature().dense() - dropped
    local = builder.build(point)
    assert relative(theta_matrix(local), want) < 1e-10
    assert relative(local.gradient, point.gradient()) < 1e-12


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_every_chunking_gives_the_same(name: str, full: bool) -> None:
    builder, point = make(CASES[name], residual_term=full)
    whole = builder.build(point)
    for size in (1, 5, 16):
        part = builder.build(point.problem.with_passes(PassPlan(size)).reduced.at(point.x))
        assert relative(part.matrix, whole.matrix) < 1e-10
        assert relative(part.gradient, whole.gradient) < 1e-10


@pytest.mark.slow
def test_chunks_follow_from_the_bytes_allowed() -> None:
    case = CASES["least squares, more targets than features"]
    q, seeds = 44, 4
    _, point = make(case, memory=2 * (4 * 8 * q**2 + 3 * 8 * seeds * 2 * q))  # half is for passes
    assert point.problem.network.n_theta == q
    assert point.problem.passes.size == 3


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["neural ode", "multinomial, many classes", "least squares, fewer targets"])
def test_pull_back_is_the_transposed_reduced_jacobian(name: str, full: bool, keep: bool) -> None:
    builder, point = make(CASES[name], residual_term=full)
    if not keep:
        builder = replace(builder, kept_bytes=0.0)
    d_outputs, dW = torch.randn_like(point.outputs), torch.randn_like(point.W)
    local, weighted = point.sensitivity, point.problem.misfit.hessian(point.outputs)(d_outputs)
    pulled = local.output_jacobian.rmv(weighted) + point.problem.head_penalty * local.head_jacobian.rmv(dW)
    if not full:  # without the part that goes through the residual
        D = local.fit.inverse_hessian.rmv(weighted.T @ local.Z + point.problem.head_penalty * dW)
        pulled = pulled + local.G @ D[:, : local.n_features]
    before = point.problem.meter.work
    got = builder.build(point).pull_back(d_outputs, dW)
    assert point.problem.meter.work - before == builder.passes(point.problem) + (not keep)
    assert relative(got, point.linearization.vjp(pulled)) < 1e-10


@pytest.mark.parametrize(
    ("name", "full", "passes"),
    [
        ("least squares, more targets than features", False, 4),
        ("least squares, more targets than features", True, 4),
        ("least squares, fewer targets", False, 2),
        ("least squares, fewer targets", True, 4),
        ("logistic", False, 1 + 1),  # one seed, and the gradient
        ("logistic", True, 4),
        ("multinomial, few classes", False, 3 + 1),
        ("autodiff", False, 4),
    ],
)
def test_work_is_one_unit_a_seed_and_the_gradient_comes_with_it(name: str, full: bool, passes: int) -> None:
    builder, point = make(CASES[name], residual_term=full)
    assert point.problem.meter.work == 1
    builder.build(point)
    assert point.problem.meter.work == 1 + passes
    assert builder.passes(point.problem) == passes


def test_steps_without_the_symmetric_directions_are_the_same() -> None:
    case = Case(lambda: ode(6), 6, HalfSquaredError(), LS, penalty=Tikhonov(1e-3, time_differences))
    builder, point = make(case)
    few = builder.build(point)
    assert few.subspace.count < point.x.numel()
    inside = DenseModel(
        few.matrix, few.subspace.reduce(few.gradient), torch.ones(few.subspace.count, dtype=F64), few.subspace.expand
    )
    whole = DenseModel(kaufman_of(point), few.gradient, torch.ones_like(point.x), lambda y: y)
    for damping in (1e-4, 1e-1):
        a, b = inside.solve_damped(damping), whole.solve_damped(damping)
        assert relative(a.d_x, b.d_x) < 1e-9
        assert a.predicted_reduction == pytest.approx(b.predicted_reduction, rel=1e-9)


def kaufman_of(point: ReducedPoint) -> Tensor:
    local, linear = point.sensitivity, point.linearization
    units = torch.eye(point.x.numel(), dtype=F64)
    dropped = torch.stack(
        [linear.vjp(local._residual_term(local.misfit.over.inner(local.G, linear.jvp(unit)))) for unit in units], 1
    )
    return point.curvature().dense() - dropped
