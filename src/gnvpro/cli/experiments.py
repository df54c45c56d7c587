"""The paper's experiments and the report: list, run, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnvpro.cli.app import DataDir, app, one_line_errors


def experiment_names(incomplete: str) -> list[str]:
    """Return the names that a shell may complete."""
    from gnvpro.experiments.catalogue import EXPERIMENTS
    from gnvpro.experiments.equations import EQUATIONS

    return [name for name in (*EXPERIMENTS, *EQUATIONS) if name.startswith(incomplete)]


@app.command("list")
def list_experiments() -> None:
    """List the experiments, their methods and budgets."""
    from gnvpro.experiments.terminal import catalogue_table

    catalogue_table()


@app.command("run")
def run_experiment(
    name: Annotated[str, typer.Argument(help="The experiment: see gnvpro list.", autocompletion=experiment_names)],
    method: Annotated[list[str] | None, typer.Option(help="A method; may be repeated. All if not given.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of data, weights and batches; may be repeated.")] = None,
    work: Annotated[float | None, typer.Option(help="Work units of each run at most, instead of its own.")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Where runs are written: OUT/NAME/METHOD-seedS.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue interrupted runs, or with a larger budget.")
    ] = False,
    paper: Annotated[bool, typer.Option("--paper", help="Use the paper's settings and its Krylov solver.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace runs of another configuration.")] = False,
    solver: Annotated[str | None, typer.Option(help="How Gauss-Newton methods make their steps.")] = None,
    theta_penalty: Annotated[float | None, typer.Option(help="For tuning: the penalty on theta.")] = None,
    head_penalty: Annotated[float | None, typer.Option(help="For tuning: the penalty on the head.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="For tuning: for ADAM and Nesterov.")] = None,
    max_rank: Annotated[int | None, typer.Option(help="For tuning: the largest dimension of a Krylov space.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds of each run at most; for an equation instead of its own.")
    ] = None,
) -> None:
    """Run an experiment of the paper, or an equation.

    Train by each of its methods, and compare with published numbers.
    """
    with one_line_errors():
        from gnvpro.experiments.equations import EQUATIONS

        if name in EQUATIONS:
            from gnvpro.experiments.equations.equation_run import EquationOrder, run_equation
            from gnvpro.experiments.equations.methods import METHODS
            from gnvpro.experiments.terminal import equations_table

            asked = EquationOrder(
                name, tuple(method or METHODS), tuple(seed or (0,)), seconds, out, resume=resume, overwrite=overwrite
            )
            equations_table(run_equation(asked, tell=typer.echo))
            typer.echo(f"{out / name}; show it with: gnvpro report {out}")
            return
        from gnvpro.arguments import check_choice
        from gnvpro.experiments.catalogue import EXPERIMENTS
        from gnvpro.experiments.experiment_run import Order, run
        from gnvpro.experiments.terminal import results_table

        check_choice("experiment", name, (*EXPERIMENTS, *EQUATIONS))
        order = Order(
            name, tuple(method or ()), tuple(seed or (0,)), work, data_dir, out, paper, resume, overwrite, solver,
            theta_penalty, head_penalty, learning_rate, max_rank, seconds,
        )  # fmt: skip
        results_table(run(order, tell=typer.echo, progress=True))
        typer.echo(f"{out / name}; show it with: gnvpro report {out}")


@app.command("report")
def make_report(
    directory: Annotated[
        Path, typer.Argument(help="The directory that gnvpro run or gnvpro train had as --out, or one above it.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write the page; DIRECTORY/report if not given.")] = None,
    cover: Annotated[Path | None, typer.Option(help="A PNG file to show on top of the page.")] = None,
) -> None:
    """Write a page with figures from the runs saved in a directory."""
    with one_line_errors():
        if not directory.is_dir():
            raise FileNotFoundError(
                f"there is no directory {directory}; give the directory that gnvpro run had as --out"
            )
        from gnvpro.experiments.report import write_report
        from gnvpro.tabular.page import table_sections

        more, problems = table_sections(directory)
        page, others = write_report(directory, out or directory / "report", more, cover)
        problems += others
        for problem in problems:
            typer.echo(f"left out: {problem}", err=True)
        typer.echo(f"open {page.resolve().as_uri()}")
