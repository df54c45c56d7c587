"""The paper's first figure (features and separating lines during training) and the Taylor test of its appendix A."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnvpro.drawing import page_figure
from gnvpro.experiments.saved import SavedRun
from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = ("#0072B2", "#D55E00")  # distinct in brightness and for every kind of colour vision
SHADES = ("#cfe3f1", "#fadfc9")
BUDGETS = (0, 30, 60, 120, math.inf)


@dataclass(frozen=True)
class FeatureRow:
    """One method: features of the shown points and the head after some iterations, with work and accuracy."""

    title: str
    iterations: Sequence[int]
    features: Sequence[np.ndarray]
    heads: Sequence[np.ndarray]
    work: Sequence[float]
    accuracy: Sequence[float]


def features_figure(runs: list[SavedRun]) -> Figure:
    """The ellipse figure of saved runs."""
    rows = []
    for run in reversed(runs):
        kept = run.arrays["iterations"].tolist()
        work, accuracy = ([run.history[name][i] or 0.0 for i in kept] for name in ("work", "accuracy"))
        features, heads = list(run.arrays["features"]), list(run.arrays["heads"][:, 0])
        rows.append(FeatureRow(run.label(runs), kept, features, heads, work, accuracy))
    inputs = runs[0].arrays["inputs"]
    return ellipse_figure(inputs, runs[0].arrays["labels_train"][: len(inputs)], rows)


def ellipse_figure(inputs: np.ndarray, labels: np.ndarray, rows: Sequence[FeatureRow]) -> Figure:
    """The data, then features and head after growing amounts of work, one row per method."""
    figure = page_figure(12, 2.15 * max(2, len(rows)))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.01, hspace=0.01)
    left, right = figure.subfigures(1, 2, width_ratios=[1, 3.6])
    axes = left.subplots(1, 1)
    _scatter(axes, inputs, labels, 4)
    axes.set(title="data", xlabel="$y_1$", ylabel="$y_2$", aspect="equal", xlim=(-2.1, 2.1), ylim=(-1.15, 1.15))
    line = need("matplotlib.lines", "plot").Line2D
    handles = [line([], [], marker="o", ls="", ms=4, color=colour) for colour in POINTS]
    handles.append(line([], [], color="black", lw=1.2))
    left.legend(handles, ["inside the ellipse", "outside", "separating line $W$"], loc="lower center", frameon=False)
    panels = right.subplots(len(rows), len(BUDGETS), squeeze=False)
    for axes_row, row in zip(panels, rows, strict=True):
        for axes, budget in zip(axes_row, BUDGETS, strict=True):
            # The start is shown although its gradient has cost a work unit.
            within = [i for i, work in enumerate(row.work) if i == 0 or work <= budget]
            _panel(axes, row, within[-1], labels)
        axes_row[0].set_ylabel(f"{row.title}\n\n$F_2$", fontsize=9)
    return figure


def _panel(axes: Any, row: FeatureRow, i: int, labels: np.ndarray) -> None:
    features, W = row.features[i], row.heads[i]
    axes.set(xlim=_window(features[:, 0]), ylim=_window(features[:, 1]), box_aspect=1)
    _scatter(axes, features, labels, 3)
    z1, z2 = np.meshgrid(*(np.linspace(low, high, 200) for low, high in (axes.get_xlim(), axes.get_ylim())))
    logits = W[0] * z1 + W[1] * z2 + W[2]
    axes.contourf(z1, z2, logits, levels=[-math.inf, 0, math.inf], colors=SHADES, zorder=0)
    if logits.min() < 0 < logits.max():
        axes.contour(z1, z2, logits, levels=[0], colors="black", linewidths=1.2, zorder=3)
    iteration = row.iterations[i]
    when = "start" if iteration == 0 else f"iteration {iteration}, {row.work[i]:.0f} WU"
    axes.set_title(f"{when}\naccuracy {100 * row.accuracy[i]:.2f}%", fontsize=8)
    axes.locator_params(nbins=3)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("$F_1$", labelpad=1)


def _scatter(axes: Any, points: np.ndarray, labels: np.ndarray, size: float) -> None:
    """Both classes, in the order of the samples so that neither covers the other."""
    colours = [POINTS[int(label)] for label in labels]
    axes.scatter(*points.T, s=size, c=colours, linewidths=0, alpha=0.8, rasterized=True, zorder=2)


def _window(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that leave a margin around the values."""
    low, high = float(values.min()), float(values.max())
    margin = 0.12 * (high - low) or 1.0
    return low - margin, high + margin


def taylor_figure(runs: list[SavedRun]) -> Figure:
    """Taylor error against the step, one panel per tolerance, one curve per Krylov rank."""
    arrays = runs[0].arrays
    steps, errors, ranks = arrays["taylor_steps"], arrays["taylor_errors"], arrays["taylor_ranks"]
    colours = need("matplotlib", "plot").colormaps["viridis"](np.linspace(0, 0.9, len(ranks)))
    figure = page_figure(3.1 * len(errors), 3.5)
    row = figure.subplots(1, len(errors), sharey=True, squeeze=False)[0]
    middle = len(steps) // 2
    scale = errors[-1, -1, middle] / steps[middle] ** 2
    for axes, tolerance, panel in zip(row, arrays["taylor_tolerances"], errors, strict=True):
        axes.loglog(steps, scale * steps**2, color="black", lw=2.2, label="$O(h^2)$")
        for rank, colour, curve, marker in zip(ranks, colours, panel, "osD^v", strict=False):
            axes.loglog(
                steps, np.maximum(curve, 1e-17), marker=marker, ms=4, lw=1.2, color=colour, label=f"rank {rank}"
            )
        axes.set(xlabel="step $h$", title=rf"$|\nabla_W \Phi| \leq$ {tolerance:.0e}")
        axes.invert_xaxis()
        axes.grid(alpha=0.25, lw=0.5)
    row[0].set_ylabel("Taylor error")
    handles, names = row[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
