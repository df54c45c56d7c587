"""Steps from the matrix of a part of the samples and products with the curvature of all."""

from __future__ import annotations

import pytest
import torch

import gnvpro
from dense_cases import F64, relative
from gnvpro.methods.models import DenseMemory
from gnvpro.minimize.dense_model import DenseModel, straight
from gnvpro.minimize.part_model import TOLERANCE, PartModel

GENERATOR = torch.Generator().manual_seed(0)
J = torch.randn(4000, 30, dtype=F64, generator=GENERATOR) * torch.logspace(0, -3, 30, dtype=F64)
A, GRADIENT = J.T @ J / 4000, J.T @ torch.randn(4000, dtype=F64, generator=GENERATOR) / 4000
METRIC = torch.linspace(0.5, 2.0, 30, dtype=F64)


def model_with(part: torch.Tensor) -> PartModel:
    return PartModel(part, GRADIENT, METRIC, lambda y: y, straight, lambda y: A @ y)


@pytest.mark.parametrize("damping", [1e-6, 1e-3, 1.0])
def test_with_the_matrix_of_all_samples_it_is_the_exact_step(damping: float) -> None:
    exact = DenseModel(A, GRADIENT, METRIC, lambda y: y).solve_damped(damping)
    step = model_with(A).solve_damped(damping)
    assert relative(step.d_x, exact.d_x) < 1e-9
    assert step.norm == pytest.approx(exact.norm, rel=1e-9)
    assert step.predicted_reduction == pytest.approx(exact.predicted_reduction, rel=1e-9)


@pytest.mark.parametrize("damping", [1e-6, 1e-3])
def test_products_correct_what_a_part_does_not_know(damping: float) -> None:
    rows = J[:150]  # five for each direction
    part = rows.T @ rows / 150
    exact = DenseModel(A, GRADIENT, METRIC, lambda y: y).solve_damped(damping)
    alone = DenseModel(part, GRADIENT, METRIC, lambda y: y).solve_damped(damping)
    step = model_with(part).solve_damped(damping)
    whole = A + damping * torch.diag(METRIC)

    def distance(d_x: torch.Tensor) -> float:
        e = d_x - exact.d_x
        return float(e @ whole @ e) / float(exact.d_x @ whole @ exact.d_x)

    assert distance(alone.d_x) > 0.01
    assert distance(step.d_x) < 2 * TOLERANCE  # equal in norm, within the accuracy of the part
    # what it promises is the reduction of the model of all samples, which the exact step reduces most for this damping
    assert step.predicted_reduction == pytest.approx(
        -float(GRADIENT @ step.d_x + 0.5 * step.d_x @ A @ step.d_x), rel=1e-12
    )


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


X = torch.rand(2000, 2, dtype=F64, generator=GENERATOR)
Y = torch.sin(4 * X[:, :1]) * X[:, 1:]


def test_products_are_with_the_matrix_of_all_samples() -> None:
    problem = gnvpro.Problem(network(), X, Y, loss="least_squares", theta_penalty=1e-3, head_penalty=1e-3)
    memory, point = DenseMemory(problem.theta()), problem.reduced.at(problem.theta())
    whole, part = (
        gnvpro.solvers.Dense(samples=samples, geodesic=False).models(problem, memory).build(memory, point)
        for samples in (None, 200)
    )
    y = torch.randn(len(whole.gradient), dtype=F64, generator=torch.Generator().manual_seed(1))
    assert relative(part.times(y), whole.times(y)) < 1e-10
    assert relative(part.gradient, whole.gradient) < 1e-10
    assert 1e-3 < relative(part.matrix, whole.matrix) < 0.3


def test_training_with_a_part_takes_nearly_the_steps_of_all_samples_and_counts_its_work() -> None:
    ends = {}
    for samples in (None, 5000, 200):
        solver = gnvpro.solvers.Dense(samples=samples, geodesic=False)
        ends[samples] = gnvpro.train(network(), X, Y, loss="least_squares", solver=solver, iterations=6)
    assert ends[5000].history.column("loss") == ends[None].history.column("loss")  # all there are
    first = [end.history[0].loss - end.history[1].loss for end in (ends[None], ends[200])]
    assert first[1] == pytest.approx(first[0], rel=0.2)
    # per step a trial, the gradient, two passes for each of at most six products, a tenth for the part, twice
    each = (ends[200].work - 2) / 6
    assert 4 < each <= 1 + 1 + 12 + 0.2 + 1e-9


def test_what_a_part_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Dense: samples needs step_control"):
        gnvpro.solvers.Dense(samples=10, step_control="radius")
    with pytest.raises(ValueError, match=r"^Dense: samples must be at least 1"):
        gnvpro.solvers.Dense(samples=0)
    with pytest.raises(ValueError, match=r"^Dense: samples needs residual_term=False"):
        gnvpro.solvers.Dense(samples=10, residual_term=True)
    labels = (Y[:, 0] > 0).long()
    with pytest.raises(ValueError, match="samples=10 is for least squares"):
        gnvpro.train(network(), X, labels, loss="logistic", solver=gnvpro.solvers.Dense(samples=10))
    solver = gnvpro.solvers.Auto(dense=gnvpro.solvers.Dense(samples=10))  # which takes what can be used
    result = gnvpro.train(network(), X, labels, loss="logistic", solver=solver, iterations=2)
    assert {record.solver for record in result.history[1:]} == {"hybrid"}
