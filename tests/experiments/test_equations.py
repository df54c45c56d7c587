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
from gnvpro.experiments.equations import EQUATIONS, references
from gnvpro.experiments.equations.errors import Errors
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.experiments.report import write_report
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", "poisson2d", "--method", "gnvpro", "--seconds", 1.0, "--out", tmp_path)
    directory = tmp_path / "poisson2d" / "gnvpro-seed0"
    look = Errors.look

    def interrupted(self: Errors, loss: float, at: float | None = None, always: bool = False) -> None:
        if len(self.rows) == 5:
            raise KeyboardInterrupt
        look(self, loss, at, always)

    monkeypatch.setattr(Errors, "look", interrupted)
    stopped = gnvpro(*words)
    assert stopped.exit_code == 130
    assert "checkpoint written to" in stopped.output
    before = (directory / "history.csv").read_text().splitlines()
    assert len(before) == 6
    assert not (directory / "metrics.json").exists()
    monkeypatch.undo()
    refused = gnvpro(*words)
    assert refused.exit_code == 1
    assert "go on with --resume" in refused.output
    done = gnvpro(*words, "--resume")
    assert done.exit_code == 0, done.output
    after = (directory / "history.csv").read_text().splitlines()
    assert after[:6] == before
    seconds = [float(line.split(",")[0]) for line in after[1:]]
    assert seconds == sorted(seconds)
    assert seconds[5] < seconds[-1] < 2.0  # the last record is from just before the seconds were seen to be spent
    assert json.loads((directory / "metrics.json").read_text())["status"] == "SECONDS_SPENT"
    assert {path.name for path in directory.iterdir()} == {"config.json", "history.csv", "metrics.json", "solution.npz"}


def test_an_unknown_method_is_said_in_one_line(tmp_path: Path) -> None:
    result = gnvpro("run", "poisson2d", "--method", "sgd", "--out", tmp_path)
    assert result.exit_code == 1
    assert "method" in result.output
    assert all(name in result.output for name in METHODS)


FROM_ELEMENTS = ("helmholtz2d", "l-shape", "inverse-diffusion")
PATHS = ("lotka-volterra", "van-der-pol", "robertson")  # equations and solution share the rates
NOISY = ("inverse-burgers",)
FROM_SPLINES = ("allen-cahn", "allen-cahn-chosen", "kdv")


@pytest.mark.parametrize("name", [n for n in EQUATIONS if n not in (*FROM_ELEMENTS, *PATHS, *NOISY)])
def test_the_stated_solution_satisfies_the_stated_equations(name: str) -> None:
    """The residual of the exact solution, by finite differences of it, at some of the points."""
    posed = EQUATIONS[name].pose(0)
    h = 1e-3 if name in FROM_SPLINES else 1e-4

    class Exact(torch.nn.Module):
        n_inputs = posed.box.dimension

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return posed.exact(x).view(len(x), -1)

    exact = Exact()
    for equation in posed.equations:
        site = equation.compiled.sites[0]
        x = site.points
        smooth = torch.ones(len(x), dtype=torch.bool)
        if equation.name == "inside" and "burgers" in name:  # the front is too steep for differences
            smooth = (x[:, 0] - 0.1).abs() < 0.09
        elif equation.name == "inside" and name in FROM_SPLINES:  # a kink at both ends, and no times before 0
            smooth = (x[:, 1].abs() < 0.95) & ((x[:, 0] - 0.5).abs() < 0.49)
            smooth &= (x[:, 0] < 0.25) | (name != "kdv")  # waves become steep later
        atoms = [{key: _difference(exact, s.points, key, h) for key in s.atoms} for s in equation.compiled.sites]
        values = equation.compiled.evaluate(atoms, lambda node, site: node.value)
        size = System(posed.field, [equation]).weights[0] ** -1
        assert float((values - equation.targets)[smooth].abs().max()) < 2e-3 * max(size, 1.0), equation.name


def _difference(u: torch.nn.Module, x: torch.Tensor, key: tuple, h: float) -> torch.Tensor:
    from gnvpro.pde.jets import Laplacian

    output, channel = key
    if isinstance(channel, Laplacian):
        return torch.stack([_difference(u, x, (output, (i, i)), h) for i in channel.axes]).sum(0)
    assert isinstance(channel, tuple)
    if not channel:
        return u(x)[:, output]
    step, rest = torch.zeros(x.shape[1], dtype=torch.float64), (output, channel[1:])
    step[channel[0]] = h
    return (_difference(u, x + step, rest, h) - _difference(u, x - step, rest, h)) / (2 * h)


