"""Format of numbers in tables, the same in the terminal and on the page."""

from __future__ import annotations

from typing import Any

from gnvpro.experiments.paper_numbers import PAPER
from gnvpro.experiments.style import LOOKS

NOTHING = "\u2013"  # a dash for a missing number


def score(part: dict[str, Any]) -> str:
    """The score of one set: relative error with its deviation, or accuracy."""
    if "relative_error" in part:
        error = part["relative_error"]
        return f"{error['mean']:.4f} ± {error['std']:.4f}"
    return f"{100 * part['accuracy']:.2f}%"


def reported(experiment: str, method: str, name: str) -> str:
    """The paper's score for a set, or a dash."""
    row = PAPER.get(experiment, {}).get(method)
    value = vars(row)[name] if row else None
    if value is None:
        return NOTHING
    mean, deviation = value
    return f"{100 * mean:.2f}%" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def reported_work(experiment: str, method: str) -> str:
    """The paper's budget, or a dash."""
    row = PAPER.get(experiment, {}).get(method)
    return NOTHING if row is None or row.work is None else f"{row.work:g}"


def seconds(value: float) -> str:
    """Seconds with as many digits as are meaningful."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def title(method: str) -> str:
    """Name of a method in print."""
    return LOOKS[method].title if method in LOOKS else method
