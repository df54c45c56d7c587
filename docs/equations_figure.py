"""Makes docs/images/equations.png: the solutions of three equations of the catalogue, and their errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gnvpro import pde
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.equations.run import picture

SHOWN = ("poisson2d", "heat1d", "inverse-diffusion")
SECONDS = 5.0


def main() -> None:
    """Solve and draw."""
    figure = Figure(figsize=(10, 5.4), layout="constrained", dpi=130)
    grid = figure.subplots(2, len(SHOWN))
    for column, name in enumerate(SHOWN):
        problem = EQUATIONS[name]
        posed = problem.pose(0)
        pde.solve(posed.field, posed.equations, seconds=SECONDS)
        arrays = picture(posed)
        found = "".join(f", {key} = {float(c):.5f}" for key, (c, _) in posed.constants.items())
        for axes, key, colours in zip(grid[:, column], ("solution", "error"), ("viridis", "RdBu_r"), strict=True):
            values = arrays[key]
            largest = float(np.nanmax(np.abs(values)))
            limits = {"vmin": -largest, "vmax": largest} if key == "error" else {}
            drawn = axes.pcolormesh(arrays["a"], arrays["b"], values.T, cmap=colours, shading="gouraud", **limits)
            axes.set(
                title=problem.title + found if key == "solution" else "error",
                xlabel=problem.axes[0],
                ylabel=problem.axes[1],
            )
            axes.title.set_fontsize(9)
            figure.colorbar(drawn, ax=axes)
    figure.savefig(Path(__file__).parent / "images" / "equations.png")


if __name__ == "__main__":
    main()
