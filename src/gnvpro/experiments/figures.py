"""Figures from saved runs: convergence for every experiment, and figures of single experiments.

Colours are by Okabe and Ito, safe for colour-blind readers; methods also differ by their markers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnvpro.drawing import page_figure, readable_log_axis, spans_decades
from gnvpro.experiments import classification_figures as classes
from gnvpro.experiments import feature_figures as features
from gnvpro.experiments import surrogate_figures as surrogates
from gnvpro.experiments.saved import SavedRun, first_of_each, printable, standard
from gnvpro.experiments.style import LOOKS
from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Captioned:
    """A figure with its file name and what it shows."""

    name: str
    caption: str
    figure: Figure


# The file name, what it shows, the array that a run needs to be shown, and the function that draws it.
Drawing = tuple[str, str, str, Callable[[list[SavedRun]], "Figure"]]

SURROGATE: Drawing = ("surrogate", surrogates.GLOBAL_CAPTION, "outputs_test", surrogates.global_figure)
CONFUSION: Drawing = ("confusion", classes.CONFUSION_CAPTION, "predicted_test", classes.confusion_figure)
ALSO: dict[str, tuple[Drawing, ...]] = {
    "ellipse": (
        (
            "features",
            "The data, and the two features of each sample after (at most) the same work. Gauss-Newton moves all weights "
            "together; GNvpro eliminates the last layer, so its line separates best at every iteration. The black line is "
            "the head W; shading is the predicted class. Each panel is scaled to its features.",
            "features",
            features.features_figure,
        ),
    ),
    "cdr": (SURROGATE,),
    "dcr": (SURROGATE, ("local", surrogates.LOCAL_CAPTION, "outputs_validation", surrogates.local_figure)),
    "indian-pines": (
        ("classes", "Labelled pixels of each class, by set.", "labels_test", classes.distribution_figure),
        (
            "maps",
            "Ground truth, and for each method the predicted class and the wrong pixels (black) of all labelled pixels; "
            "the background is white.",
            "pixels_test",
            classes.map_figure,
        ),
        CONFUSION,
    ),
    "cifar10": (
        CONFUSION,
        (
            "examples",
            "Test images that most methods get right. Beside each, one bar per method, in the order of the legend, "
            "stacks the probabilities of the classes; the last bar is the true class.",
            "images_test",
            classes.examples_figure,
        ),
    ),
    "peaks": (
        (
            "taylor",
            "Error of the first-order Taylor expansion of the reduced objective against the step h, one panel per "
            "tolerance of the inner solve, one curve per largest Krylov rank. The gradient is right where curves "
            "follow the black line, h squared.",
            "taylor_errors",
            features.taylor_figure,
        ),
        CONFUSION,
    ),
}


def figures_of(experiment: str, runs: list[SavedRun]) -> tuple[list[Captioned], list[str]]:
    """All figures that the saved runs of one experiment allow, and a sentence for each that could not be drawn."""
    made, problems = [], []
    if standard(runs):
        caption = (
            "Objective on the training set (solid) and loss on the validation set (dashed) against work and time; "
            "accuracies below where there are any. Seeds after the first are faint."
        )
        made.append(Captioned("convergence", caption, convergence_figure(standard(runs))))
        whole = []
        for run in first_of_each(runs):
            try:
                _ = run.arrays
                whole.append(run)
            except ValueError as error:
                problems.append(printable(f"figures of {experiment}/{run.directory.name}: {error}"))
        for name, text, needed, draw in ALSO[experiment]:
            shown = [run for run in whole if needed in run.arrays]
            try:
                if shown:
                    made.append(Captioned(name, text, draw(shown)))
            except Exception as error:  # arrays cut or altered: whatever numpy and matplotlib make of them
                of = ", ".join(str(run.directory.name) for run in shown)
                problems.append(printable(f"figure {experiment}-{name} of {of}: {type(error).__name__}: {error}"))
    tuning = tuning_figure(runs)
    if tuning is not None:
        text = "Tuning: one panel per value; training solid, validation dashed."
        made.append(Captioned("tuning", text, tuning))
    return made, problems


def convergence_figure(runs: list[SavedRun]) -> Figure:
    """Plot the loss, and the accuracy of classifiers, against work and against seconds."""
    rows = [("loss", "objective, validation loss", True)]
    if any(value is not None for run in runs for value in run.history["accuracy"]):
        rows.append(("accuracy", "accuracy", False))
    figure = page_figure(11, 3.4 * len(rows))
    grid = figure.subplots(len(rows), 2, squeeze=False, sharey="row")
    for (field, label, wants_log), axes_row in zip(rows, grid, strict=True):
        logarithmic = wants_log and spans_decades(list(extremes(runs, field)))
        for axes, against, unit in zip(axes_row, ("work", "seconds"), ("work units", "seconds"), strict=True):
            curves(axes, runs, field, against)
            axes.set(xlabel=unit, yscale="log" if logarithmic else "linear")
            if logarithmic:
                readable_log_axis(axes.yaxis, *extremes(runs, field))
        axes_row[0].set_ylabel(label)
    handles, names = grid[0, 0].get_legend_handles_labels()
    line = need("matplotlib.lines", "plot").Line2D
    handles += [line([], [], color="0.3"), line([], [], color="0.3", ls="--")]
    names = [*names, "training", "validation"]
    columns = int(11 / (0.6 + 0.085 * max(map(len, names))))  # inches: of the figure, of a line, of a character
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def curves(axes: Any, runs: list[SavedRun], field: str, against: str) -> None:
    """Plot training and validation curves of each run, with a line at each refinement of the network."""
    seen: set[str] = set()
    for run in runs:
        history, label = run.history, run.label(runs)
        again = label in seen
        look = {"color": run.colour(runs), "lw": 1.4, "alpha": 0.35 if again else 1.0}
        x = history[against]
        for name, style in ((field, "-"), (f"validation_{field}", "--")):
            points = [(a, b) for a, b in zip(x, history[name], strict=True) if a is not None and b is not None]
            if not points:
                continue
            every = max(1, len(points) // 8)
            marker = LOOKS[run.method].marker if not again else None
            named = label if style == "-" and not again else None
            axes.plot(*zip(*points, strict=True), style, **look, marker=marker, ms=4, markevery=every, label=named)
        seen.add(label)
    axes.grid(alpha=0.25, lw=0.5)
    if against == "work":
        for position in refinements(runs):
            axes.axvline(position, color="0.4", lw=0.8, ls=(0, (2, 3)))


def extremes(runs: list[SavedRun], field: str) -> tuple[float, float]:
    """The smallest and the largest value, of training and validation."""
    values = [v for run in runs for name in (field, f"validation_{field}") for v in run.history[name] if v is not None]
    return (min(values), max(values)) if values else (0.0, 0.0)


def refinements(runs: list[SavedRun]) -> list[float]:
    """Work at each refinement of the network, from the first run that has any."""
    for run in runs:
        levels, work = run.history["level"], run.history["work"]
        places = [work[i] for i in range(1, len(levels)) if levels[i] != levels[i - 1]]
        if places:
            return [place for place in places if place is not None]
    return []


def tuning_figure(runs: list[SavedRun]) -> Figure | None:
    """One row per tuned setting and method, one panel per value."""
    groups: dict[tuple[str, tuple[str, ...]], list[SavedRun]] = {}
    for run in runs:
        if run.tuned:
            groups.setdefault((run.method, tuple(sorted(run.tuned))), []).append(run)
    if not groups:
        return None
    columns = max(map(len, groups.values()))
    accuracy = any(value is not None for run in runs for value in run.history["accuracy"])
    fields = ["loss", "accuracy"] if accuracy else ["loss"]
    figure = page_figure(max(4.0, 2.6 * columns + 1), 2.4 * len(groups) * len(fields))
    grid = figure.subplots(len(groups) * len(fields), columns, squeeze=False, sharey="row")
    for i, group in enumerate(groups.values()):
        group.sort(key=lambda run: [run.tuned[name] for name in sorted(run.tuned)])
        for j, field in enumerate(fields):
            axes_row = grid[i * len(fields) + j]
            for axes, run in zip(axes_row, group, strict=False):
                curves(axes, [run], field, "work")
                axes.set_title(", ".join([run.label([run]), *run.tuned_text]), fontsize=8)
                axes.set(xlabel="work units", yscale="log" if field == "loss" else "linear")
            for axes in axes_row[len(group) :]:
                axes.set_visible(False)
            axes_row[0].set_ylabel(field)
    return figure