def test_the_reference_for_kdv_does_not_depend_on_its_grid() -> None:
    _, _, fine = references.korteweg_de_vries_grid(512, 8000)
    _, _, coarse = references.korteweg_de_vries_grid(256, 4000)
    assert math.sqrt(((fine[:, ::2] - coarse) ** 2).mean()) < 1e-6


def test_robertsons_rates_are_those_of_the_textbook() -> None:
    y = [0.7, 2e-5, 0.3]
    want = [
        -0.04 * y[0] + 1e4 * y[1] * y[2],
        0.04 * y[0] - 1e4 * y[1] * y[2] - 3e7 * y[1] ** 2,
        3e7 * y[1] ** 2,
    ]
    made = references.robertson([y[0], 1e4 * y[1], y[2]])
    assert made == pytest.approx([want[0], 1e4 * want[1], want[2]], rel=1e-12)


@pytest.mark.slow
def test_a_network_that_the_solver_chose_leaves_a_whole_run(tmp_path: Path) -> None:
    words = ("--method", "gnvpro", "--seconds", 1.0, "--out", tmp_path)
    for name in ("helmholtz-1-4", "lotka-volterra"):
        done = gnvpro("run", name, *words)
        assert done.exit_code == 0, done.output
    metrics = json.loads((tmp_path / "helmholtz-1-4" / "gnvpro-seed0" / "metrics.json").read_text())
    assert metrics["best_error"] < 0.1
    assert write_report(tmp_path, tmp_path)[1] == []


def test_the_reference_for_allen_cahn_does_not_depend_on_its_grid() -> None:
    _, _, fine = references.allen_cahn_grid()
    _, _, coarse = references.allen_cahn_grid(modes=1024, steps=2000)
    assert math.sqrt(((fine[:, ::4] - coarse) ** 2).mean()) < 1e-5


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


@pytest.mark.slow
def test_finite_elements_agree_with_the_eigenfunctions_for_helmholtz() -> None:
    """u = sum_mn <f, phi_mn> phi_mn / (k^2 - lambda_mn), with sines for phi_mn."""
    pytest.importorskip("skfem")
    grid = torch.linspace(-1, 1, 801, dtype=torch.float64)
    numbers = torch.arange(1, 60, dtype=torch.float64)
    waves = torch.sin(math.pi / 2 * numbers[:, None] * (grid + 1))
    f = references.source(torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1))
    coefficients = (waves @ f @ waves.T) * float(grid[1] - grid[0]) ** 2
    values = (math.pi / 2) ** 2 * (numbers[:, None] ** 2 + numbers**2)
    at = torch.tensor([[0.1, -0.4], [0.3, 0.2]], dtype=torch.float64)
    x, y = (torch.sin(math.pi / 2 * numbers * (at[:, i : i + 1] + 1)) for i in range(2))
    series = torch.einsum("pm,mn,pn->p", x, coefficients / (references.WAVE_NUMBER_SQUARED - values), y)
    torch.testing.assert_close(references.helmholtz(at), series, rtol=0, atol=1e-5)


def test_a_diffusion_coefficient_is_found_from_finite_element_data() -> None:
    pytest.importorskip("skfem")
    posed = EQUATIONS["inverse-diffusion"].pose(0)
    pde.solve(posed.field, posed.equations, seconds=None, iterations=25)
    kappa, true = posed.constants["kappa"]
    assert float(kappa) == pytest.approx(true, rel=1e-3)


def test_the_kink_of_allen_cahn_diffuses() -> None:
    """Close to the kink, before the distance bends: q_t = 1e-4 q_xx; far from it the distance itself."""
    from gnvpro.experiments.equations.transport import diffused_kink

    x = torch.tensor([[0.3, 0.999], [0.6, -0.995], [0.9, 0.99]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(diffused_kink(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope[:, 1].sum(), x)
    torch.testing.assert_close(slope[:, 0].detach(), 1e-4 * second[:, 1], rtol=1e-2, atol=0)
    far = torch.tensor([[0.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(diffused_kink(far)[:, 0], 2 / math.pi * torch.cos(math.pi / 2 * far[:, 1]))
