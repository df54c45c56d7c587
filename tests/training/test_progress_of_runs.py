"""Default display of a run: a bar after two seconds on a terminal, one line per stage of a fit, nothing elsewhere."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.training import listeners
from gnvpro.training.listeners import LateProgress, as_listeners


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "150")


def run(**settings: object) -> None:
    torch.manual_seed(0)
    x = torch.rand(20, 1, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    gnvpro.train(model, x, x.sin(), loss="mse", iterations=5, solver="krylov", **settings)


def test_a_long_run_shows_a_bar_on_a_terminal(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setattr(listeners.LateProgress, "after", -1.0)
    run()
    assert "loss" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"listeners": "silent"}, {"listeners": [lambda record: None]}])
def test_the_bar_can_be_switched_off(
    settings: dict[str, object], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setattr(listeners.LateProgress, "after", -1.0)
    run(**settings)
    assert capsys.readouterr().err == ""


def test_a_short_run_shows_nothing(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    run()
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners.LateProgress, "after", -1.0)
    run()
    assert as_listeners(()) == []
    assert capsys.readouterr().err == ""


def test_a_bar_is_a_listener_and_solve_has_it_too(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setattr(listeners.LateProgress, "after", -1.0)
    assert isinstance(as_listeners([])[0], LateProgress)
    line = gnvpro.pde.points.Box([0.0], [1.0])
    u = gnvpro.pde.Field(gnvpro.networks.MLP(1, [4], dtype=torch.float64))
    equations = [gnvpro.pde.Equation(gnvpro.pde.d(u, 0, 0), line.inside(20), -1.0)]
    equations.append(gnvpro.pde.Equation(u, torch.tensor([[0.0], [1.0]], dtype=torch.float64), 0.0))
    gnvpro.pde.solve(u, equations, iterations=3, listeners="silent")
    assert capsys.readouterr().err == ""
    gnvpro.pde.solve(u, equations, iterations=3)
    assert "loss" in capsys.readouterr().err


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_a_fit_says_one_line_per_stage_and_more_only_if_asked(verbose: int, capsys: pytest.CaptureFixture) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 4))
    fitted = gnvpro.GNvproRegressor(n_members=1, random_state=0, verbose=verbose).fit(X, np.sin(2 * X[:, 0]))
    said = capsys.readouterr().err.splitlines()
    if verbose == 0:
        assert not said
    elif verbose == 1:
        assert 2 <= len(said) <= 8
        assert max(map(len, said)) <= 80
        assert said[0].startswith("first network: error ")
        assert any(f"after {fitted.history_[-1].iteration} iterations" in line for line in said)
    else:
        assert said[0] == "first network"
        assert len(said) > 8
        assert any(line.startswith("first network: error ") for line in said)
