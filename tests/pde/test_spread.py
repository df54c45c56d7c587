"""A run that gets nowhere is tried with larger first weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import gnvpro
from equation_cases import LINE
from gnvpro import pde
from gnvpro.pde.spread import first_linear, gets_nowhere
from gnvpro.pde.system import System

START = torch.zeros(1, 1, dtype=torch.float64)


def oscillation(speed: float, seed: int = 0) -> tuple[pde.Field, list[pde.Equation]]:
    """u'' = -speed^2 u with u = sin(speed x)."""
    torch.manual_seed(seed)
    u = pde.Field(gnvpro.networks.MLP(1, [12], pde.Sine, dtype=torch.float64))
    return u, [
        pde.Equation(pde.d(u, 0, 0) + speed**2 * u, LINE.inside(60), 0.0),
        pde.Equation(u, START, 0.0),
        pde.Equation(pde.d(u, 0), START, speed),
    ]


def error(u: pde.Field, speed: float) -> float:
    x = LINE.grid(50).points
    return float((u(x) - torch.sin(speed * x)).detach().abs().max())


def taken(result: pde.Solution) -> list[str]:
    return [record.note for record in result.history if record.note and "first weights" in record.note]


@pytest.mark.parametrize("spread", [False, True])
def test_a_fast_oscillation_is_found_from_weights_for_slow_ones(spread: bool) -> None:
    u, equations = oscillation(60.0)
    result = pde.solve(u, equations, seconds=None, iterations=40, spread=spread)
    assert (error(u, 60.0) < 1e-6) == spread
    assert len(taken(result)) == spread


def test_a_run_that_comes_forward_keeps_its_weights() -> None:
    u, equations = oscillation(3.0)
    result = pde.solve(u, equations, seconds=None, iterations=20)
    assert taken(result) == []
    assert error(u, 3.0) < 1e-6


def test_only_a_run_that_stalls_early_and_far_away_gets_nowhere() -> None:
    assert gets_nowhere(20, before=1.2, value=1.0, of_zero=2.0)
    assert not gets_nowhere(20, before=1.3, value=1.0, of_zero=2.0)
    assert not gets_nowhere(20, before=1.2, value=1.0, of_zero=1001.0)
    assert not gets_nowhere(40, before=1.2, value=1.0, of_zero=2.0)


def test_the_trials_are_repeated_to_the_last_bit_after_an_interruption(tmp_path: Path) -> None:
    def stop(record: gnvpro.extend.Record) -> None:
        if record.iteration == 18:
            raise KeyboardInterrupt

    whole, equations = oscillation(60.0)
    pde.solve(whole, equations, seconds=None, iterations=24)
    u, equations = oscillation(60.0)
    file = gnvpro.Checkpoint(tmp_path / "run.pt", every=3)
    with pytest.raises(KeyboardInterrupt):
        pde.solve(u, equations, seconds=None, iterations=24, checkpoint=file, listeners=[stop])
    u, equations = oscillation(60.0)
    result = pde.solve(u, equations, seconds=None, iterations=24, checkpoint=file, resume=True)
    assert len(taken(result)) == 1
    assert torch.equal(u.W(), whole.W())


def test_trials_end_with_the_budget() -> None:
    """A clock that advances by one second at each call."""
    u, equations = oscillation(60.0)
    ticks = iter(range(1000))
    result = pde.solve(u, equations, seconds=43.0, clock=lambda: float(next(ticks)))
    assert (
        f"the run ended because: {gnvpro.Status.SECONDS_SPENT}" in result.notes
    )  # its error is of the order of the solution
    assert result.history[-1].seconds < 50


def test_the_first_layer_is_the_one_that_takes_the_points() -> None:
    linear = nn.Linear(2, 3)
    assert first_linear(nn.Sequential(nn.Sequential(linear, nn.Tanh()), nn.Linear(3, 3))) is linear
    assert first_linear(pde.Beside(nn.Sequential(linear, nn.Tanh()), pde.Functions(lambda x: x))) is linear
    assert first_linear(nn.Sequential(pde.Periodic(2, {1: 2.0}), nn.Linear(3, 3))) is None
    assert first_linear(nn.Tanh()) is None


def test_weights_are_multiplied_by_axis() -> None:
    torch.manual_seed(0)
    u = pde.Field(gnvpro.networks.MLP(2, [3, 4], dtype=torch.float64))
    kappa = pde.Constant(math.e)
    box = pde.points.Box([0, 0], [1, 1])
    system = System(u, [pde.Equation(kappa * u, box.inside(5), 1.0)])
    layer = first_linear(u.features)
    assert layer is not None
    factors = torch.tensor([2.0, 5.0], dtype=torch.float64)
    x = system.multiplied(system.x(), {id(layer.weight): factors, id(layer.bias): factors.max()})
    weight, bias, later = layer.weight.detach().clone(), layer.bias.detach().clone(), u.features[2].weight.clone()
    system.store(x, u.W())
    assert torch.equal(layer.weight, weight * factors)
    assert torch.equal(layer.bias, 5 * bias)
    assert torch.equal(u.features[2].weight, later)
    assert float(kappa) == math.e
