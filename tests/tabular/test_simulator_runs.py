"""`gnvpro surrogate`: a file of runs in; a surrogate, its card and a report out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("pandas")
pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.surrogate import Surrogate
from gnvpro.tabular.simulator_runs import advice


@pytest.fixture
def table(tmp_path: Path) -> Path:
    X = np.random.default_rng(0).random((24, 2))
    lines = [f"{a!r},{b!r},{np.sin(3 * a) + b!r},text" for a, b in X.tolist()]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["a,b,y,note", *lines]).replace("np.float64(", "").replace(")", ""))
    return path


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


@pytest.mark.slow
def test_a_table_becomes_a_surrogate_a_card_and_a_report(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, text = run("surrogate", table, "--inputs", "a", "b", "--outputs", "y", "--out", out)
    assert status == 0, text
    s = Surrogate.load(out / "surrogate.safetensors")
    assert s.predict([[0.5, 0.5]])[0, 0] == pytest.approx(np.sin(1.5) + 0.5, abs=1e-2)
    card, page = (out / "surrogate.md").read_text(), (out / "report.html").read_text()
    assert "| a | 0." in card
    assert page.count("data:image/png") == 4
    scores = json.loads((out / "scores.json").read_text())
    assert scores["left_out_error"]["y"] < 0.05
    assert [count for count, _ in scores["learning_curve"]] == [6, 12, 24]
    status, text = run("surrogate", table, "--inputs", "a", "--outputs", "y", "--out", out)
    assert status == 1
    assert "--overwrite" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--inputs", "a", "c", "--outputs", "y"], "has no column 'c'"),
        (["--inputs", "a", "note", "--outputs", "y"], "column 'note'"),
        (["--inputs", "a", "y", "--outputs", "y"], "cannot be an input and an output"),
        (["--inputs", "a"], "name the columns"),
    ],
)
def test_columns_that_cannot_be_used_are_named(table: Path, words: list[str], message: str) -> None:
    status, text = run("surrogate", table, *words)
    assert status == 1
    assert message in text


def test_the_advice_extrapolates_the_learning_curve() -> None:
    """An error like 1 / n halves with as many runs again."""
    assert "About 80 more runs" in advice([(20, 0.4), (40, 0.2), (80, 0.1)])
    assert "may not help" in advice([(40, 0.1), (80, 0.1)])
    assert "too slowly" in advice([(40, 0.1), (80, 0.0999)])
    assert "too few" in advice([(5, 0.1)])
