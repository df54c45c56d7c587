"""Predictions of surrogates: all samples of a set as the columns of one image, and single DCR samples as maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnvpro.drawing import page_figure, readable_log_axis
from gnvpro.experiments.catalogue import SETS
from gnvpro.experiments.saved import SavedRun
from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GLOBAL_CAPTION = (
    "Left: the observed data, and below it the absolute error of each surrogate on one logarithmic scale; every column is a "
    "sample, every row an observable; red lines divide training, validation and test set. Right, on top: relative errors of "
    "all test samples in order, by method. Below: which observables are hard, the mean error on the test set in units of "
    "the observable's standard deviation; the other methods in grey. Of sets with millions of numbers, only every second, "
    "third, ... sample is shown."
)
LOCAL_CAPTION = (
    "One sample of the training set and one of the validation set, each as two 21 x 21 images: potential differences in "
    "x1 (left block) and x2 (right block), absolute values on logarithmic scales; beneath, absolute errors of each method."
)


def _stacked(run: SavedRun, kind: str) -> np.ndarray:
    return np.concatenate([run.arrays[f"{kind}_{name}"] for name in SETS])


def global_figure(runs: list[SavedRun]) -> Figure:
    """Plot the data and the errors by method: of all samples, by sample and by observable."""
    logarithmic = runs[0].experiment == "dcr"
    targets = np.abs(_stacked(runs[0], "targets")) if logarithmic else _stacked(runs[0], "targets")
    differences = [np.abs(_stacked(run, "outputs") - _stacked(run, "targets")) for run in runs]
    colors = need("matplotlib.colors", "plot")
    data_norm = _log_norm(colors, [targets]) if logarithmic else colors.Normalize(targets.min(), targets.max())
    error_norm = _log_norm(colors, differences)
    figure = page_figure(11, 2.0 * (len(runs) + 1) + 0.8)
    grid = figure.subplots(len(runs) + 1, 2, squeeze=False)
    data_image = _image(grid[0, 0], targets, data_norm, "cividis", runs[0])
    grid[0, 0].set_title("observed")
    by_sample(grid[0, 1], runs)
    errors = [_by_observable(run) for run in runs]
    for k, (run, difference) in enumerate(zip(runs, differences, strict=True)):
        left, right = grid[k + 1]
        error_image = _image(left, difference, error_norm, "inferno", run)
        left.set_title(f"{run.label(runs)}: absolute error")
        by_observable(right, k, errors, run, runs)
    for axes in grid[:, 0]:
        axes.set_ylabel("observable")
    grid[-1, 0].set_xlabel("sample")
    grid[-1, 1].set_xlabel("observable")
    figure.colorbar(data_image, ax=grid[0, 0], label="data" if not logarithmic else "|data|")
    figure.colorbar(error_image, ax=grid[1:, 0], label="absolute error")
    return figure


def by_sample(axes: Any, runs: list[SavedRun]) -> None:
    """Relative errors of the test samples, in order."""
    for run in runs:
        outputs, targets = run.arrays["outputs_test"], run.arrays["targets_test"]
        norms = np.maximum(np.linalg.norm(targets, axis=1), np.finfo(float).tiny)
        errors = np.sort(np.linalg.norm(outputs - targets, axis=1) / norms)
        look = {"color": run.colour(runs), "lw": 1.8, "label": run.label(runs)}
        axes.plot(np.linspace(0, 100, len(errors)), np.maximum(errors, 1e-16), **look)
    axes.set(title="relative error of every test sample", xlabel="share of test samples, %", yscale="log")
    low, high = axes.get_ylim()
    readable_log_axis(axes.yaxis, low, high)
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(frameon=False, fontsize="small")


def _by_observable(run: SavedRun) -> np.ndarray:
    """Mean absolute error of each observable on the test set, in units of its standard deviation over all samples."""
    spread = np.maximum(_stacked(run, "targets").std(0), np.finfo(float).tiny)
    return np.abs(run.arrays["outputs_test"] - run.arrays["targets_test"]).mean(0) / spread


def by_observable(axes: Any, k: int, errors: list[np.ndarray], run: SavedRun, runs: list[SavedRun]) -> None:
    """One method in its colour, the others in grey."""
    for other in (each for i, each in enumerate(errors) if i != k):
        axes.plot(np.maximum(other, 1e-16), color="0.8", lw=1.0)
    axes.plot(np.maximum(errors[k], 1e-16), color=run.colour(runs), lw=1.6)
    axes.set(title=f"{run.label(runs)}: error by observable", yscale="log")
    low, high = axes.get_ylim()
    readable_log_axis(axes.yaxis, low, high)
    axes.grid(alpha=0.25, lw=0.5)


def _image(axes: Any, values: np.ndarray, norm: Any, cmap: str, run: SavedRun) -> Any:
    image = axes.imshow(values.T, aspect="auto", norm=norm, cmap=cmap, interpolation="nearest", rasterized=True)
    edge = 0
    for name in SETS[:-1]:
        edge += len(run.arrays[f"outputs_{name}"])
        axes.axvline(edge - 0.5, color="red", lw=1.2)
    return image


def _log_norm(colors: Any, arrays: list[np.ndarray]) -> Any:
    """A logarithmic scale over the values that matter: from the first percentile to the largest."""
    positive = np.concatenate([array[array > 0].ravel() for array in arrays])
    if not positive.size:
        return colors.Normalize(0, 1)
    low, high = np.percentile(positive, 1), positive.max()
    return colors.LogNorm(min(low, high / 10), high, clip=True)


def local_figure(runs: list[SavedRun]) -> Figure:
    """One training and one validation sample of DCR, and each method's error there."""
    colors = need("matplotlib.colors", "plot")
    figure = page_figure(9.5, 2.0 * (len(runs) + 1) + 0.6)
    grid = figure.subplots(len(runs) + 1, 2, squeeze=False)
    errors = []
    for column, name in enumerate(SETS[:2]):
        target = runs[0].arrays[f"targets_{name}"][0]
        data_image = grid[0, column].imshow(_blocks(target), norm=_log_norm(colors, [np.abs(target)]), cmap="cividis")
        grid[0, column].set_title(f"{name}: |data|")
        figure.colorbar(data_image, ax=grid[0, column], shrink=0.8)
        errors += [run.arrays[f"outputs_{name}"][0] - run.arrays[f"targets_{name}"][0] for run in runs]
    norm = _log_norm(colors, [np.abs(error) for error in errors])
    for k, error in enumerate(errors):
        column, row = divmod(k, len(runs))
        axes = grid[row + 1, column]
        image = axes.imshow(_blocks(error), norm=norm, cmap="inferno")
        axes.set_title(f"{runs[row].label(runs)}: |error|")
    for axes in grid.flat:
        axes.axvline(20.5, color="white", lw=1.5)
        axes.set(xticks=(10, 31), xticklabels=("$x_1$ differences", "$x_2$ differences"), yticks=())
    figure.colorbar(image, ax=grid[1:], shrink=0.5, label="absolute error")
    return figure


def _blocks(values: np.ndarray) -> np.ndarray:
    """Both 21 x 21 images side by side, x1 to the right and x2 upwards in each."""
    return np.concatenate([np.abs(part).T[::-1] for part in values.reshape(2, 21, 21)], axis=1)
