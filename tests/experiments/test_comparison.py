"""A report explains why rows of its tables may not be comparable."""

from __future__ import annotations

from pathlib import Path

from gnvpro.experiments.comparison import batch_size, comparison
from gnvpro.experiments.saved import SavedRun


def run(method: str, work: float, settings: str = "recommended", method_settings: str = "") -> SavedRun:
    config = {"experiment": "cdr", "method": method, "seed": 0, "settings": settings, "variant": {}}
    return SavedRun(Path(method), {**config, "method_settings": method_settings}, {"work": work}, {})


def test_equal_runs_need_no_remark() -> None:
    assert comparison("cdr", [run("gnvpro", 599), run("gauss-newton", 600)]) == []


def test_other_budgets_are_named() -> None:
    (text,) = comparison("ellipse", [run("gnvpro", 100), run("adam", 12)])
    assert "GNvpro 100, ADAM 12" in text


def test_less_work_than_the_papers_is_named() -> None:
    (text,) = comparison("cdr", [run("gnvpro", 48)])
    assert "GNvpro 48 of 600" in text


def test_small_batches_explain_the_seconds() -> None:
    adam = run("adam", 1200, method_settings="Adam(lr=0.001, batch_size=2)")
    assert batch_size(adam) == 2
    (text,) = comparison("cdr", [adam])
    assert "batches of 2" in text
    assert comparison("cdr", [run("adam", 1200, method_settings="Adam(lr=0.001, batch_size=400)")]) == []


def test_other_settings_are_named() -> None:
    (text,) = comparison("ellipse", [run("gnvpro", 100), run("gnvpro", 100, "paper")])
    assert "different settings" in text
