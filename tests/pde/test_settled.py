"""A run without a budget ends when the residuals on fresh points no longer fall, also after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gnvpro
from equation_cases import ENDS, LINE, network
from gnvpro import pde
from gnvpro.training.convergence import seen_rests

FIRST = gnvpro.extend.Record(0, 1.0, 1.0, None, None, None, None, True, work=0.0, seconds=0.0, inner_seconds=0.0)


def history(misfits: list[float]) -> list[gnvpro.extend.Record]:
    """One record for each misfit on fresh points, after one without a measurement."""
    return [FIRST] + [replace(FIRST, iteration=k + 1, validation_loss=misfit) for k, misfit in enumerate(misfits)]


def ends_at(misfits: list[float]) -> int | None:
    records = history(misfits)
    return next((k for k in range(1, len(records)) if seen_rests(records[: k + 1])), None)


@pytest.mark.parametrize(
    ("misfits", "end"),
    [
        ([1.0] * 400, 201),  # nothing is gained from the first look on
        ([0.99**k for k in range(800)], None),  # halved every 69 iterations
        ([0.999**k for k in range(800)], 201),  # halved every 693
        ([float("nan")] * 400, 201),  # no residual is finite
    ],
)
def test_the_window(misfits: list[float], end: int | None) -> None:
    assert ends_at(misfits) == end


@pytest.mark.parametrize(("power", "ends"), [(2.0, True), (3.0, False)])
def test_a_power_of_the_iterations_is_judged_by_its_exponent(power: float, ends: bool) -> None:
    """k^-2 falls by 0.56 in the last quarter of k iterations, and k^-3 by 0.42."""
    assert (ends_at([float(k + 1) ** -power for k in range(3000)]) is not None) == ends


def test_a_worse_field_on_the_way_does_not_count() -> None:
    """New points move the residuals up and down; the best residuals count."""
    steady = [0.99**k for k in range(800)]
    assert ends_at([m * (1000 if k % 7 else 1) for k, m in enumerate(steady)]) is None


def oscillation() -> tuple[pde.Field, list[pde.Equation]]:
    u = pde.Field(network(1, [6]))
    inside = pde.Equation(pde.d(u, 0, 0), LINE.inside(50), lambda x: -9 * torch.sin(3 * x[:, 0]))
    return u, [inside, pde.Equation(u, ENDS, torch.sin(3 * ENDS[:, 0]))]


def test_told_nothing_a_run_ends_by_itself_and_goes_on_when_told_to(tmp_path: Path) -> None:
    u, equations = oscillation()
    whole = pde.solve(u, equations)
    x = torch.linspace(0, 1, 99, dtype=torch.float64)[:, None]
    assert whole.status is gnvpro.Status.SETTLED
    assert float((u(x)[:, 0] - torch.sin(3 * x[:, 0])).detach().abs().max()) < 1e-8

    file = tmp_path / "run.pt"

    def stop(record: gnvpro.extend.Record) -> None:
        if record.iteration == 150:
            raise KeyboardInterrupt

    again, equations = oscillation()
    with pytest.raises(KeyboardInterrupt):
        pde.solve(again, equations, checkpoint=file, listeners=[stop])
    again, equations = oscillation()
    resumed = pde.solve(again, equations, checkpoint=file, resume=True)
    assert resumed.status is gnvpro.Status.SETTLED
    assert [r.loss for r in resumed.history] == [r.loss for r in whole.history]

    more = pde.solve(again, equations, checkpoint=file, resume=True, iterations=len(whole.history) + 4)
    assert more.status is gnvpro.Status.ITERATIONS_SPENT
    assert len(more.history) == len(whole.history) + 5


def diffusion() -> tuple[pde.Field, list[pde.Equation], pde.Constant]:
    u, kappa = pde.Field(network(1, [6])), pde.Constant(1.0)
    where = LINE.inside(8).points
    inside = pde.Equation(-kappa * pde.d(u, 0, 0), LINE.inside(40), lambda x: torch.sin(3 * x[:, 0]))
    return u, [inside, pde.Equation(u, where, torch.sin(3 * where[:, 0]) / 2.7)], kappa


def test_a_run_with_an_unknown_constant_goes_on_from_where_the_constant_is_now(tmp_path: Path) -> None:
    """Its weights are balanced with the first value of the constant, which the first part of the run has changed."""
    u, equations, kappa = diffusion()
    whole = pde.solve(u, equations, iterations=24)
    again, equations, same = diffusion()
    pde.solve(again, equations, iterations=12, checkpoint=tmp_path / "run.pt")
    assert float(same) != 1.0
    resumed = pde.solve(again, equations, iterations=24, checkpoint=tmp_path / "run.pt", resume=True)
    assert [r.loss for r in resumed.history] == [r.loss for r in whole.history]
    assert float(same) == float(kappa)
