"""Predictions of classifiers: class distributions, maps, confusion matrices, images with bars of class probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnvpro.data import indian_pines
from gnvpro.drawing import page_figure
from gnvpro.experiments.catalogue import SETS
from gnvpro.experiments.saved import SavedRun
from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFUSION_CAPTION = (
    "Confusion matrices of the test set. Each column is a true class and sums to 1: the share of its samples that is "
    "predicted as the class of the row. Best is a dark diagonal."
)
SET_COLOURS = {"train": "#0072B2", "validation": "#E69F00", "test": "#999999"}
# Twenty colours of different lightness, neighbours far apart.
CLASS_COLOURS = "tab20"


def confusion_matrix(truth: np.ndarray, predicted: np.ndarray, n_classes: int) -> np.ndarray:
    """Entry (i, j): the share of class j that is predicted as i; a class without samples is a column of zeros."""
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, (predicted, truth), 1)
    return counts / np.maximum(counts.sum(axis=0), 1)


def confusion_figure(runs: list[SavedRun]) -> Figure:
    """One matrix per method."""
    names = runs[0].classes
    n = len(runs)
    figure = page_figure(3.3 * n + 1.6, 3.9)
    row = figure.subplots(1, n, squeeze=False, sharey=True)[0]
    image = None
    for axes, run in zip(row, runs, strict=True):
        matrix = confusion_matrix(run.arrays["labels_test"], run.arrays["predicted_test"], len(names))
        image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        axes.set(xticks=range(len(names)), yticks=range(len(names)))
        axes.set_xticklabels(names, rotation=90, fontsize=7)
        axes.set_yticklabels(names, fontsize=7)
        axes.set_title(f"{run.label(runs)}\ntest accuracy {100 * run.metrics['test']['accuracy']:.2f}%", fontsize=9)
        axes.set_xlabel("true class")
    row[0].set_ylabel("predicted class")
    figure.colorbar(image, ax=row, shrink=0.75, label="share of the true class")
    return figure


def distribution_figure(runs: list[SavedRun]) -> Figure:
    """Samples of each class in each set, as stacked bars."""
    names = runs[0].classes
    figure = page_figure(8.5, 3.6)
    axes = figure.subplots()
    bottom = np.zeros(len(names))
    for name in SETS:
        counts = np.bincount(runs[0].arrays[f"labels_{name}"], minlength=len(names))
        label = f"{name} ({counts.sum()})"
        bars = axes.bar(range(len(names)), counts, bottom=bottom, color=SET_COLOURS[name], label=label)
        bottom += counts
    axes.bar_label(bars, [f"{total:.0f}" for total in bottom], fontsize=7, padding=1)
    axes.set(ylabel="pixels", xticks=range(len(names)))
    axes.set_xticklabels([f"{k}  {name}" for k, name in enumerate(names, 1)], rotation=60, ha="right", fontsize=8)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def map_figure(runs: list[SavedRun]) -> Figure:
    """Ground truth, predictions and differences on the image."""
    names = runs[0].classes
    colours = need("matplotlib", "plot").colormaps[CLASS_COLOURS].resampled(20)
    figure = page_figure(2.6 * (len(runs) + 1) + 1.9, 5.6)
    grid = figure.subplots(2, len(runs) + 1, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=(), yticks=())
    truth = _on_image(runs[0], "labels")
    grid[0, 0].imshow(_colours(truth, colours), interpolation="nearest")
    grid[0, 0].set_title("ground truth", fontsize=9)
    grid[1, 0].axis("off")
    for (above, below), run in zip(grid[:, 1:].T, runs, strict=True):
        predicted = _on_image(run, "predicted")
        above.imshow(_colours(predicted, colours), interpolation="nearest")
        above.set_title(run.label(runs), fontsize=9)
        wrong = np.full((*truth.shape, 3), 1.0)
        wrong[truth >= 0] = 0.85
        wrong[(truth >= 0) & (predicted != truth)] = 0.0
        below.imshow(wrong, interpolation="nearest")
        share = (predicted != truth)[truth >= 0].mean()
        below.set_title(f"wrong: {100 * share:.1f}% of all labelled pixels", fontsize=8)
    patch = need("matplotlib.patches", "plot").Patch
    handles = [patch(color=colours(k)) for k in range(len(names))]
    labels = [f"{k} {name}" for k, name in enumerate(names, 1)]
    figure.legend(handles, labels, loc="outside right center", fontsize=7, frameon=False)
    return figure


def _on_image(run: SavedRun, kind: str) -> np.ndarray:
    """Labels of all three sets at their pixels, -1 elsewhere."""
    image = np.full(indian_pines.SHAPE, -1).ravel()
    for name in SETS:
        image[run.arrays[f"pixels_{name}"]] = run.arrays[f"{kind}_{name}"]
    return image.reshape(indian_pines.SHAPE)


def _colours(labels: np.ndarray, colours: Any) -> np.ndarray:
    painted = colours(np.maximum(labels, 0))[..., :3]
    painted[labels < 0] = 1.0
    return painted


def examples_figure(runs: list[SavedRun], shown: int = 10) -> Figure:
    """Images that most methods get right, with each method's class probabilities as a bar."""
    names = runs[0].classes
    images = runs[0].arrays["images_test"]
    truth = runs[0].arrays["labels_test"][: len(images)]
    right = sum((run.arrays["predicted_test"][: len(images)] == truth).astype(int) for run in runs)
    chosen = np.argsort(-np.asarray(right), kind="stable")
    chosen = np.array([next(i for i in chosen if truth[i] == k) for k in np.unique(truth)])[:shown]
    colours = need("matplotlib", "plot").colormaps["tab10"]
    figure = page_figure(11, 5.2)
    grid = figure.subplots(2, 2 * -(-len(chosen) // 2), squeeze=False, width_ratios=[1, 0.9] * -(-len(chosen) // 2))
    cells = [(grid[r, 2 * c], grid[r, 2 * c + 1]) for r in range(2) for c in range(grid.shape[1] // 2)]
    for (picture, bars), i in zip(cells, chosen, strict=False):
        picture.imshow(images[i].transpose(1, 2, 0))
        picture.set_title(names[truth[i]], fontsize=9)
        for place, run in enumerate(runs):
            _bar(bars, place, run.arrays["probabilities_test"][i], colours)
        _bar(bars, len(runs) + 0.3, np.eye(len(names))[truth[i]], colours)
        bars.set(ylim=(0, 1), xlim=(-0.6, len(runs) + 0.9), xticks=[*range(len(runs)), len(runs) + 0.3])
        bars.set_xticklabels([*(str(k) for k in range(1, len(runs) + 1)), "true"], fontsize=6)
        bars.set_yticks(())
        picture.axis("off")
    for pair in cells[len(chosen) :]:
        for axes in pair:
            axes.axis("off")
    patch = need("matplotlib.patches", "plot").Patch
    handles = [patch(color=colours(k)) for k in range(len(names))]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8, frameon=False)
    bars_are = ",  ".join(f"{k} {run.label(runs)}" for k, run in enumerate(runs, 1))
    figure.suptitle(f"bars: {bars_are},  and the true class", fontsize=9)
    return figure


def _bar(axes: Any, place: float, shares: np.ndarray, colours: Any) -> None:
    bottom = 0.0
    for k, share in enumerate(shares):
        axes.bar(place, share, bottom=bottom, width=0.85, color=colours(k), linewidth=0)
        bottom += share
