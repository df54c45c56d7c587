"""A model from a table: train, predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gnvpro.cli.app import app, check_files, one_line_errors

Table = Annotated[Path, typer.Argument(help="A CSV or parquet file; its first line names the columns.")]


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
    hidden: Annotated[list[int] | None, typer.Option(help="Width of a layer; may be repeated.")] = None,
    work: Annotated[float | None, typer.Option(help="Budget, in passes over the rows.")] = None,
    test: Annotated[float, typer.Option(help="Share of the rows that is held out for the scores.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the held-out rows and the first weights.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in OUT.")] = False,
) -> None:
    """Train a model of a table: OUT gets the model, its card, scores beside other models, predictions and a report."""
    with one_line_errors():
        check_files(data)
        from gnvpro.extras import need

        for library in ("pandas", "sklearn"):
            need(library, "tabular")
        from gnvpro.experiments.terminal import table_scores
        from gnvpro.tabular.page import write_page
        from gnvpro.tabular.run import TableOrder, train_table

        place = out or Path("runs") / data.stem
        layers = tuple(hidden) if hidden else None
        order = TableOrder(
            data,
            tuple(target),
            classify,
            place,
            tuple(drop or ()),
            drop_incomplete,
            layers,
            work,
            test,
            seed,
            overwrite,
        )
        metrics = train_table(order, tell=lambda text: typer.echo(text, err=True))
        table_scores(metrics)
        typer.echo(f"model:  {place / 'model.safetensors'} (card: {place / 'model.md'})")
        typer.echo(f"report: {write_page(place).resolve().as_uri()}")
        typer.echo(f"use it: gnvpro predict {place / 'model.safetensors'} NEW.csv")


@app.command("predict")
def predict_on_table(
    model: Annotated[Path, typer.Argument(help="The model.safetensors that gnvpro train wrote.")],
    data: Table,
    out: Annotated[Path | None, typer.Option(help="A CSV or parquet file; printed as CSV if not given.")] = None,
) -> None:
    """Predict for the rows of a table: its columns, and beside them predictions with standard deviations or probabilities."""
    with one_line_errors():
        check_files(model, data)
        from gnvpro.extras import need

        for library in ("pandas", "sklearn"):
            need(library, "tabular")
        from gnvpro.tabular.run import predict_table

        table = predict_table(model, data)
        if out is None:
            table.to_csv(sys.stdout, index=False)
            return
        if out.suffix.lower() in (".parquet", ".pq"):
            need("pyarrow", "parquet")
            table.to_parquet(out, index=False)
        else:
            table.to_csv(out, index=False)
        typer.echo(f"{len(table)} rows: {out}")
