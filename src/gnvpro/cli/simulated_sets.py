"""The simulated data sets: data cdr, data dcr."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnvpro.cli.app import DataDir, app, one_line_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnvpro.data.archive import Array

data_app = typer.Typer(no_args_is_help=True, help="Make the paper's simulated data sets, and draw them.")
app.add_typer(data_app, name="data")

Samples = Annotated[int, typer.Option(help="How many samples to simulate.")]
Seed = Annotated[int, typer.Option("--draw-seed", help="Seed of the drawn inputs.")]
Workers = Annotated[int | None, typer.Option(help="Number of processes; all cores if not given.")]
Out = Annotated[Path | None, typer.Option(help="Write the set (.npz), or with --plot the figure, to this file.")]
Plot = Annotated[bool, typer.Option("--plot", help="Draw the problem and one sample instead of making the set.")]


@data_app.command("cdr")
def data_cdr(
    samples: Samples = 800,
    mesh: Annotated[int, typer.Option(help="Nodes in each direction: 21, 31, ...; the paper has 151.")] = 151,
    draw_seed: Seed = 0,
    workers: Workers = None,
    data_dir: DataDir = None,
    out: Out = None,
    plot: Plot = False,
) -> None:
    """Convection-diffusion-reaction: 55 coefficients -> 72 concentrations. By default the shipped set is simulated again."""
    with one_line_errors():
        from gnvpro.data import cdr
        from gnvpro.data import set_figures as figures

        if plot:
            save_figure(figures.cdr_figure(mesh, draw_seed), out or Path("cdr.png"))
            return
        inputs, targets = make_set(cdr.simulated, samples, mesh, draw_seed, workers, data_dir, out)
        if cdr.is_shipped(samples, mesh, draw_seed):
            typer.echo(f"largest difference from the shipped set: {cdr.distance_to_shipped(inputs, targets):.1e}")


@data_app.command("dcr")
def data_dcr(
    samples: Samples = 10_000,
    mesh: Annotated[
        int, typer.Option(help="Cells in x1 and x2 (half as many in x3): 24, 48, 96; the paper has 48.")
    ] = 48,
    draw_seed: Seed = 0,
    workers: Workers = None,
    data_dir: DataDir = None,
    out: Out = None,
    plot: Plot = False,
) -> None:
    """Direct current resistivity: depth, radius, angle of an ellipsoid -> 882 potential differences."""
    with one_line_errors():
        from gnvpro.data import dcr
        from gnvpro.data import set_figures as figures

        if plot:
            save_figure(figures.dcr_figure(mesh), out or Path("dcr.png"))
        else:
            make_set(dcr.simulated, samples, mesh, draw_seed, workers, data_dir, out)


def make_set(
    simulated: Callable[..., tuple[Path, Array, Array]],
    samples: int,
    mesh: int,
    draw_seed: int,
    workers: int | None,
    data_dir: Path | None,
    out: Path | None,
) -> tuple[Array, Array]:
    """Inputs and targets of a set, which is made, copied to `out` if given, and reported."""
    from gnvpro.data import archive
    from gnvpro.progress import duration

    started = time.monotonic()
    path, inputs, targets = simulated(samples, mesh, draw_seed=draw_seed, data_dir=data_dir, workers=workers)
    if out is not None:
        with archive.explained(out.parent, 1e-6 * path.stat().st_size):
            archive.copy(path, out)
    sizes = f"{len(inputs)} samples, {inputs.shape[1]} inputs -> {targets.shape[1]} targets"
    typer.echo(f"{sizes}, in {duration(time.monotonic() - started)}: {out or path}")
    return inputs, targets


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the file's suffix names."""
    figure.savefig(path)
    typer.echo(f"figure: {path}")
