"""`result.plot()` shows field, residuals, points and convergence for every kind of domain."""

from __future__ import annotations

import pytest
import torch
from tests.equation_cases import ENDS, LINE, SQUARE, network

from gnvpro import pde

pytest.importorskip("matplotlib")


def titles(result: pde.Solution, against: str = "work") -> list[str]:
    figure = result.plot(against)
    figure.canvas.draw()
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_a_field_on_a_square_is_drawn() -> None:
    u = pde.Field(network(2, [6]))
    equations = [
        pde.Equation(-pde.laplacian(u), SQUARE.inside(60), 1.0, name="in $ide"),
        pde.Equation(u, SQUARE.boundary(20), 0.0),
    ]
    made = titles(pde.solve(u, equations, iterations=3), "iteration")
    assert made == ["field", r"log10 |residual| of in \$ide", "points", "loss"]


def test_a_system_on_a_line_with_an_integral_is_drawn() -> None:
    u = pde.Field(network(1, [6]), outputs=2)
    nodes, weights = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None], torch.full((11,), 0.1).double()
    equations = [
        pde.Equation(pde.d(u[0], 0) - u[1], LINE.inside(40)),
        pde.Equation(pde.d(u[1], 0), LINE.inside(40), 1.0),
        pde.Equation(u[0], ENDS, 0.0),
        pde.Equation(pde.integral(u[0], nodes, weights), None, -0.08),
    ]
    result = pde.solve(u, equations, iterations=3)
    assert titles(result)[0] == "field"
    with pytest.raises(ValueError, match="against"):
        result.plot("time")
