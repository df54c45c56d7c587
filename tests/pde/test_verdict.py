"""The estimated error is near the true one, and what is not solved never ends as an ordinary result."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import gnvpro
from gnvpro import Status, pde
from gnvpro.experiments.equations import references
from gnvpro.pde.verdict import verdict

F64 = torch.float64
ENDS = torch.tensor([[0.0], [1.0]], dtype=F64)


def tanh(n_inputs: int, width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return gnvpro.networks.MLP(n_inputs, [width], dtype=F64)


def relative_error(u: pde.Field, exact, points: Tensor) -> float:
    return float((u(points)[:, 0].detach() - exact(points)).norm() / exact(points).norm())


def waves(frequency: int) -> tuple[pde.Field, list[pde.Equation], object, Tensor]:
    """-lap u = f on the square, u = sin(k pi x) sin(k pi y)."""
    u, box = pde.Field(tanh(2, 25)), pde.points.Box([0, 0], [1, 1])

    def exact(x: Tensor) -> Tensor:
        return torch.sin(frequency * math.pi * x).prod(1)

    equations = [
        pde.Equation(-pde.laplacian(u), box.inside(300), lambda x: 2 * (frequency * math.pi) ** 2 * exact(x)),
        pde.Equation(u, box.boundary(60), 0.0),
    ]
    return u, equations, exact, box.inside(2000, 5, "uniform").points


@pytest.mark.parametrize(("frequency", "iterations"), [(1, 2), (1, 15), (4, 15)])
def test_the_estimate_is_within_a_factor_of_three_of_the_error(frequency: int, iterations: int) -> None:
    u, equations, exact, points = waves(frequency)
    result = pde.solve(u, equations, iterations=iterations)
    true = relative_error(u, exact, points)
    assert true / 3 < result.error < 3 * true
    assert result.solved is (result.error <= 1e-2)


def test_a_nonlinear_equation_is_estimated_too() -> None:
    """u'' = u^3 - f with u = sin(3 x) + x, whose linearisation depends on u."""
    u, line = pde.Field(tanh(1, 12)), pde.points.Box([0.0], [1.0])

    def exact(x: Tensor) -> Tensor:
        return torch.sin(3 * x[:, 0]) + x[:, 0]

    equations = [
        pde.Equation(pde.d(u, 0, 0) - u**3, line.inside(80), lambda x: -9 * torch.sin(3 * x[:, 0]) - exact(x) ** 3),
        pde.Equation(u, ENDS, exact),
    ]
    result = pde.solve(u, equations, iterations=4)
    true = relative_error(u, exact, line.inside(500, 5).points)
    assert true / 5 < result.error < 5 * true


def test_an_unknown_constant_counts_as_unknown_in_the_estimate() -> None:
    """-a u'' = 1 with u known at three points: with a held, the residual would be blamed on u alone."""
    a, line = pde.Constant(1.0), pde.points.Box([0.0], [1.0])
    u = pde.Field(tanh(1, 12))
    data = torch.tensor([[0.25], [0.5], [0.75]], dtype=F64)
    equations = [
        pde.Equation(-a * pde.d(u, 0, 0), line.inside(60), 1.0),
        pde.Equation(u, ENDS, 0.0),
        pde.Equation(u, data, lambda x: x[:, 0] * (1 - x[:, 0])),  # a = 1/2
    ]
    result = pde.solve(u, equations, iterations=30)
    assert a.value == pytest.approx(0.5, rel=1e-4)
    assert result.solved
    assert result.error < 1e-4


@pytest.mark.parametrize("iterations", [100, 600])
def test_equations_that_contradict_each_other_are_not_solved(iterations: int) -> None:
    """-u'' = 8 u has no solution but zero, and zero does not satisfy integral(u u) = 1."""
    u, line = pde.Field(tanh(1, 8)), pde.points.Box([0.0], [1.0])
    nodes, weights = torch.linspace(0, 1, 51, dtype=F64)[:, None], torch.full((51,), 1 / 51, dtype=F64)
    equations = [
        pde.Equation(-pde.d(u, 0, 0) - 8.0 * u, line.inside(50)),
        pde.Equation(u, ENDS, 0.0),
        pde.Equation(pde.integral(u * u, nodes, weights), None, 1.0),
    ]
    result = pde.solve(u, equations, iterations=iterations)
    assert result.error == math.inf
    assert not result.solved
    assert result.status is Status.NOT_SOLVED
    assert "not solved" in str(result.summary())


def test_equations_without_data_are_solved_by_zero() -> None:
    u, line = pde.Field(tanh(1, 8)), pde.points.Box([0.0], [1.0])
    result = pde.solve(u, [pde.Equation(pde.d(u, 0, 0), line.inside(20)), pde.Equation(u, ENDS, 0.0)], iterations=2)
    assert result.error == 0.0
    assert result.solved


def test_predators_and_prey_over_a_long_time_are_not_solved_by_a_short_run() -> None:
    u, span = pde.Field(tanh(1, 20), outputs=2), pde.points.Box([0.0], [20.0]).inside(100)
    start = torch.zeros(1, 1, dtype=F64)
    equations = [
        pde.Equation(pde.d(u[0], 0) - 1.5 * u[0] + u[0] * u[1], span),
        pde.Equation(pde.d(u[1], 0) + 3.0 * u[1] - u[0] * u[1], span),
        pde.Equation(u[0], start, 1.0),
        pde.Equation(u[1], start, 1.0),
    ]
    result = pde.solve(u, equations, iterations=20)
    assert not result.solved
    assert result.status is Status.NOT_SOLVED
    assert any(str(Status.ITERATIONS_SPENT) in note for note in result.notes)


@pytest.mark.parametrize(
    ("ended", "error", "expected"),
    [
        (Status.SETTLED, 1e-3, Status.SETTLED),
        (Status.SETTLED, 0.02, Status.NOT_SOLVED),
        (Status.SECONDS_SPENT, 0.02, Status.SECONDS_SPENT),
        (Status.SECONDS_SPENT, 0.3, Status.NOT_SOLVED),
        (Status.SECONDS_SPENT, math.nan, Status.NOT_SOLVED),
    ],
)
def test_the_status_is_a_claim_about_the_error(ended: Status, error: float, expected: Status) -> None:
    assert verdict(ended, error, 1e-2) is expected


def test_the_tolerance_decides_what_is_solved() -> None:
    u, equations, _, _ = waves(1)
    assert not pde.solve(u, equations, iterations=2, tolerance=1e-12).solved
    with pytest.raises(ValueError, match="tolerance"):
        pde.solve(u, equations, iterations=2, tolerance=0.0)


def test_the_error_of_a_periodic_field_is_periodic() -> None:
    """u_t + u u_x = u_xx / 5 on a circle: errors without a period could enter at both ends, and grew to 17 times the field."""
    box = pde.points.Box([0, -1], [1, 1])
    u = pde.Field(torch.nn.Sequential(pde.Periodic(2, {1: 2.0}), *tanh(3, 20)))
    equations = [
        pde.Equation(pde.d(u, 0) + u * pde.d(u, 1) - 0.2 * pde.d(u, 1, 1), box.inside(400)),
        pde.Equation(u, box.face(0, "low", 60), lambda x: -torch.sin(math.pi * x[:, 1])),
    ]
    result = pde.solve(u, equations, iterations=25)
    points = box.inside(1000, 5).points
    true = relative_error(u, lambda x: references.burgers(x, 0.2), points)
    assert true / 5 < result.error < 5 * true
