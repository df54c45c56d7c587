"""Tables in the terminal."""

from __future__ import annotations

from typing import Any

from gnvpro.experiments.catalogue import EXPERIMENTS
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.experiments.numbers import reported, score, seconds, title
from gnvpro.extras import need


def catalogue_table() -> None:
    """Every experiment with its methods and budgets."""
    table = _table("", "experiment", "what", "methods (work units)")
    for name, experiment in EXPERIMENTS.items():
        methods = ", ".join(f"{m} {t.work:g}" for m, t in experiment.recommended.methods.items())
        table.add_row(name, experiment.summary, methods)
    for name, problem in EQUATIONS.items():
        table.add_row(name, f"{problem.title}: {problem.summary}", f"{', '.join(METHODS)} ({problem.seconds:g} s each)")
    _show(table)


def equations_table(results: list[dict[str, Any]]) -> None:
    """The equations just solved, with the published error beside each."""
    columns = ("method", "seed", "best error", "at s", "last error", "s", "goal", "reached at s", "published")
    table = _table(results[0]["experiment"] if results else "", *columns)
    for row in results:
        table.add_row(
            title(row["method"]),
            str(row["seed"]),
            f"{row['best_error']:.1e}",
            seconds(row["best_seconds"]),
            f"{row['error']:.1e}",
            seconds(row["seconds"]),
            "" if row["goal"] is None else f"{row['goal']:.0e}",
            "" if row["goal_seconds"] is None else seconds(row["goal_seconds"]),
            row["published"] if row["method"] == "gnvpro" else "",
        )
        for name, constant in row["constants"].items():
            table.add_row(f"  {name}", "", f"{constant['found']:.6f}", "", f"{constant['true']:.6f} (true)", *[""] * 4)
    _show(table)


def results_table(results: list[dict[str, Any]]) -> None:
    """The runs just done, with the paper's test result beside each."""
    columns = ("method", "seed", "train", "validation", "test", "paper's test", "WU", "s", "inner s")
    table = _table(results[0]["experiment"] if results else "", *columns)
    for row in results:
        table.add_row(
            title(row["method"]),
            str(row["seed"]),
            *(score(row[name]) for name in ("train", "validation", "test")),
            reported(row["experiment"], row["method"], "test"),
            f"{row['work']:.0f}",
            seconds(row["seconds"]),
            seconds(row["inner_seconds"]),
        )
    _show(table)


def table_scores(metrics: dict[str, Any]) -> None:
    """Scores of a model of a table, and of others on the same rows."""
    own = metrics.get("test", metrics["train"])
    names = [name for name in own if not name.startswith("within")]
    table = _table("held-out rows" if "test" in metrics else "rows trained on", "model", *names, "s")
    for name, row in (("gnvpro", {**own, "seconds": metrics["seconds"]}), *metrics.get("baselines", {}).items()):
        table.add_row(name, *(f"{row[each]:.4g}" for each in names), seconds(row["seconds"]))
    _show(table)
    if "within_1_std" in own:
        shares = f"{own['within_1_std']:.0%} and {own['within_2_std']:.0%}"
        print(f"within one and two predicted standard deviations: {shares} (68% and 95% would be exact)")


def _table(title: str, *columns: str) -> Any:
    table = need("rich.table", "cli").Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("experiment", "what", "method", "model") else "right")
    return table


def _show(table: Any) -> None:
    console = need("rich.console", "cli").Console()
    if not console.is_terminal:
        console.width = 140  # in a log a table is not squeezed
    console.print(table)
