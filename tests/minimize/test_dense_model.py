"""The exact step: what it promises within a radius, for a damping, and in a scaled norm."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dense_cases import F64, relative
from gnvpro.minimize.dense_model import LEAST_CURVATURE, DenseModel, scaled_metric
from gnvpro.minimize.step_rules import Damping, NielsenRule, RadiusRule
from gnvpro.network.subspace import all_directions


def model_of(matrix: Tensor, gradient: Tensor) -> DenseModel:
    return DenseModel(matrix, gradient, torch.ones_like(gradient), lambda y: y)


def random_model(n: int = 12, rank: int = 12) -> DenseModel:
    torch.manual_seed(1)
    J = torch.randn(rank, n, dtype=F64)
    return model_of(J.T @ J, J.T @ torch.randn(rank, dtype=F64))


@pytest.mark.parametrize("rank", [12, 7])
@pytest.mark.parametrize("radius", [1e-6, 1e-2, 0.1, 0.3])
def test_step_lies_on_the_sphere_and_nothing_on_it_is_better(rank: int, radius: float) -> None:
    model = random_model(rank=rank)
    step = model.solve_within(radius)
    assert float(torch.linalg.vector_norm(step.d_x)) == pytest.approx(radius, rel=1e-13)
    assert step.damping > 0
    residual = model.matrix @ step.d_x + step.damping * step.d_x + model.gradient
    assert float(residual.norm()) < 1e-10 * float(model.gradient.norm())
    others = torch.randn(200, 12, dtype=F64)
    others = others * (radius / others.norm(dim=1, keepdim=True))
    reductions = -(others @ model.gradient) - 0.5 * ((others @ model.matrix) * others).sum(1)
    assert step.predicted_reduction >= float(reductions.max())


@pytest.mark.parametrize("radius", [1e-5, 1e-2, 0.3, 100.0])
def test_factors_and_eigenvalues_find_the_same_step(radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    J = torch.randn(20, 12, dtype=F64) * torch.logspace(-1, 0, 12, dtype=F64)
    known = J.T @ J, J.T @ torch.randn(20, dtype=F64), torch.logspace(0, -2, 12, dtype=F64)
    by_factors = DenseModel(*known, lambda y: y)
    step = by_factors.solve_within(radius)
    assert "_eigen" not in vars(by_factors)
    monkeypatch.setattr("gnvpro.minimize.dense_model.MAX_FACTORS", 0)
    other = DenseModel(*known, lambda y: y).solve_within(radius)
    assert relative(step.d_x, other.d_x) < 1e-9
    assert step.damping == pytest.approx(other.damping, rel=1e-9)
    inside = 1e-9 if step.damping == 0 else 1e-12  # as far as the step's own digits go; at the radius, the radius
    assert step.norm == pytest.approx(other.norm, rel=inside)


@pytest.mark.parametrize("rank", [12, 7])
def test_step_inside_is_the_minimum_of_least_norm(rank: int) -> None:
    model = random_model(rank=rank)
    step = model.solve_within(1e6)
    assert step.damping == 0
    assert relative(step.d_x, -torch.linalg.pinv(model.matrix, rtol=1e-12) @ model.gradient) < 1e-9


def test_hard_case_goes_to_the_boundary_along_the_negative_curvature() -> None:
    torch.manual_seed(2)
    Q = torch.linalg.qr(torch.randn(4, 4, dtype=F64)).Q
    matrix = Q @ torch.diag(torch.tensor([-1.0, 0.5, 2.0, 3.0], dtype=F64)) @ Q.T
    gradient = Q @ torch.tensor([0.0, 0.3, -0.2, 0.1], dtype=F64)
    step = model_of(matrix, gradient).solve_within(2.0)
    assert step.norm == pytest.approx(2.0, rel=1e-12)
    assert step.damping == pytest.approx(1.0, rel=1e-12)
    assert float((matrix @ step.d_x + step.damping * step.d_x + gradient).norm()) < 1e-12
    easy = model_of(matrix, gradient + 1e-3 * Q[:, 0]).solve_within(2.0)
    assert easy.norm == pytest.approx(2.0, rel=1e-12)
    assert easy.damping > 1.0
    assert relative(easy.d_x.abs(), step.d_x.abs()) < 1.0


def test_more_damping_means_shorter_steps_and_less_promised() -> None:
    model = random_model()
    steps = [model.solve_damped(10.0**k) for k in range(-8, 6)]
    assert all(a.norm > b.norm for a, b in pairwise(steps))
    assert all(a.predicted_reduction > b.predicted_reduction > 0 for a, b in pairwise(steps))
    assert relative(steps[-1].d_x, -model.gradient / 1e5) < 1e-2
    within = model.solve_within(steps[5].norm)
    assert within.damping == pytest.approx(steps[5].damping, rel=1e-8)


def test_damping_is_raised_where_the_matrix_is_not_positive_definite() -> None:
    model = model_of(torch.diag(torch.tensor([1.0, -1e-3], dtype=F64)), torch.ones(2, dtype=F64))
    step = model.solve_damped(1e-8)
    assert 1e-3 < step.damping <= 1e-1
    assert step.predicted_reduction > 0


def test_a_matrix_that_is_not_finite_is_no_model_to_take_steps_from() -> None:
    assert model_of(torch.full((2, 2), math.inf, dtype=F64), torch.ones(2, dtype=F64)).rank == 0


# -- rules


def test_nielsens_table() -> None:
    rule = NielsenRule()
    start = Damping(1.0, 2.0)
    for ratio, factor in [
        (1.0, 1 / 3),
        (3.0, 1 / 3),
        (0.75, 1 - 0.5**3),
        (0.5, 1.0),
        (0.25, 1 + 0.5**3),
        (1e-3, 1.994),
    ]:
        after = rule.update(start, 0.1, ratio)
        damping, growth = after.damping, after.growth
        assert damping == pytest.approx(factor, rel=1e-3)
        assert growth == 2.0
    bound = start
    for damping, growth in [(2.0, 4.0), (8.0, 8.0), (64.0, 16.0)]:
        bound = rule.update(bound, 0.1, -1.0)
        assert bound == Damping(damping, growth)
    assert rule.update(start, 0.1, math.nan) == Damping(2.0, 4.0)
    assert rule.update(Damping(64.0, 16.0), 0.1, 0.9).growth == 2.0


def test_first_bounds_are_a_thousandth_of_the_diagonal() -> None:
    model = random_model()
    step, bound = NielsenRule().propose(model, None)
    assert bound == Damping(1e-3 * float(model.matrix.diagonal().max()), 2.0)
    within, radius = RadiusRule().propose(model, None)
    assert radius == pytest.approx(step.norm)
    assert relative(within.d_x, step.d_x) < 1e-7


# -- the norm of steps


def two_tensors(scaling: float, units: tuple[float, float] = (1.0, 1.0)) -> tuple[DenseModel, Tensor]:
    """A model with separate units for its parameters p and q, and those units, one per direction."""
    torch.manual_seed(2)
    J, r = torch.randn(20, 7, dtype=F64), torch.randn(20, dtype=F64)
    c = torch.tensor([units[0]] * 3 + [units[1]] * 4, dtype=F64)
    subspace = all_directions([("p", (3,)), ("q", (2, 2))], c.device)
    J = J * c
    metric = scaled_metric(subspace.parameter_means((J.T @ J).diagonal()), scaling)
    return DenseModel(J.T @ J, J.T @ r, metric, subspace.expand), c


@pytest.mark.parametrize("scaling", [0.0, 0.75, 1.0])
def test_norm_of_steps_follows_the_mean_curvature_of_each_tensor(scaling: float) -> None:
    model, _ = two_tensors(scaling, (1.0, 30.0))
    diagonal = model.matrix.diagonal()
    share = float(diagonal[:3].mean() / diagonal[3:].mean())
    assert torch.allclose(model.metric, torch.tensor([share**scaling] * 3 + [1.0] * 4, dtype=F64), rtol=1e-14)
    step = model.solve_damped(0.5)
    want = -torch.linalg.solve(model.matrix + 0.5 * model.metric.diag(), model.gradient)
    assert relative(step.d_x, want) < 1e-12
    assert step.norm == pytest.approx(math.sqrt(float(model.metric @ want.square())), rel=1e-12)
    assert (
        relative(
            model.solve(-model.gradient, 0.3),
            -torch.linalg.solve(model.matrix + 0.3 * model.metric.diag(), model.gradient),
        )
        < 1e-10
    )
    within = model.solve_within(0.5 * step.norm)
    assert within.norm == pytest.approx(0.5 * step.norm, rel=1e-10)
    assert relative(within.d_x, model.solve_damped(within.damping).d_x) < 1e-10
    shorter = [model.expand(step.d_x * 0.5), model.expand(-model.gradient / model.metric)]
    for other in shorter:  # no step of that length is better
        other = other * (0.5 * step.norm / model.length(other))
        assert -(model.gradient @ other + 0.5 * other @ model.matrix @ other) <= within.predicted_reduction


def test_fully_scaled_steps_do_not_depend_on_the_units_of_a_tensor() -> None:
    for solve in (lambda m: m.solve_damped(1e-3 * m.scale), lambda m: m.solve_within(m.first_radius)):
        plain, _ = two_tensors(1.0)
        other, c = two_tensors(1.0, (1e-2, 50.0))
        assert relative(c * solve(other).d_x, solve(plain).d_x) < 1e-10
        assert relative(c * solve(two_tensors(0.0, (1e-2, 50.0))[0]).d_x, solve(plain).d_x) > 0.1


def test_tensor_without_curvature_is_held() -> None:
    model, _ = two_tensors(1.0, (0.0, 1.0))
    assert float(model.metric.min()) == LEAST_CURVATURE
    assert torch.isfinite(model.solve_damped(1e-3).d_x).all()
    assert torch.equal(scaled_metric(torch.zeros(3, dtype=F64), 1.0), torch.ones(3, dtype=F64))
