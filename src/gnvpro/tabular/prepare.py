"""Read a table and check it for training, before torch is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gnvpro.extras import need
from gnvpro.tabular.cells import Cells
from gnvpro.tabular.order import TableOrder
from gnvpro.tabular.read import read_table
from gnvpro.tabular.table_columns import ReadTable, choose_columns, complete_rows, incomplete

FEW_VALUES = 10  # of a target of whole numbers: perhaps it is a class
MIN_ROWS = 10
Tell = Callable[[str], object]


def prepared(order: TableOrder, tell: Tell = print) -> ReadTable:
    """Read and check the table.

    Raises:
        ValueError: the table cannot be used; the message names the remedy.
    """
    order.check()
    for name in ("safetensors", "matplotlib", "sklearn"):
        need_installed(name)
    check_place(order.out)
    tell(f"reading {order.data}")
    table = choose_columns(read_table(order.data), order)
    source = order.data.name
    trouble = incomplete(table.cells, table.n_rows, source)
    if trouble and order.drop_incomplete:
        table = complete_rows(table)
        tell(f"left out: {trouble}")
    elif trouble:
        targets = incomplete({name: table.cells[name] for name in order.targets}, table.n_rows, source)
        if targets:
            raise ValueError(
                f"{targets}; nothing can be learnt from a missing target: leave them out with --drop-incomplete"
            )
        tell(f"note: {trouble}; the model learns from them as missing, and --drop-incomplete leaves those rows out")
    if len(table.rows) < MIN_ROWS:
        raise ValueError(f"{source} has {len(table.rows)} complete rows; a model needs {MIN_ROWS} or more")
    for name in order.targets:
        check_target(name, table.cells[name], order, tell)
    return table


def check_target(name: str, cells: Cells, order: TableOrder, tell: Tell) -> None:
    """Raise for a target that cannot be learned; print a hint for one that may be a class."""
    values = np.unique(cells.values.astype(str) if cells.kind == "category" else cells.values)
    if order.classify:
        if len(values) < 2:
            raise ValueError(f"the target {name!r} is {str(values[0])!r} in every row; there is nothing to learn")
        if len(values) > len(cells.values) / 2:
            raise ValueError(
                f"the target {name!r} has {len(values)} classes in {len(cells.values)} rows; for numbers leave --classify "
                "out, for classes give more rows"
            )
    elif len(values) == 1:
        tell(f"note: {name} is {values[0]:g} in every row; there is nothing to learn")
    elif len(values) <= FEW_VALUES and all(float(value).is_integer() for value in values):
        tell(f"note: {name} has only {len(values)} different values; for classes add --classify")


def check_place(out: Path) -> None:
    """Raise if a directory cannot be made, before any work."""
    above = next(path for path in (out, *out.parents) if path.exists())
    if not above.is_dir():
        raise ValueError(f"--out {out} cannot be made, since {above} is a file")


def need_installed(name: str) -> None:
    """Raise with advice for a library that is missing, without importing one that is there."""
    from importlib.util import find_spec

    if find_spec(name) is None:
        need(name, "tabular")
