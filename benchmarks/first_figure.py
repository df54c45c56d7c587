"""Draw the figure of the first page: error against processor seconds on a surrogate and an equation.

    python -m benchmarks.first_figure --out docs/images/first.png

Left: the shipped CDR surrogate (55 coefficients -> 72 concentrations, 400 samples) with the network and settings of
the race (`benchmarks/race`): ADAM and L-BFGS with the best settings of its search, and a scikit-learn Gaussian
process with one length scale. Error: mean relative error on unseen samples. Middle: the heat equation by GNvpro, and
by ADAM and L-BFGS on the full loss, with the same network and points. Right: its solution. One core, one seed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.race.problems import make
from benchmarks.race.referee import Referee, TimeUp
from matplotlib.figure import Figure
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from gnvpro.drawing import BLUE, GREEN, GREY, ORANGE, readable_log_axis
from gnvpro.experiments.equations.equation_run import SOLUTION, EquationOrder, run_equation
from gnvpro.experiments.experiment_run import HISTORY

CAPTION = (
    "Error against processor seconds of one core, one seed. Left: a surrogate of a transport equation (55 coefficients to 72 "
    "concentrations, 400 samples), error on unseen samples; ADAM and L-BFGS train the same network with the best settings of "
    "a search, the Gaussian process has one length scale. Middle: the heat equation by the same network and points; ADAM and "
    "L-BFGS minimise the full loss. Right: the solution of the heat equation by gnvpro. Nothing was tuned for gnvpro."
)
LOOK = {
    "gnvpro": ("gnvpro", BLUE, 2.6),
    "adam": ("ADAM", ORANGE, 1.6),
    "torch_lbfgs": ("L-BFGS", GREEN, 1.6),
    "lbfgs": ("L-BFGS", GREEN, 1.6),
}


def surrogate(seconds: float, seed: int) -> dict[str, np.ndarray]:
    """Return (seconds, error) of each contender on CDR."""
    settings = json.loads((Path(__file__).parent / "race" / "settings.json").read_text())["cdr"]
    found = {}
    for name in ("gnvpro", "torch_lbfgs", "adam"):
        problem = make("cdr", seed)
        referee = Referee(problem, seconds)
        with contextlib.suppress(TimeUp):
            importlib.import_module(f"benchmarks.race.contenders.{name}").fit(problem, settings.get(name, {}), referee)
        found[name] = np.array([(look[0], look[2]) for look in referee.looks])
        print(f"CDR, {name}: {found[name][:, 1].min():.5f} in {found[name][-1, 0]:.1f} s", flush=True)
    return found


def gaussian_process(seed: int) -> tuple[float, float]:
    """Return seconds and error of a Gaussian process on the same samples."""
    problem = make("cdr", seed)
    (inputs, targets), (new, truth) = problem.train, problem.validation
    began = time.process_time()
    kernel = 1.0 * RBF(float(inputs.std()) * inputs.shape[1] ** 0.5, (1e-2, 1e3)) + WhiteKernel(1e-4, (1e-10, 1e1))
    model = GaussianProcessRegressor(kernel, normalize_y=True).fit(inputs.numpy(), targets.numpy())
    seconds = time.process_time() - began
    predicted = torch.from_numpy(model.predict(new.numpy()))
    error = float(((predicted - truth).norm(dim=1) / truth.norm(dim=1)).mean())
    print(f"CDR, Gaussian process: {error:.5f} in {seconds:.1f} s", flush=True)
    return seconds, error


def equation(seconds: float, seed: int, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return (seconds, error) of each method on the heat equation, and GNvpro's solution."""
    found = {}
    for method in ("gnvpro", "lbfgs", "adam"):
        run_equation(EquationOrder("heat1d", (method,), (seed,), seconds, folder))
        rows = np.genfromtxt(folder / "heat1d" / f"{method}-seed{seed}" / HISTORY, delimiter=",", names=True)
        found[method] = np.column_stack([rows["seconds"], rows["error"]])
        print(f"heat, {method}: {found[method][:, 1].min():.1e}", flush=True)
    with np.load(folder / "heat1d" / f"gnvpro-seed{seed}" / SOLUTION) as file:
        return found, {key: file[key] for key in file.files}


def draw(curves: dict[str, np.ndarray], point: tuple[float, float], solved: Any, picture: Any) -> Figure:
    """Draw the three panels."""
    figure = Figure(figsize=(11, 3.4), layout="constrained", dpi=130)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1.15, 0.95))
    for axes, group in ((left, curves), (middle, solved)):
        values = []
        for name, rows in group.items():
            label, colour, width = LOOK[name]
            best = np.minimum.accumulate(rows[:, 1])
            axes.plot(np.maximum(rows[:, 0], 1e-2), best, color=colour, lw=width, label=label)
            values += list(best)
        axes.set(xscale="log", yscale="log", xlabel="processor seconds, one core")
        readable_log_axis(axes.yaxis, min(values), max(values))
        axes.grid(alpha=0.3, lw=0.5)
    left.plot(*point, "D", color=GREY, ms=8, label="Gaussian process")
    left.set(title="A surrogate: 55 inputs, 72 outputs", ylabel="relative error, unseen samples")
    middle.set(title="The heat equation", ylabel="error")
    left.legend(frameon=False, fontsize="small")
    drawn = right.pcolormesh(picture["a"], picture["b"], picture["solution"].T, shading="gouraud", cmap="inferno")
    right.set(title="its solution by gnvpro", xlabel="time", ylabel="place")
    figure.colorbar(drawn, ax=right)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/first.png"))
    parser.add_argument("--seconds", type=float, default=8.0, help="for each method and problem")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    curves, point = surrogate(given.seconds, given.seed), gaussian_process(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        solved, picture = equation(given.seconds, given.seed, Path(folder))
    draw(curves, point, solved, picture).savefig(given.out, metadata={"Description": CAPTION})
    print(f"figure: {given.out}")


if __name__ == "__main__":
    main()
