"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gnvpro.experiments.catalogue import EXPERIMENTS, SETS
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.experiments.numbers import reported, score, seconds, title
from gnvpro.extras import need


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
    _show("", ("experiment", "what", "methods (work units)"), rows)


def equations_table(results: list[dict[str, Any]]) -> None:
    """The equations just solved, with the published error beside each."""
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
    _show(results[0]["experiment"] if results else "", columns, rows)


def results_table(results: list[dict[str, Any]]) -> None:
    """The runs just done, with the paper's test result beside each."""
    columns = ("method", "seed", "train", "validation", "test", "paper's test", "WU", "s", "inner s")
    rows = []
    for row in results:
        scores = *(score(row[name]) for name in SETS), reported(row["experiment"], row["method"], "test")
        cost = f"{row['work']:.0f}", seconds(row["seconds"]), seconds(row["inner_seconds"])
        rows.append((title(row["method"]), str(row["seed"]), *scores, *cost))
    _show(results[0]["experiment"] if results else "", columns, rows)


def table_scores(metrics: dict[str, Any]) -> None:
    """Scores of a model of a table, and of others on the same rows."""
    own = metrics.get("test", metrics["train"])
    names = [name for name in own if not name.startswith("within")]
    shown = {"gnvpro": {**own, "seconds": metrics["seconds"]}, **metrics.get("baselines", {})}
    rows = [(name, *(f"{row[n]:.4g}" for n in names), seconds(row["seconds"])) for name, row in shown.items()]
    _show("held-out rows" if "test" in metrics else "rows trained on", ("model", *names, "s"), rows)
    if "within_1_std" in own:
        shares = f"{own['within_1_std']:.0%} and {own['within_2_std']:.0%}"
        print(f"within one and two predicted standard deviations: {shares} (68% and 95% would be exact)")


def _show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = need("rich.table", "cli").Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("experiment", "what", "method", "model") else "right")
    for row in rows:
        table.add_row(*row)
    console = need("rich.console", "cli").Console()
    if not console.is_terminal:
        console.width = 140  # in a log a table is not squeezed
    console.print(table)
