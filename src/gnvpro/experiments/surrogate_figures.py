"""Predictions of surrogates: all samples of a set as the columns of one image, and single DCR samples as maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnvpro.experiments.catalogue import SETS
from gnvpro.experiments.saved import SavedRun
from gnvpro.experiments.style import new_figure
from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GLOBAL_CAPTION = (
    "Every column is a sample, every row an observable. Left: the observed data and the prediction of each surrogate; right: "
    "the absolute differences, all on one logarithmic scale. Red lines divide training, validation and test set. "
    "Of sets with millions of numbers, only every second, third, ... sample is shown."
)
LOCAL_CAPTION = (
    "One sample of the training set and one of the validation set, each as two 21 x 21 images: potential differences in "
    "x1 (left block) and x2 (right block), absolute values on logarithmic scales; beneath, absolute errors of each method."
)


def _stacked(run: SavedRun, kind: str) -> np.ndarray:
    return np.concatenate([run.arrays[f"{kind}_{name}"] for name in SETS])


def global_figure(runs: list[SavedRun]) -> Figure:
    """Outputs and absolute differences of all samples, by method."""
    logarithmic = runs[0].experiment == "dcr"
    targets = np.abs(_stacked(runs[0], "targets")) if logarithmic else _stacked(runs[0], "targets")
    differences = [np.abs(_stacked(run, "outputs") - _stacked(run, "targets")) for run in runs]
    colors = need("matplotlib.colors", "plot")
    data_norm = _log_norm(colors, [targets]) if logarithmic else colors.Normalize(targets.min(), targets.max())
    error_norm = _log_norm(colors, differences)
    figure = new_figure(11, 1.6 * (len(runs) + 1) + 0.8)
    grid = figure.subplots(len(runs) + 1, 2, squeeze=False, sharex=True)
    data_image = _image(grid[0, 0], targets, data_norm, "cividis", runs[0])
    grid[0, 0].set_title("observed")
    grid[0, 1].axis("off")
    error_image = None
    for (left, right), run, difference in zip(grid[1:], runs, differences, strict=True):
        outputs = _stacked(run, "outputs")
        _image(left, np.abs(outputs) if logarithmic else outputs, data_norm, "cividis", run)
        error_image = _image(right, difference, error_norm, "inferno", run)
        left.set_title(f"{run.label(runs)}: prediction")
        right.set_title(f"{run.label(runs)}: absolute difference")
    for axes in grid[-1]:
        axes.set_xlabel("sample")
    for axes in grid[:, 0]:
        axes.set_ylabel("observable")
    figure.colorbar(data_image, ax=grid[:, 0], shrink=0.6, label="data" if not logarithmic else "|data|")
    figure.colorbar(error_image, ax=grid[:, 1], shrink=0.6, label="absolute difference")
    return figure


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
    figure = new_figure(9.5, 2.0 * (len(runs) + 1) + 0.6)
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
