"""The paper's figures of the two simulated problems: the setting, and one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnvpro.extras import need
from gnvpro.network.evaluation import one_thread

from . import cdr, dcr, resistivity
from . import convection_diffusion_reaction as transport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORANGE, BLUE, BLACK = "#E69F00", "#0072B2", "#000000"  # palette by Okabe and Ito, safe for colour-blind readers


def cdr_figure(mesh: int = cdr.MESH, draw_seed: int = 0) -> Figure:
    """Draw velocity and sources, the 55 reactions, and the first sample at t = 0.5 with the observation points."""
    transport.check_mesh(mesh)
    figure = need("matplotlib.figure", "plot").Figure(figsize=(14.5, 4.4), layout="constrained", dpi=150)
    flow, reactions, snapshot = figure.subplots(1, 3)

    x = np.linspace(0.05, 0.95, 10)
    speeds = np.meshgrid(transport.velocity1(x), transport.velocity2(x))
    arrows = flow.quiver(x, x, *speeds, color=BLUE, scale=90, width=0.006, zorder=2)
    flow.quiverkey(arrows, 0.78, -0.11, 5, "speed 5", labelpos="E", coordinates="axes")
    flow.plot(
        *zip(*(centre for _, centre, _ in transport.SOURCES), strict=True),
        "o",
        ms=13,
        color=ORANGE,
        mec=BLACK,
        zorder=3,
    )
    for k, (_, (x1, x2), _) in enumerate(transport.SOURCES, 1):
        flow.text(x1, x2, str(k), ha="center", va="center", fontsize=9, zorder=4)
    _square(flow, "velocity v and the three sources", (0.0, 1.0))

    u = np.linspace(0.0, 70.0, 701)
    curves = transport.reaction_functions(u)[0]
    i, j = np.triu_indices(11, 1)
    colours = need("matplotlib", "plot").colormaps["viridis"]
    for curve, width in zip(curves.T, j - i, strict=True):
        reactions.plot(u, curve, lw=1.0, color=colours((width - 1) / 9))
    reactions.set(
        title="the 55 reactions",
        xlabel="concentration u",
        ylabel=r"$r_{i,j}(u)$",
        xlim=(0, 70),
        ylim=(-0.02, 1.02),
        box_aspect=1,
    )
    steps = need("matplotlib.colors", "plot").BoundaryNorm(np.arange(0.5, 11), colours.N)
    mappable = need("matplotlib.cm", "plot").ScalarMappable(norm=steps, cmap=colours)
    bar = figure.colorbar(mappable, ax=reactions, ticks=range(1, 11), shrink=0.85)
    bar.set_label("$j - i$: width of the range of concentrations / 6")
    bar.minorticks_off()

    with one_thread():
        *_, state = transport.problem(mesh).states(cdr.draw(1, draw_seed))
    image = snapshot.imshow(state[0].numpy().T, origin="lower", extent=(0, 1, 0, 1), cmap="viridis")
    for k, (x1, x2) in enumerate(transport.OBSERVED, 1):
        snapshot.plot(x1, x2, "o", ms=8, mfc="none", mec="white", mew=1.8)
        snapshot.annotate(str(k), (x1, x2), xytext=(7, 4), textcoords="offset points", color="white", fontsize=10)
    _square(snapshot, "u at t = 0.5, observed at the circles", (0.0, 1.0))
    figure.colorbar(image, ax=snapshot, shrink=0.85, label="concentration u")
    return figure


def dcr_figure(mesh: int = dcr.MESH, inputs: tuple[float, float, float] = (0.7, 0.6, np.pi / 5)) -> Figure:
    """Draw the dipole, slices of one conductivity from the surface down, and its data as two 21 x 21 images."""
    cells = resistivity.cells_of(mesh)
    y = np.array(inputs)
    resistivity.check_inputs(y[None])
    conductivity = resistivity.conductivity(y, cells)
    data = resistivity.observe(resistivity.solve(conductivity, resistivity.dipole(cells)))
    figure = need("matplotlib.figure", "plot").Figure(figsize=(15, 5.6), layout="constrained", dpi=150)
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1.0, 1.9, 0.95))

    points = np.linspace(1 / 6, 11 / 6, resistivity.POINTS)
    source = left.subplots()
    source.plot(*(c.ravel() for c in np.meshgrid(points, points)), ".", ms=3, color="0.55", label="data points")
    source.plot(1, 1 / 6, "s", ms=11, color=BLUE, mec=BLACK, ls="none", label="current $-1$")
    source.plot(1, 11 / 6, "o", ms=12, color=ORANGE, mec=BLACK, ls="none", label="current $+1$")
    source.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, columnspacing=1.0, handletextpad=0.3
    )
    _square(source, "dipole at the surface, $x_3 = 1$", (0.0, 2.0))

    slices = middle.subplots(2, 4, sharex=True, sharey=True)
    log10 = np.log10(conductivity)
    for axis, k in zip(slices.flat, np.linspace(cells[2] - 1, 0, 8).round().astype(int), strict=True):
        image = axis.imshow(
            log10[:, :, k].T, origin="lower", extent=(0, 2, 0, 2), cmap="cividis", vmin=0, vmax=log10.max()
        )
        axis.set_title(f"$x_3 = {(k + 0.5) / cells[2]:.2f}$", fontsize=10)
        axis.set(xticks=(0, 1, 2), yticks=(0, 1, 2))
        axis.set(xlabel="$x_1$", ylabel="$x_2$")
        axis.label_outer()
    middle.colorbar(image, ax=slices, orientation="horizontal", shrink=0.7, label=r"$\log_{10}$ of the conductivity m")
    middle.suptitle(f"conductivity from the surface down: $y_1$ = {y[0]:.2f}, $y_2$ = {y[1]:.2f}, $y_3$ = {y[2]:.2f}")

    half = (points[1] - points[0]) / 2
    sides = (points[0] - half, points[-1] + half)
    for axis, values, direction in zip(right.subplots(2, 1), data.reshape(2, 21, 21), ("x_1", "x_2"), strict=True):
        # data next to the electrodes are ten thousand times larger than between them: a logarithmic scale shows both
        norm = need("matplotlib.colors", "plot").SymLogNorm(1e-4, vmin=-10, vmax=10)
        image = axis.imshow(values.T, origin="lower", extent=(*sides, *sides), cmap="PuOr_r", norm=norm)
        bar = right.colorbar(image, ax=axis, ticks=(-1e1, -1e-1, -1e-3, 0, 1e-3, 1e-1, 1e1))
        bar.minorticks_off()
        bar.set_label("potential difference")
        _square(axis, f"data: to the next node in ${direction}$", sides)
    return figure


def _square(axis: Any, title: str, sides: tuple[float, float]) -> None:
    """Draw a square part of the domain from above."""
    axis.set(title=title, xlabel="$x_1$", ylabel="$x_2$", xlim=sides, ylim=sides, aspect="equal")
