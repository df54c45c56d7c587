"""Print the policy: every threshold that chooses an algorithm."""

from __future__ import annotations

from typing import Annotated

import typer

from gnvpro.cli.app import app, one_line_errors
from gnvpro.extras import need
from gnvpro.policy import Policy, markdown, rows_of, shown

HEAD = ("row", "value", "unit", "decides", "measured by")


@app.command("policy")
def print_policy(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
) -> None:
    """Print every threshold that chooses an algorithm.

    Each has its value, unit, what it decides, and the command that measured it.
    """
    with one_line_errors():
        policy = Policy()
        if as_markdown:
            typer.echo(markdown(policy), nl=False)
            return
        cells = [
            (f"{row.subject}.{row.name}", shown(row.value), row.unit, row.decides, row.measured_by)
            for row in rows_of(policy)
        ]
        try:
            table = need("rich.table", "cli").Table(*HEAD)
        except ImportError:
            widths = [max(map(len, column)) for column in zip(HEAD, *cells, strict=True)]
            for each in (HEAD, *cells):
                typer.echo("  ".join(f"{cell:{width}}" for cell, width in zip(each, widths, strict=True)).rstrip())
            return
        for each in cells:
            table.add_row(*each)
        need("rich.console", "cli").Console().print(table)
