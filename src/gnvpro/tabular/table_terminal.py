"""Tables that `gnvpro train` prints: one row per column of the file, and scores compared with other models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnvpro.progress import show_table
from gnvpro.tabular.table_columns import ReadTable

MAX_SHOWN = 14  # columns in the terminal; the others are counted
FIRST = ("target", "left out")  # roles that are shown before the others if not all are


def columns_table(table: ReadTable) -> None:
    """Print how each column was read."""
    rows = shown(table.said)
    show_table(f"{table.n_rows} rows", ("column", "role", "read as"), rows, words=("column", "role", "read as"))


def shown(said: Sequence[tuple[str, str, str]]) -> list[Sequence[str]]:
    """Return all columns if they are few; else the targets, those left out and a count of the others."""
    if len(said) <= MAX_SHOWN:
        return list(said)
    order = sorted(
        said, key=lambda row: FIRST.index(row[1]) if row[1] in FIRST else len(FIRST) + (" missing" not in row[2])
    )
    rest = order[MAX_SHOWN - 1 :]
    counts: dict[str, int] = {}
    for _, role, how in rest:
        kind = role if role in FIRST else how.split()[0].rstrip(",")
        counts[kind] = counts.get(kind, 0) + 1
    text = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return [*order[: MAX_SHOWN - 1], (f"and {len(rest)} more", "", text)]


def scores_table(metrics: dict[str, Any]) -> None:
    """Print the scores of a model of a table, and of others on the same rows."""
    own = metrics.get("test", metrics["train"])
    names = [name for name in own if not name.startswith("within")]
    models = {"gnvpro": {**own, "seconds": metrics["seconds"]}, **metrics.get("baselines", {})}
    rows = [(name, *(f"{row[n]:.4g}" for n in names), f"{row['seconds']:.2g}") for name, row in models.items()]
    show_table("held-out rows" if "test" in metrics else "rows trained on", ("model", *names, "s"), rows)
    if "within_1_std" in own:
        shares = f"{own['within_1_std']:.0%} and {own['within_2_std']:.0%}"
        print(f"within one and two predicted standard deviations: {shares} (68% and 95% would be exact)")
