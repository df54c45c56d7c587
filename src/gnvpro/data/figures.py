"""The paper's figures of the two simulated problems: what is simulated, and one sample of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import cdr, dcr
from . import convection_diffusion_reaction as transport
from . import resistivity
from .extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORANGE, BLUE, BLACK = "#E69F00", "#0072B2", "#000000"  # of Okabe and Ito, told apart by colour-blind readers


def cdr_figure(mesh: int = cdr.MESH, draw_seed: int = 0) -> Figure:
    """Velocity and sources, the 55 reactions, and the first sample at t = 0.5 with the observation points."""
    transport.check_mesh(mesh)
    figure = need("matplotlib.figure", "plot").Figure(figsize=(14.5, 4.4), layout="constrained", dpi=150)
    flow, reactions, snapshot = figure.subplots(1, 3)

    x = np.linspace(0.05, 0.95, 10)
    speeds = np.meshgrid(transport.velocity1(x), transport.velocity2(x))
    arrows = flow.quiver(x, x, *speeds, color=BLUE, scale=90, width=0.006, zorder=2)
    flow.quiverkey(arrows, 0.87, 1.05, 5, "speed 5", labelpos="E", coordinates="axes")
    flow.plot(*zip(*(centre for _, centre, _ in transport.SOURCES), strict=True), "o", ms=13, color=ORANGE, mec=BLACK, zorder=3)
    for k, (_, (x1, x2), _) in enumerate(transport.SOURCES, 1):
        flow.text(x1, x2, str(k), ha="center", va="center", fontsize=9, zorder=4)
    _square(flow, "velocity v and the three sources", 1.0)

    u = np.linspace(0.0, 70.0, 701)
    curves = transport.reaction_functions(u)[0]
    i, j = np.triu_indices(11, 1)
    colours = need("matplotlib", "plot").colormaps["viridis"]
    for curve, width in zip(curves.T, j - i, strict=True):
        reactions.plot(u, curve, lw=1.0, color=colours((width - 1) / 9))
    reactions.set(
        title="the 55 reactions", xlabel="concentration u", ylabel=r"$r_{i,j}(u)$", xlim=(0, 70), ylim=(-0.02, 1.02), box_aspect=1
    )
    steps = need("matplotlib.colors", "plot").BoundaryNorm(np.arange(0.5, 11), colours.N)
    mappable = need("matplotlib.cm", "plot").ScalarMappable(norm=steps, cmap=colours)
    figure.colorbar(mappable, ax=reactions, ticks=range(1, 11), shrink=0.85, label=r"$j - i$: range of concentrations / 6")

    *_, state = transport.problem(mesh).states(cdr.draw(1, draw_seed))
    image = snapshot.imshow(state[0].numpy().T, origin="lower", extent=(0, 1, 0, 1), cmap="viridis")
    for k, (x1, x2) in enumerate(transport.OBSERVED, 1):
        snapshot.plot(x1, x2, "o", ms=8, mfc="none", mec="white", mew=1.8)
        snapshot.annotate(str(k), (x1, x2), xytext=(7, 4), textcoords="offset points", color="white", fontsize=10)
    _square(snapshot, "u at t = 0.5, observed at the circles", 1.0)
    figure.colorbar(image, ax=snapshot, shrink=0.85, label="concentration u")
    return figure


def dcr_figure(mesh: int = dcr.MESH, inputs: tuple[float, float, float] = (0.7, 0.6, np.pi / 5)) -> Figure:
    """The dipole, slices of one conductivity from the surface down, and its data as two 21 x 21 images."""
    cells = resistivity.cells_of(mesh)
    y = np.array(inputs)
    resistivity.check_inputs(y[None])
    figure = need("matplotlib.figure", "plot").Figure(figsize=(14.5, 8.2), layout="constrained", dpi=150)
    top, bottom = figure.subfigures(2, 1)
    source, *differences = top.subplots(1, 3)

    points = np.linspace(1 / 6, 11 / 6, resistivity.POINTS)
    source.plot(*(c.ravel() for c in np.meshgrid(points, points)), ".", ms=3, color="0.55", label="data points")
    source.plot(1, 1 / 6, "s", ms=11, color=BLUE, mec=BLACK, label="current $-1$")
    source.plot(1, 11 / 6, "o", ms=12, color=ORANGE, mec=BLACK, label="current $+1$")
    source.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
    _square(source, "dipole at the surface, $x_3 = 1$", 2.0)

    conductivity = resistivity.conductivity(y, cells)
    data = resistivity.observe(resistivity.solve(conductivity, resistivity.dipole(cells))).reshape(2, 21, 21)
    half = (points[1] - points[0]) / 2
    extent = (points[0] - half, points[-1] + half, points[0] - half, points[-1] + half)
    for axis, values, direction in zip(differences, data, ("x_1", "x_2"), strict=True):
        # the dipole is a hundred times what the body adds: a symmetric logarithmic scale shows both
        limit = float(np.abs(values).max())
        norm = need("matplotlib.colors", "plot").SymLogNorm(1e-2 * limit, vmin=-limit, vmax=limit)
        image = axis.imshow(values.T, origin="lower", extent=extent, cmap="PuOr_r", norm=norm)
        top.colorbar(image, ax=axis, shrink=0.85, label="potential difference")
        _square(axis, f"data: difference to the next node in ${direction}$", 2.0)

    depths = np.linspace(cells[2] - 1, 0, 8).round().astype(int)
    slices = bottom.subplots(2, 4, sharex=True, sharey=True)
    log10 = np.log10(conductivity)
    for axis, k in zip(slices.flat, depths, strict=True):
        image = axis.imshow(log10[:, :, k].T, origin="lower", extent=(0, 2, 0, 2), cmap="cividis", vmin=0, vmax=log10.max())
        axis.set_title(f"$x_3 = {(k + 0.5) / cells[2]:.2f}$", fontsize=10)
        axis.set(xticks=(0, 1, 2), yticks=(0, 1, 2))
    for axis in slices[-1]:
        axis.set_xlabel("$x_1$")
    for axis in slices[:, 0]:
        axis.set_ylabel("$x_2$")
    bottom.colorbar(image, ax=slices, shrink=0.85, label=r"$\log_{10}$ conductivity")
    bottom.suptitle(f"conductivity from the surface down, y = ({y[0]:.2f}, {y[1]:.2f}, {y[2]:.2f})")
    return figure


def _square(axis: Any, title: str, length: float) -> None:
    """A square part of the domain seen from above."""
    axis.set(title=title, xlabel="$x_1$", ylabel="$x_2$", xlim=(0, length), ylim=(0, length), aspect="equal")
