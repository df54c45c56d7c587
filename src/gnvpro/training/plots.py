"""The history of a run as a figure: one panel for each recorded quantity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gnvpro.arguments import check_choice
from gnvpro.drawing import BLUE, GREEN, GREY, ORANGE, PINK, VERMILION, new_figure, readable_log_axis, spans_decades

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnvpro.training.history import Record

AXES = {"work": "work units (passes over the training set)", "seconds": "seconds", "iteration": "iteration"}
# title, then fields of a record with label, colour and line style
PANELS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "loss",
        (
            ("loss", "objective", BLUE, "-"),
            ("misfit", "misfit", GREEN, ":"),
            ("validation_loss", "validation misfit", ORANGE, "--"),
        ),
    ),
    ("accuracy", (("accuracy", "training", BLUE, "-"), ("validation_accuracy", "validation", ORANGE, "--"))),
    ("size of the step", (("radius", "trust radius", VERMILION, "-"), ("damping", "damping", PINK, "-"))),
    ("learning rate", (("learning_rate", "learning rate", GREEN, "-"),)),
    ("gradient", (("gradient_norm", "norm of the gradient", GREY, "-"),)),
    ("penalties", (("theta_penalty", "theta_penalty", VERMILION, "-"), ("head_penalty", "head_penalty", PINK, "--"))),
)


def history_figure(records: Sequence[Record], against: str = "work") -> Figure:
    """Draw every panel for which some record has numbers; rejected trials are crosses."""
    check_choice("against", against, AXES)
    if not records:
        raise ValueError("the history has no record yet: train first, then plot")
    drawn = [(title, lines) for title, lines in PANELS if any(says_something(records, line[0]) for line in lines)]
    columns = len(drawn) if len(drawn) <= 3 else 2
    rows = math.ceil(len(drawn) / columns)
    figure = new_figure(4.8 * columns, 3.2 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (title, lines) in zip(panels, drawn, strict=False):
        panel(axes, records, lines, against)
        axes.set(title=title, xlabel=AXES[against])
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    return figure


def says_something(records: Sequence[Record], field: str) -> bool:
    """Return True if a field has numbers; constant penalties are in the summary instead."""
    values = [value for _, value in points(records, field, "iteration")]
    return len(set(values)) > 1 if field.endswith("penalty") else bool(values)


def panel(axes: Any, records: Sequence[Record], lines: Sequence[tuple[str, str, str, str]], against: str) -> None:
    """Draw the lines of one panel, on a logarithmic scale if the numbers span decades."""
    values: list[float] = []
    for field, label, colour, style in lines:
        found = points(records, field, against)
        if not found:
            continue
        axes.plot(*zip(*found, strict=True), style, color=colour, lw=1.6, label=label)
        values += [value for _, value in found]
        if field in ("radius", "damping"):
            rejected = points([record for record in records if not record.accepted], field, against)
            if rejected:
                label = "" if any(line.get_marker() == "x" for line in axes.get_lines()) else "rejected trial"
                axes.plot(*zip(*rejected, strict=True), "x", color=GREY, ms=5, label=label)
    if spans_decades(values):
        axes.set_yscale("log")
        readable_log_axis(axes.yaxis, min(values), max(values))
    axes.grid(alpha=0.3, lw=0.5)
    axes.legend(frameon=False, fontsize="small")


def points(records: Sequence[Record], field: str, against: str) -> list[tuple[float, float]]:
    """Return the points at which a field of the records is a finite number."""
    pairs = [(attrgetter(against)(record), attrgetter(field)(record)) for record in records]
    return [(x, float(y)) for x, y in pairs if isinstance(y, int | float) and math.isfinite(y)]
