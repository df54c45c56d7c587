"""A surrogate from a table of simulator runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gnvpro.cli.app import app, check_files, one_line_errors

SEVERAL = ("--inputs", "--outputs")


class SeveralNames(TyperCommand):
    """A command whose options for columns take several names each: --inputs a b c."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each name."""
        return super().parse_args(ctx, spread(args))


def spread(words: list[str]) -> list[str]:
    """Return the words with an option before every name that follows it.

    >>> spread(["data.csv", "--inputs", "a", "b", "--seed", "1"])
    ['data.csv', '--inputs', 'a', '--inputs', 'b', '--seed', '1']
    """
    found: list[str] = []
    option = None
    for word in words:
        if word.startswith("--"):
            option = word if word in SEVERAL else None
            found += [] if option else [word]
        else:
            found += [option, word] if option else [word]
    return found


@app.command("surrogate", cls=SeveralNames)
def surrogate_of_table(
    data: Annotated[Path, typer.Argument(help="A CSV or parquet file; its first line names the columns.")],
    inputs: Annotated[list[str] | None, typer.Option(help="Columns that went into the simulator.")] = None,
    outputs: Annotated[list[str] | None, typer.Option(help="Columns that came out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/NAME-surrogate if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in OUT.")] = False,
) -> None:
    """Fit a surrogate to simulator runs in a file.

    Writes the surrogate, its card and a report with errors, sensitivities, slices and a learning curve to OUT.
    """
    with one_line_errors():
        check_files(data)
        from gnvpro.extras import need

        for library in ("pandas", "matplotlib", "safetensors"):
            need(library, "tabular")
        from gnvpro.tabular.simulator_runs import CARD_FILE, MODEL_FILE, PAGE_FILE, make_surrogate, read_runs

        folder = out or Path("runs") / f"{data.stem}-surrogate"
        runs = read_runs(data, inputs or [], outputs or [])
        make_surrogate(runs, folder, seed, overwrite, lambda text: typer.echo(text, err=True))
        typer.echo(f"model:  {folder / MODEL_FILE} (card: {folder / CARD_FILE})")
        typer.echo(f"report: {(folder / PAGE_FILE).resolve().as_uri()}")
