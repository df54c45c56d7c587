"""Why rows of a report's table may not be comparable: other budgets, other batches, other settings than the paper's."""

from __future__ import annotations

import re

from gnvpro.experiments.numbers import title
from gnvpro.experiments.paper_numbers import PAPER
from gnvpro.experiments.saved import SavedRun

OTHER_BUDGET = 1.25  # times the work, from which on a budget is another one
SMALL_BATCH = 32  # samples; each step then costs mostly its overhead


def comparison(name: str, runs: list[SavedRun]) -> list[str]:
    """A sentence for each reason."""
    work: dict[str, float] = {}  # the most that a method had
    for run in runs:
        work[run.method] = max(work.get(run.method, 0.0), float(run.metrics["work"]))
    found = [*budgets(work), *papers_budgets(name, work), *batches(runs)]
    if len({str(run.config["settings"]) for run in runs}) > 1:
        found.append(
            "Runs with different settings differ in network, penalties or input scaling, not only in the method."
        )
    return found


def budgets(work: dict[str, float]) -> list[str]:
    """Warn if our methods had different budgets of work."""
    if max(work.values()) <= OTHER_BUDGET * min(work.values()):
        return []
    each = ", ".join(f"{title(method)} {value:.0f}" for method, value in work.items())
    return [
        f"Our runs had different budgets in work units ({each}): compare the curves at equal work, not the last numbers."
    ]


def papers_budgets(name: str, work: dict[str, float]) -> list[str]:
    """Warn if the paper's rows had more work than ours."""
    rows = PAPER.get(name, {})
    less = []
    for method, ours in work.items():
        theirs = rows[method].work if method in rows else None
        if theirs is not None and theirs > OTHER_BUDGET * ours:
            less.append(f"{title(method)} {ours:.0f} of {theirs:g}")
    return [f"We spent less work than the paper: {', '.join(less)} work units."] if less else []


def batches(runs: list[SavedRun]) -> list[str]:
    """Warn if most of the seconds are the overhead of many small steps."""
    found = []
    for method in dict.fromkeys(run.method for run in runs):
        sizes = [size for run in runs if run.method == method and (size := batch_size(run)) is not None]
        if sizes and min(sizes) <= SMALL_BATCH:
            found.append(
                f"{title(method)} takes batches of {min(sizes)}, as the paper states: most of its seconds are the overhead of "
                "many small steps. Larger batches would take fewer seconds per work unit, with other results."
            )
    return found


def batch_size(run: SavedRun) -> int | None:
    """Read the batch size from the settings of the method."""
    match = re.search(r"\bbatch_size=(\d+)", str(run.config.get("method_settings", "")))
    return int(match[1]) if match else None
