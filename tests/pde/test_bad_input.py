"""Errors and warnings of `pde.solve` before it begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equation_cases import ENDS, LINE, SQUARE, network
from gnvpro import pde


def test_relu_with_a_laplacian_is_refused() -> None:
    u = pde.Field(nn.Sequential(nn.Linear(2, 5), nn.ReLU()).double())
    with pytest.raises(ValueError, match=r"ReLU is linear piece by piece.*smooth activation"):
        pde.solve(u, [pde.Equation(pde.laplacian(u), SQUARE.inside(20), 1.0), pde.Equation(u, SQUARE.boundary(9), 0.0)])


def test_a_hidden_relu_is_found_by_its_derivatives() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 5, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.inner(x))

    u = pde.Field(Hidden())
    with pytest.raises(ValueError, match=r"all its second derivatives are zero.*or scale the points"):
        pde.solve(u, [pde.Equation(pde.laplacian(u), SQUARE.inside(20), 1.0), pde.Equation(u, SQUARE.boundary(9), 0.0)])


def test_relu_may_solve_an_equation_of_first_order() -> None:
    u = pde.Field(nn.Sequential(nn.Linear(1, 5), nn.ReLU()).double())
    pde.solve(u, [pde.Equation(pde.d(u, 0), LINE.inside(20), 1.0), pde.Equation(u, ENDS[:1], 0.0)], iterations=1)


def test_no_boundary_condition_is_said_and_the_least_norm_taken() -> None:
    u = pde.Field(network(1, [5]))
    with pytest.warns(UserWarning, match="no equation fixes the value") as said:
        result = pde.solve(u, [pde.Equation(pde.d(u, 0, 0), LINE.inside(30), 1.0)], iterations=2)
    assert len(said) == 1
    assert "least norm" in result.notes[0]
    assert float(u.head.bias.detach()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("make", [lambda u: 1 / u, lambda u: pde.log(u), lambda u: (lambda x: 1 / (0 * x[:, 0])) * u])
def test_an_equation_without_a_value_at_the_start_is_named(make: Any) -> None:
    u = pde.Field(network(1, [5]))
    equations = [pde.Equation(u, ENDS, 1.0), pde.Equation(make(u), LINE.inside(20), 1.0, name="inside")]
    with pytest.raises(ValueError, match=r"inside has no finite value.*begins at zero"):
        pde.solve(u, equations, iterations=1)


def test_a_field_may_begin_elsewhere_than_at_zero() -> None:
    """1/u = 1 + x, from u = 1."""
    u = pde.Field(network(1, [10], seed=0))
    nn.init.ones_(u.head.bias)
    pde.solve(u, [pde.Equation(1 / u, LINE.inside(40), lambda x: 1 + x[:, 0])], seconds=None, iterations=40)
    x = torch.rand(20, 1, dtype=torch.float64)
    assert float((u(x) - 1 / (1 + x)).detach().abs().max()) < 1e-6


def test_dropout_and_batch_norm_are_solved_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(1, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5)).double()
    u = pde.Field(features)
    assert int(features[1].num_batches_tracked) == 0  # nothing was written into the user's statistics
    equations = [pde.Equation(pde.d(u, 0, 0), LINE.inside(20), 1.0), pde.Equation(u, ENDS, 0.0)]
    with pytest.warns(UserWarning, match="evaluation mode"):
        pde.solve(u, equations, iterations=2)
    assert features.training
    x = torch.rand(20, 1, dtype=torch.float64)
    assert float((u.eval()(x) - x * (x - 1) / 2).detach().abs().max()) < 0.1


def test_only_one_equation_with_derivatives_is_said() -> None:
    u = pde.Field(network(1, [5]))
    with pytest.warns(UserWarning, match="no boundary or initial condition"):
        pde.solve(u, [pde.Equation(pde.d(u, 0) + u, LINE.inside(30), 1.0)], iterations=1)


def test_fewer_points_than_features_are_said() -> None:
    u = pde.Field(network(1, [40]))
    with pytest.warns(UserWarning, match="fewer points than features"):
        pde.solve(u, [pde.Equation(u, LINE.inside(10), 1.0)], iterations=1)


def test_equations_of_another_field_are_refused() -> None:
    u, v = pde.Field(network(1, [4])), pde.Field(network(1, [4]))
    with pytest.raises(ValueError, match="another field"):
        pde.solve(u, [pde.Equation(v, LINE.inside(10), 1.0)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": -1.0}, "seconds must be at least 0"),
        ({"iterations": -1}, "iterations must be at least 0"),
        ({"head_penalty": -1e-9}, "head_penalty must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"head": "both"}, "head='both' is not known"),
        ({"resume": True}, "resume=True needs checkpoint=PATH"),
    ],
)
def test_settings_that_mean_nothing_are_refused(arguments: dict[str, object], message: str) -> None:
    u = pde.Field(network(2, [4]))
    equations = [pde.Equation(u, SQUARE.inside(20), 1.0)]
    with pytest.raises(ValueError, match=message):
        pde.solve(u, equations, **arguments)  # type: ignore[arg-type]


def test_no_equations_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one equation"):
        pde.solve(pde.Field(network(1, [4])), [])
