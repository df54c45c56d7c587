"""The commands list and run: what they say, and errors in one line."""

import json

import pytest
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.experiments import experiment_run as running
from gnvpro.experiments.catalogue import EXPERIMENTS
from small_experiments import make_small


def gnvpro(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


def test_list_names_every_experiment():
    result = gnvpro("list")
    assert result.exit_code == 0
    assert all(name in result.output for name in EXPERIMENTS)


@pytest.mark.slow
def test_run_writes_the_runs_and_shows_the_table(tmp_path):
    words = ["--method", "gnvpro", "--method", "gauss-newton", "--seed", 0, "--seed", 2, "--work", 12]
    result = gnvpro("run", "cdr", *words, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    folders = sorted(path.name for path in (tmp_path / "cdr").iterdir())
    assert folders == ["gauss-newton-seed0", "gauss-newton-seed2", "gnvpro-seed0", "gnvpro-seed2"]
    for folder in folders:
        error = json.loads((tmp_path / "cdr" / folder / "metrics.json").read_text())["test"]["relative_error"]
        assert f"{error['mean']:.4f} ± {error['std']:.4f}" in result.output
    assert "0.0060 ± 0.0032" in result.output  # the paper's
    assert f"gnvpro report {tmp_path}" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ellips"], "did you mean 'ellipse'?"),
        (["cdr", "--method", "adm"], "did you mean 'adam'?"),
        (["cdr", "--work", 2], "give at least 6"),
    ],
)
def test_errors_are_said_in_one_line(words, message, tmp_path):
    result = gnvpro("run", *words, "--out", tmp_path)
    assert result.exit_code == 1
    assert message in result.output
    assert result.output.count("\n") == 1


def test_an_interruption_tells_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "train", interrupted)
    result = gnvpro("run", "cdr", "--work", 12, "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command with --resume continues" in result.output
