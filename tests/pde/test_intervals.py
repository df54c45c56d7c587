"""Intervals of unknown constants hold the truth as often as they say, and are as wide as a dense reference."""

from __future__ import annotations

import pytest
import torch
from tests.equation_cases import ENDS, LINE, network
from torch import Tensor

from gnvpro import pde

F64 = torch.float64
WHERE = torch.linspace(0.05, 0.95, 40, dtype=F64)[:, None]


def measured(noise: float, seed: int) -> Tensor:
    """u = x (1 - x) of -u'' / 2 = 1, measured with noise."""
    values = (WHERE * (1 - WHERE))[:, 0]
    return values + noise * torch.randn(40, dtype=F64, generator=torch.Generator().manual_seed(seed))


def found(noise: float, seed: int) -> tuple[pde.Constant, pde.Solution]:
    a, u = pde.Constant(1.0, "a"), pde.Field(network(1, [6]))
    equations = [
        pde.Equation(-a * pde.d(u, 0, 0), LINE.inside(60), 1.0, weight=100.0),
        pde.Equation(u, ENDS, 0.0, weight=100.0),
        pde.Equation(u, WHERE, measured(noise, seed), weight=1.0),
    ]
    return a, pde.solve(u, equations, iterations=20)


def test_the_interval_is_as_wide_as_that_of_the_curve_fit() -> None:
    """With the equation exact, u = x (1 - x) / (2 a): the textbook deviation of 1 / (2 a) from 40 values."""
    a, result = found(0.01, 1)
    low, high = result.intervals["a"]
    shape = (WHERE * (1 - WHERE))[:, 0]
    values = measured(0.01, 1)
    slope = float(shape @ values / (shape @ shape))  # 1 / (2 a)
    s = float((values - slope * shape).norm()) / 39**0.5
    expected = 1.96 * s / float(shape.norm()) / (2 * slope**2)
    assert float(a) == pytest.approx(1 / (2 * slope), rel=1e-3)
    assert (high - low) / 2 == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_the_truth_is_in_most_intervals() -> None:
    held = [low <= 0.5 <= high for low, high in (found(0.02, seed)[1].intervals["a"] for seed in range(12))]
    assert sum(held) >= 9


def test_a_result_without_constants_has_no_intervals_and_the_summary_shows_those_of_others() -> None:
    u = pde.Field(network(1, [6]))
    result = pde.solve(
        u, [pde.Equation(pde.d(u, 0, 0), LINE.inside(20), 1.0), pde.Equation(u, ENDS, 0.0)], iterations=1
    )
    assert result.intervals == {}
    assert "(95%)" in str(found(0.01, 0)[1].summary())


@pytest.mark.parametrize("name", ["constant", "b"])
def test_constants_of_one_name_are_told_apart(name: str) -> None:
    a, b, u = pde.Constant(1.0), pde.Constant(0.1, name), pde.Field(network(1, [6]))
    equations = [
        pde.Equation(-a * pde.d(u, 0, 0) + b * pde.d(u, 0), LINE.inside(60), 1.0),
        pde.Equation(u, ENDS, 0.0),
        pde.Equation(u, WHERE, measured(0.01, 0)),
    ]
    intervals = pde.solve(u, equations, iterations=5).intervals
    assert list(intervals) == ["constant", "b" if name == "b" else "constant 1"]
