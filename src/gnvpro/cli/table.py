"""A model from a table: train, predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnvpro.cli.app import app, check_files, one_line_errors

if TYPE_CHECKING:
    from gnvpro.tabular.order import TableOrder

Table = Annotated[Path, typer.Argument(help="A CSV or parquet file; its first line names the columns.")]
Decimal = Annotated[str | None, typer.Option(help="Decimal sign in a CSV file: . or ,")]
Missing = Annotated[list[str] | None, typer.Option(help="Text that means an empty cell, such as ?; may be repeated.")]


@app.command("train")
def train_on_table(
    data: Table,
    target: Annotated[list[str], typer.Option(help="The column to predict; may be repeated. All others are inputs.")],
    classify: Annotated[bool, typer.Option("--classify", help="The target is a class, not a number.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/NAME if not given.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    drop_incomplete: Annotated[
        bool, typer.Option("--drop-incomplete", help="Leave out rows with empty cells.")
    ] = False,
    categories: Annotated[
        list[str] | None, typer.Option(help="A column of categories, whatever it looks like; may be repeated.")
    ] = None,
    decimal: Decimal = None,
    missing: Missing = None,
    hidden: Annotated[list[int] | None, typer.Option(help="Width of a layer; may be repeated.")] = None,
    work: Annotated[float | None, typer.Option(help="Budget, in passes over the rows.")] = None,
    test: Annotated[float, typer.Option(help="Share of the rows held out for the scores.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the held-out rows and the first weights.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in OUT.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every step of the training.")] = False,
) -> None:
    """Train a model on a table in a file.

    Writes the model, its card, scores of this and other models, predictions and a report to OUT.
    """
    with one_line_errors():
        check_files(data)
        from gnvpro.tabular.order import Reading, TableOrder

        train(
            TableOrder(
                data,
                tuple(target),
                classify,
                out or Path("runs") / data.stem,
                tuple(drop or ()),
                drop_incomplete,
                tuple(hidden) if hidden else None,
                work,
                test,
                seed,
                overwrite,
                Reading(decimal or ".", tuple(missing or ()), tuple(categories or ())),
                verbose,
            )
        )


def train(order: TableOrder) -> None:
    """Read, check, train, and print scores and the paths of the results."""
    from gnvpro.tabular.prepare import prepared
    from gnvpro.tabular.table_terminal import columns_table, scores_table

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    table = prepared(order, tell)
    columns_table(table)
    from gnvpro.tabular.page import write_page
    from gnvpro.tabular.table_run import attempted, train_table

    metrics, problems = train_table(order, table, tell)
    scores_table(metrics)
    out = order.out
    typer.echo(f"model:  {out / 'model.safetensors'} (card: {out / 'model.md'})")
    page: dict[str, Path] = {}
    problems += attempted({"report.html": lambda: page.update(path=write_page(out))})
    if page:
        typer.echo(f"report: {page['path'].resolve().as_uri()}")
    typer.echo(f"use it: gnvpro predict {out / 'model.safetensors'} NEW.csv")
    if problems:
        raise ValueError("; ".join(problems))


@app.command("predict")
def predict_on_table(
    model: Annotated[Path, typer.Argument(help="The model.safetensors that gnvpro train wrote.")],
    data: Table,
    out: Annotated[Path | None, typer.Option(help="A CSV or parquet file; printed as CSV if not given.")] = None,
    decimal: Decimal = None,
    missing: Missing = None,
) -> None:
    """Predict for the rows of a table.

    Writes its columns, followed by predictions with standard deviations or probabilities.
    """
    with one_line_errors():
        check_files(model, data)
        from gnvpro.extras import need

        for library in ("pandas", "sklearn"):
            need(library, "tabular")
        if out is not None:
            check_output(out)
        from gnvpro.tabular.order import Reading
        from gnvpro.tabular.table_run import predict_table, telling

        given = decimal is not None or missing is not None
        with telling(lambda text: typer.echo(text, err=True)):
            table = predict_table(model, data, Reading(decimal or ".", tuple(missing or ())) if given else None)
        if out is None:
            table.to_csv(sys.stdout, index=False)
            return
        if out.suffix.lower() in (".parquet", ".pq"):
            table.apply(numbers).to_parquet(out, index=False)
        else:
            table.to_csv(out, index=False)
        typer.echo(f"{len(table)} rows: {out}")


def check_output(out: Path) -> None:
    """Raise before the work for a file that cannot be written after it."""
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no directory {out.parent}")
    if out.suffix.lower() in (".parquet", ".pq"):
        from gnvpro.extras import need

        need("pyarrow", "parquet")


def numbers(column: Any) -> Any:
    """Return a column of text as numbers if all of it is."""
    import pandas

    try:
        return pandas.to_numeric(column)
    except (ValueError, TypeError):
        return column
