"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnvpro.experiments.catalogue import EXPERIMENTS, SETS
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.experiments.numbers import reported, score, seconds, title
from gnvpro.progress import show_table


def catalogue_table() -> None:
    """Every experiment with its methods and budgets."""
    rows = [
        (name, experiment.summary, ", ".join(f"{m} {t.work:g}" for m, t in experiment.recommended.methods.items()))
        for name, experiment in EXPERIMENTS.items()
    ]
    rows += [
        (name, f"{problem.title}: {problem.summary}", f"{', '.join(METHODS)} ({problem.seconds:g} s each)")
        for name, problem in EQUATIONS.items()
    ]
    show_table("", ("experiment", "what", "methods (work units)"), rows)


def equations_table(results: list[dict[str, Any]]) -> None:
    """Table of the equations just solved, each with its published error."""
    columns = ("method", "seed", "best error", "at s", "last error", "s", "goal", "reached at s", "published")
    rows: list[Sequence[str]] = []
    for row in results:
        best = f"{row['best_error']:.1e}", seconds(row["best_seconds"]), f"{row['error']:.1e}", seconds(row["seconds"])
        goal = "" if row["goal"] is None else f"{row['goal']:.0e}"
        reached = "" if row["goal_seconds"] is None else seconds(row["goal_seconds"])
        published = row["published"] if row["method"] == "gnvpro" else ""
        rows.append((title(row["method"]), str(row["seed"]), *best, goal, reached, published))
        for name, constant in row["constants"].items():
            rows.append((f"  {name}", "", f"{constant['found']:.6f}", "", f"{constant['true']:.6f} (true)"))
    show_table(results[0]["experiment"] if results else "", columns, rows)


def results_table(results: list[dict[str, Any]]) -> None:
    """Table of the runs just done, each with the paper's test result."""
    columns = ("method", "seed", "train", "validation", "test", "paper's test", "WU", "s", "inner s")
    rows = []
    for row in results:
        scores = *(score(row[name]) for name in SETS), reported(row["experiment"], row["method"], "test")
        cost = f"{row['work']:.0f}", seconds(row["seconds"]), seconds(row["inner_seconds"])
        rows.append((title(row["method"]), str(row["seed"]), *scores, *cost))
    show_table(results[0]["experiment"] if results else "", columns, rows)
