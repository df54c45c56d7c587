"""Makes docs/images/equations.png: solutions and errors of four equations, from runs that were saved.

for name in poisson2d burgers l-shape inverse-diffusion; do gnvpro run $name --method gnvpro --out runs; done
python docs/equations_figure.py runs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gnvpro.experiments.equations import EQUATIONS

SHOWN = ("poisson2d", "burgers", "l-shape", "inverse-diffusion")


def main(runs: Path) -> None:
    """Draw the solution above, the error below."""
    figure = Figure(figsize=(13, 5.4), layout="constrained", dpi=120)
    grid = figure.subplots(2, len(SHOWN))
    for column, name in enumerate(SHOWN):
        problem, directory = EQUATIONS[name], runs / name / "gnvpro-seed0"
        metrics = json.loads((directory / "metrics.json").read_text())
        found = "".join(f", {key} = {c['found']:.5f}" for key, c in metrics["constants"].items())
        with np.load(directory / "solution.npz") as file:
            arrays = {key: file[key] for key in file.files}
        for axes, key, colours in zip(grid[:, column], ("solution", "error"), ("viridis", "RdBu_r"), strict=True):
            values = arrays[key]
            largest = float(np.nanmax(np.abs(values)))
            limits = {"vmin": -largest, "vmax": largest} if key == "error" else {}
            drawn = axes.pcolormesh(arrays["a"], arrays["b"], values.T, cmap=colours, shading="gouraud", **limits)
            kind = "relative error" if metrics["relative"] else "error"
            title = problem.title + found if key == "solution" else f"{kind} {metrics['error']:.0e}"
            axes.set(title=title, xlabel=problem.axes[0], ylabel=problem.axes[1])
            axes.title.set_fontsize(9)
            figure.colorbar(drawn, ax=axes)
    figure.savefig(Path(__file__).parent / "images" / "equations.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
