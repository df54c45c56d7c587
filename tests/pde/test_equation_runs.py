"""Equations from the command line to the report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from gnvpro import pde
from gnvpro.cli import app
from gnvpro.experiments import equation_references as references
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.report import write_report
from gnvpro.experiments.run_equations import METHODS
from gnvpro.pde.system import System


def gnvpro(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    result = gnvpro("run", "poisson2d", "--seconds", 0.5, "--out", out)
    assert result.exit_code == 0, result.output
    assert "6.1e-8 in 468 s" in result.output
    return out


def test_every_method_leaves_a_whole_run(solved: Path) -> None:
    errors = {}
    for method in METHODS:
        metrics = json.loads((solved / "poisson2d" / f"{method}-seed0" / "metrics.json").read_text())
        errors[method] = metrics["best_error"]
        assert math.isfinite(metrics["error"])
        assert metrics["best_error"] <= metrics["error"]
    assert errors["gnvpro"] < 1e-3 * min(errors["adam"], errors["lbfgs"])
    assert errors["gnvpro"] < errors["frozen"]


def test_the_report_shows_solution_error_and_convergence(solved: Path, tmp_path: Path) -> None:
    page, problems = write_report(solved, tmp_path)
    assert problems == []
    text = page.read_text()
    metrics = json.loads((solved / "poisson2d" / "gnvpro-seed0" / "metrics.json").read_text())
    assert f"<td>{metrics['best_error']:.1e}</td>" in text
    assert "6.1e-8 in 468 s" in text
    assert {p.name for p in tmp_path.glob("*.png")} == {"poisson2d-convergence.png", "poisson2d-solution.png"}


def test_a_finished_run_is_kept_and_another_configuration_refused(solved: Path) -> None:
    again = gnvpro("run", "poisson2d", "--method", "frozen", "--seconds", 0.5, "--out", solved, "--resume")
    assert "done before" in again.output
    other = gnvpro("run", "poisson2d", "--method", "frozen", "--seconds", 0.7, "--out", solved)
    assert other.exit_code == 1
    assert "another configuration" in other.output


def test_an_unknown_method_is_said_in_one_line(tmp_path: Path) -> None:
    result = gnvpro("run", "poisson2d", "--method", "sgd", "--out", tmp_path)
    assert result.exit_code == 1
    assert "method must be one of gnvpro, lbfgs, adam, frozen" in result.output


@pytest.mark.parametrize("name", [n for n in EQUATIONS if n not in ("l-shape", "inverse-diffusion", "allen-cahn")])
def test_the_stated_solution_satisfies_the_stated_equations(name: str) -> None:
    """The residual of the exact solution, by finite differences of it, at some of the points."""
    posed = EQUATIONS[name].pose(0)
    h = 1e-3 if name != "burgers" else 1e-4

    class Exact(torch.nn.Module):
        n_inputs = posed.box.dimension

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return posed.exact(x)[:, None]

    exact = Exact()
    for equation in posed.stages[-1]:
        site = equation.compiled.sites[0]
        away = equation.name in ("start", "boundary") or name != "burgers"  # the front is too steep for differences
        smooth = slice(None) if away else (site.points[:, 0] - 0.1).abs() < 0.09
        atoms = [{key: _difference(exact, s.points, key[1], h) for key in s.atoms} for s in equation.compiled.sites]
        values = equation.compiled.evaluate(atoms, lambda node, site: node.value)
        size = System(posed.field, [equation]).weights[0] ** -1
        assert float((values - equation.targets)[smooth].abs().max()) < 2e-3 * max(size, 1.0), equation.name


def _difference(u: torch.nn.Module, x: torch.Tensor, channel: object, h: float) -> torch.Tensor:
    from gnvpro.pde.jets import Laplacian

    if isinstance(channel, Laplacian):
        return torch.stack([_difference(u, x, (i, i), h) for i in channel.axes]).sum(0)
    assert isinstance(channel, tuple)
    if not channel:
        return u(x)[:, 0]
    step = torch.zeros(x.shape[1], dtype=torch.float64)
    step[channel[0]] = h
    return (_difference(u, x + step, channel[1:], h) - _difference(u, x - step, channel[1:], h)) / (2 * h)


def test_the_reference_for_allen_cahn_satisfies_its_equation_in_time() -> None:
    """The mean of u changes by the mean of the reaction: diffusion moves nothing out of a periodic interval."""
    _, saved = references._allen_cahn()
    change = (saved[101] - saved[99]).mean() / (2 / references.SAVED_TIMES)
    assert change == pytest.approx((5 * saved[100] - 5 * saved[100] ** 3).mean(), rel=1e-3)


def test_finite_elements_agree_with_the_series_on_the_square() -> None:
    """-lap u = 1 on the unit square: 0.0736713 in the middle (its Fourier series)."""
    pytest.importorskip("skfem")
    middle = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    series = sum(
        16 / (math.pi**4 * i * j * (i * i + j * j)) * math.sin(i * math.pi / 2) * math.sin(j * math.pi / 2)
        for i in range(1, 200, 2)
        for j in range(1, 200, 2)
    )
    assert float(references.unit_source(middle)) == pytest.approx(series, abs=1e-6)


def test_a_diffusion_coefficient_is_found_from_finite_element_data() -> None:
    pytest.importorskip("skfem")
    posed = EQUATIONS["inverse-diffusion"].pose(0)
    pde.solve(posed.field, posed.stages[-1], seconds=None, iterations=25)
    kappa, true = posed.constants["kappa"]
    assert float(kappa) == pytest.approx(true, rel=1e-3)
