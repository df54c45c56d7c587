"""Choose the inputs of a table; the estimator makes numbers of them (`gnvpro.sklearn.encoding`).

number, category, date     an input, whether or not cells are missing
names, ambiguous dates     left out, and the terminal says why
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.extras import need
from gnvpro.tabular.cells import Cells, read_cells
from gnvpro.tabular.order import Reading, TableOrder
from gnvpro.tabular.read import UNNAMED, quoted

MAX_CATEGORIES = (
    30  # with more levels, and as many as half the rows, text is taken for names, unless --categories names it
)
SHARE_OF_NAMES = 0.5
GERMAN_DATE = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
SHOWN_LEVELS = 4
Array = NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """The columns of a table that a model takes, and how they are read."""

    inputs: Mapping[str, str]  # "number", "category" or "date"
    targets: tuple[str, ...]
    reading: Reading = field(default_factory=Reading)

    def typed(self, frame: Any, source: str) -> Any:
        """Return the inputs of a new table with the types that the estimator takes.

        Raises:
            ValueError: a column is missing, or holds what the model was not trained on.
        """
        missing = [name for name in self.inputs if name not in frame.columns]
        if missing:
            raise ValueError(
                f"{source} lacks the column{'s' * (len(missing) > 1)} {quoted(missing)} that the model was trained on; "
                f"it has {quoted(frame.columns)}"
            )
        cells = {
            name: read_cells(name, frame[name], self.reading, source, category=kind == "category")
            for name, kind in self.inputs.items()
        }
        return self.as_frame(cells, source)

    def as_frame(self, cells: Mapping[str, Cells], source: str) -> Any:
        """Return cells that were read as a table of numbers, text and dates; empty and infinite cells are missing."""
        for name, kind in self.inputs.items():
            if cells[name].kind not in (kind, "empty"):
                raise ValueError(
                    f"column {name!r} of {source} holds {example(cells[name])}, which is no {kind}; "
                    f"the model was trained on {'categories' if kind == 'category' else kind + 's'} there"
                )
        pandas = need("pandas", "tabular")
        made = {}
        for name, kind in self.inputs.items():
            values, missing = cells[name].values, cells[name].missing
            if cells[name].kind == "empty":
                values = np.full(len(missing), np.nan if kind == "number" else None)
            if kind == "category":
                made[name] = pandas.Series(values, dtype=object)
            elif kind == "date":
                made[name] = pandas.Series([dated(value) for value in values], dtype="datetime64[us]")
            else:
                made[name] = pandas.Series(np.where(missing, np.nan, values).astype(np.float64))
        return pandas.DataFrame(made)


@dataclass(frozen=True)
class ReadTable:
    """A table after reading: its columns, the cells of those that are used, and what the terminal says of each."""

    columns: Columns
    cells: Mapping[str, Cells]
    said: Sequence[tuple[str, str, str]]  # name, role, how it was read
    rows: Array  # of the file, that are used
    n_rows: int  # of the file


def choose_columns(frame: Any, order: TableOrder) -> ReadTable:
    """Read every column that is not dropped; all that are no targets and hold numbers or categories are inputs."""
    source, reading = order.data.name, order.reading
    check_names(frame, order)
    cells: dict[str, Cells] = {}
    inputs: dict[str, str] = {}
    said = []
    for name in map(str, frame.columns):
        if name in order.drop:
            said.append((name, "left out", "--drop"))
        elif name in order.targets:
            cells[name] = read_target(name, frame[name], order)
            said.append((name, "target", described(cells[name])))
        else:
            found = read_cells(name, frame[name], reading, source)
            reason = why_left_out(name, found, reading)
            said.append((name, "left out", reason) if reason else (name, "input", described(found)))
            if not reason:
                cells[name], inputs[name] = found, found.kind
    if not inputs:
        rest = [f"{name}: {how}" for name, role, how in said if role == "left out"]
        reasons = f" ({'; '.join(rest)})" if rest else ""
        raise ValueError(
            f"{source} has no column besides {quoted(order.targets)}{reasons}; there is nothing to learn from"
        )
    return ReadTable(Columns(inputs, order.targets, reading), cells, said, np.arange(len(frame)), len(frame))


def check_names(frame: Any, order: TableOrder) -> None:
    """Raise for an option that names a column which is not there."""
    for option, names in (
        ("--target", order.targets),
        ("--drop", order.drop),
        ("--categories", order.reading.categories),
    ):
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise ValueError(
                f"{order.data.name} has no column {unknown[0]!r} ({option}); it has {quoted(frame.columns)}"
            )
    both = sorted(set(order.targets) & set(order.reading.categories))
    if both and not order.classify:
        raise ValueError(f"{both[0]!r} is a --target; for classes add --classify and leave --categories {both[0]} out")


def read_target(name: str, column: Any, order: TableOrder) -> Cells:
    """Read a column to predict: numbers, or classes."""
    source = order.data.name
    if not order.classify:
        cells = read_cells(name, column, order.reading, source)
        if cells.kind != "number":
            raise ValueError(
                f"the target {name!r} holds {example(cells)}, which is no number; for classes add --classify"
            )
        return cells
    cells = read_cells(name, column, order.reading, source, category=True)
    try:
        numbers = read_cells(name, column, order.reading, source)
    except ValueError:  # numbers and text: as text they are classes
        return cells
    if numbers.kind != "number":
        return cells
    values = numbers.values[np.isfinite(numbers.values)]
    fractions = values[values != np.round(values)]
    if len(fractions):
        raise ValueError(
            f"the target {name!r} holds numbers such as {fractions[0]:g}, which are no classes; leave --classify out, or "
            f"write --categories {name} if each number is a class"
        )
    return numbers


def why_left_out(name: str, cells: Cells, reading: Reading) -> str:
    """Return why a column is no input, or nothing."""
    if name.startswith(UNNAMED):
        return "it has no name, as a column of row numbers has none; name it to use it"
    if cells.kind == "empty":
        return "all cells are empty"
    if cells.kind == "date" and any(value is not None and dated(value) is None for value in cells.values):
        doubtful = next(value for value in cells.values if value is not None and dated(value) is None)
        return f"dates such as {doubtful!r}, of which day, month or century is not sure; write 2024-01-31 to use them"
    levels = len(cells.levels) if cells.kind == "category" else 0
    if levels > MAX_CATEGORIES and levels > SHARE_OF_NAMES * len(cells.values) and name not in reading.categories:
        return f"text with {levels} different values, such as {cells.levels[0]!r}; --categories makes it a category"
    return ""


def described(cells: Cells) -> str:
    """Return how a column was read, for the table in the terminal."""
    missing = int(cells.missing.sum())
    empty = f", {missing} missing" if missing else ""
    if cells.kind == "number":
        values = cells.values[np.isfinite(cells.values)]
        if not len(values):
            return f"number{empty}"
        words = f" ({', '.join(cells.words)})" if cells.words else ""
        one = values.min() == values.max()
        return f"number{empty}{words}, {'always' if one else 'from'} {values.min():g}{'' if one else f' to {values.max():g}'}"
    if cells.kind == "date":
        dates = sorted(str(value) for value in map(dated, cells.values) if value is not None)
        return f"date{empty}, from {dates[0]} to {dates[-1]}"
    levels = cells.levels
    more = ", ..." if len(levels) > SHOWN_LEVELS else ""
    doubtful = f"; is {cells.words[0]} one of them? else --missing {cells.words[0]}" if cells.words else ""
    return f"category of {len(levels)}{empty}: {', '.join(levels[:SHOWN_LEVELS])}{more}{doubtful}"


def incomplete(cells: Mapping[str, Cells], n_rows: int, source: str) -> str:
    """Return how many rows have empty or infinite cells, and in which columns; nothing if none has."""
    counts = {name: int(each.missing.sum()) for name, each in cells.items()}
    where = [f"{name!r} {count}" for name, count in counts.items() if count]
    if not where:
        return ""
    rows = int(np.any([each.missing for each in cells.values()], axis=0).sum())
    more = f" and {len(where) - 10} more" if len(where) > 10 else ""
    return f"{rows} of {n_rows} rows of {source} have empty or infinite cells (columns {', '.join(where[:10])}{more})"


def complete_rows(table: ReadTable) -> ReadTable:
    """Return the table without the rows that have empty or infinite cells."""
    kept = ~np.any([each.missing for each in table.cells.values()], axis=0)
    cells = {name: Cells(each.kind, each.values[kept], each.words) for name, each in table.cells.items()}
    columns = table.columns
    return ReadTable(columns, cells, table.said, table.rows[kept], table.n_rows)


def dated(value: str | None) -> Any:
    """Return a cell as a date and time; None if it is empty, or could be several dates."""
    if value is None:
        return None
    german = GERMAN_DATE.fullmatch(value)
    day = "-".join(f"{int(part):02}" for part in german.groups()[::-1]) if german else value.replace("/", "-")
    found = need("pandas", "tabular").to_datetime(day, errors="coerce", format="ISO8601" if german else "mixed")
    return found if day[:4].isdigit() and found == found else None


def example(cells: Cells) -> str:
    """Return the first value of a column."""
    return next((repr(str(value)) for value in cells.values if value is not None), "nothing")
