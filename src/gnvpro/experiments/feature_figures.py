"""The paper's first figure, features and separating lines during training, and that of its appendix A."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gnvpro.data.extras import need
from gnvpro.experiments.saved import SavedRun
from gnvpro.experiments.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = ("#0072B2", "#D55E00")  # told apart by every kind of colour vision, and by their brightness
SHADES = ("#cfe3f1", "#fadfc9")
BUDGETS = (0, 30, 60, 120, math.inf)


def features_figure(runs: list[SavedRun]) -> Figure | None:
    """Left the data; then features and head after growing amounts of work, a row a method."""
    runs = [run for run in reversed(runs) if "features" in run.arrays]
    if not runs:
        return None
    figure = new_figure(12, 2.15 * max(2, len(runs)))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.01, hspace=0.01)  # type: ignore[union-attr]
    left, right = figure.subfigures(1, 2, width_ratios=[1, 3.6])
    axes = left.subplots(1, 1)
    inputs = runs[0].arrays["inputs"]
    labels = runs[0].arrays["labels_train"][: len(inputs)]
    _scatter(axes, inputs, labels, 4)
    axes.set(title="data", xlabel="$y_1$", ylabel="$y_2$", aspect="equal", xlim=(-2.1, 2.1), ylim=(-1.15, 1.15))
    line = need("matplotlib.lines", "plot").Line2D
    handles = [line([], [], marker="o", ls="", ms=4, color=colour) for colour in POINTS]
    handles.append(line([], [], color="black", lw=1.2))
    names = ["inside the ellipse", "outside", "separating line $W$"]
    axes.legend(handles, names, loc="upper center", bbox_to_anchor=(0.5, -0.28), frameon=False, fontsize=8)
    panels = right.subplots(len(runs), len(BUDGETS), squeeze=False)
    for axes_row, run in zip(panels, runs, strict=True):
        for axes, budget in zip(axes_row, BUDGETS, strict=True):
            _panel(axes, run, _record(run, budget), labels)
        axes_row[0].set_ylabel(f"{run.label(False)}\n\n$F_2$", fontsize=9)
    return figure


def _record(run: SavedRun, budget: float) -> int:
    """The last record within a budget; the start is shown although its gradient has cost a work unit."""
    work = run.history["work"]
    kept = len(run.arrays["features"])
    return max(i for i, value in enumerate(work[:kept]) if i == 0 or (value is not None and value <= budget))


def _panel(axes: Any, run: SavedRun, i: int, labels: np.ndarray) -> None:
    features, W = run.arrays["features"][i], run.arrays["heads"][i][0]
    axes.set(xlim=_window(features[:, 0]), ylim=_window(features[:, 1]), box_aspect=1)
    _scatter(axes, features, labels, 3)
    z1, z2 = np.meshgrid(np.linspace(*axes.get_xlim(), 200), np.linspace(*axes.get_ylim(), 200))
    logits = W[0] * z1 + W[1] * z2 + W[2]
    axes.contourf(z1, z2, logits, levels=[-math.inf, 0, math.inf], colors=SHADES, zorder=0)
    if logits.min() < 0 < logits.max():
        axes.contour(z1, z2, logits, levels=[0], colors="black", linewidths=1.2, zorder=3)
    when = "start" if i == 0 else f"iteration {i}, {run.history['work'][i]:.0f} WU"
    axes.set_title(f"{when}\naccuracy {100 * (run.history['accuracy'][i] or 0):.2f}%", fontsize=8)
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


def taylor_figure(runs: list[SavedRun]) -> Figure | None:
    """Taylor error against the step, a panel a tolerance, a curve a Krylov rank."""
    runs = [run for run in runs if "taylor_errors" in run.arrays]
    if not runs:
        return None
    arrays = runs[0].arrays
    steps, errors, ranks = arrays["taylor_steps"], arrays["taylor_errors"], arrays["taylor_ranks"]
    colours = need("matplotlib", "plot").colormaps["viridis"](np.linspace(0, 0.9, len(ranks)))
    figure = new_figure(3.1 * len(errors), 3.5)
    row = figure.subplots(1, len(errors), sharey=True, squeeze=False)[0]
    scale = errors[-1, -1, 0] / steps[0] ** 2
    for axes, tolerance, panel in zip(row, arrays["taylor_tolerances"], errors, strict=True):
        axes.loglog(steps, scale * steps**2, color="black", lw=2.2, label="$O(h^2)$")
        for rank, colour, curve, marker in zip(ranks, colours, panel, "osD^v", strict=False):
            axes.loglog(steps, np.maximum(curve, 1e-17), marker=marker, ms=4, lw=1.2, color=colour, label=f"rank {rank}")
        axes.set(xlabel="step $h$", title=rf"$|\nabla_W \Phi| \leq$ {tolerance:.0e}")
        axes.invert_xaxis()
        axes.grid(alpha=0.25, lw=0.5)
    row[0].set_ylabel("Taylor error")
    handles, names = row[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
