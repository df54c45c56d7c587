"""The command line: a thin shell with one function per command; errors are reported in one line."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .extras import how_to_get

try:
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(f"the gnvpro command needs typer; {how_to_get('cli')}") from missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .data.archive import Array

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Train networks that end in a linear layer by eliminating that layer.",
)
data_app = typer.Typer(no_args_is_help=True, help="Make the paper's simulated data sets, and draw them.")
app.add_typer(data_app, name="data")

Samples = Annotated[int, typer.Option(help="How many samples to simulate.")]
Seed = Annotated[int, typer.Option("--draw-seed", help="Seed of the drawn inputs.")]
Workers = Annotated[int | None, typer.Option(help="Number of processes; all cores if not given.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets are kept; else GNVPRO_DATA, else the user's cache.")
]
Out = Annotated[Path | None, typer.Option(help="Write the set (.npz), or with --plot the figure, to this file.")]
Plot = Annotated[bool, typer.Option("--plot", help="Draw the problem and one sample instead of making the set.")]


@app.command("list")
def list_experiments() -> None:
    """List the experiments, their methods and budgets."""
    from .experiments.terminal import catalogue_table

    catalogue_table()


@app.command("run")
def run_experiment(
    name: Annotated[str, typer.Argument(help="The experiment: see gnvpro list.")],
    method: Annotated[list[str] | None, typer.Option(help="A method; may be repeated. All if not given.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of data, weights and batches; may be repeated.")] = None,
    work: Annotated[float | None, typer.Option(help="Another budget for each run, in work units.")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Where runs are written: OUT/NAME/METHOD-seedS.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue interrupted runs; keep finished ones.")] = False,
    paper: Annotated[bool, typer.Option("--paper", help="Use the paper's settings and its Krylov solver.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace runs of another configuration.")] = False,
    solver: Annotated[str | None, typer.Option(help="How Gauss-Newton methods make their steps.")] = None,
    theta_penalty: Annotated[float | None, typer.Option(help="For tuning: the penalty on theta.")] = None,
    head_penalty: Annotated[float | None, typer.Option(help="For tuning: the penalty on the head.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="For tuning: for ADAM and Nesterov.")] = None,
    max_rank: Annotated[int | None, typer.Option(help="For tuning: the largest dimension of a Krylov space.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Budget of each run of an equation, instead of its own.")
    ] = None,
) -> None:
    """Train an experiment of the paper, or solve an equation, by each of its methods; published numbers beside ours."""
    with one_line_errors():
        from .experiments.equations import EQUATIONS

        if name in EQUATIONS:
            from .experiments.equations.methods import METHODS
            from .experiments.equations.run import EquationOrder, run_equation
            from .experiments.terminal import equations_table

            asked = EquationOrder(
                name, tuple(method or METHODS), tuple(seed or (0,)), seconds, out, resume=resume, overwrite=overwrite
            )
            equations_table(run_equation(asked, tell=typer.echo))
            typer.echo(f"{out / name}; show it with: gnvpro report {out}")
            return
        from .experiments.run import Order, run
        from .experiments.terminal import results_table

        order = Order(
            name,
            tuple(method or ()),
            tuple(seed or (0,)),
            work,
            data_dir,
            out,
            paper,
            resume,
            overwrite,
            solver,
            theta_penalty,
            head_penalty,
            learning_rate,
            max_rank,
        )
        results = run(order, tell=typer.echo, progress=True)
        results_table(results)
        typer.echo(f"{out / name}; show it with: gnvpro report {out}")


@app.command("report")
def make_report(
    directory: Annotated[Path, typer.Argument(help="The directory given to gnvpro run as --out.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page; DIRECTORY/report if not given.")] = None,
) -> None:
    """Write a page with figures from the runs saved in a directory."""
    with one_line_errors():
        from .experiments.report import write_report

        page, problems = write_report(directory, out or directory / "report")
        for problem in problems:
            typer.echo(f"left out: {problem}", err=True)
        typer.echo(f"open {page.resolve().as_uri()}")


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
    """Convection-diffusion-reaction: 55 coefficients -> 72 concentrations. By default the shipped set, made anew."""
    with one_line_errors():
        from .data import cdr, figures

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
        from .data import dcr, figures

        if plot:
            save_figure(figures.dcr_figure(mesh), out or Path("dcr.png"))
        else:
            make_set(dcr.simulated, samples, mesh, draw_seed, workers, data_dir, out)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: after its checkpoint."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report what the user can mend in one line; end with the customary status after Ctrl-C and SIGTERM."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        typer.echo(f"gnvpro: {text}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interrupt:
        typer.echo(f"gnvpro: {str(interrupt) or 'interrupted'}", err=True)
        raise typer.Exit(128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


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
    from .data import archive
    from .progress import duration

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


if __name__ == "__main__":
    app()
