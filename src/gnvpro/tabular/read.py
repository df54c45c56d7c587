"""From a file to numbers: which columns are inputs, how text becomes numbers, and what is wrong with a table.

number                      one column
text, or true and false     one column of zeros and ones per value that was seen in training
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.extras import need

MAX_CATEGORIES = 30  # values of a text column; more of them are names, not categories
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}


@dataclass(frozen=True)
class Columns:
    """The columns of a table that a model takes, and how each becomes numbers."""

    inputs: Mapping[str, tuple[str, ...]]  # the values of a text column; none for a column of numbers
    targets: tuple[str, ...]

    @property
    def encoded(self) -> list[tuple[str, str | None]]:
        """The columns of the matrix of inputs: their name and, for a text column, the value they stand for."""
        return [(name, value) for name, values in self.inputs.items() for value in values or (None,)]

    def matrix(self, frame: Any, source: str) -> NDArray[np.float64]:
        """The inputs as numbers, one row per row of the table."""
        missing = [name for name in self.inputs if name not in frame.columns]
        if missing:
            raise ValueError(
                f"{source} lacks the column{'s' * (len(missing) > 1)} {quoted(missing)} that the model was trained on; "
                f"it has {quoted(frame.columns)}"
            )
        check_complete(frame, list(self.inputs), source)
        columns = [self._column(frame, name, value, source) for name, value in self.encoded]
        return np.column_stack(columns).astype(np.float64)

    def _column(self, frame: Any, name: str, value: str | None, source: str) -> NDArray[np.float64]:
        column = frame[name]
        if value is None:
            if not is_number(column):
                raise ValueError(
                    f"column {name!r} of {source} holds {example(column)}, which is no number; "
                    "the model was trained on numbers there"
                )
            return column.to_numpy(dtype=np.float64)
        text = column.astype(str)
        unknown = sorted(set(text) - set(self.inputs[name]))
        if unknown:
            raise ValueError(
                f"column {name!r} of {source} holds {unknown[0]!r}, which was not in the training data "
                f"({quoted(self.inputs[name])}); remove those rows, or train again with such rows"
            )
        return (text == value).to_numpy(dtype=np.float64)


def read_table(path: Path) -> Any:
    """The file as a pandas DataFrame; CSV (comma, semicolon or tab, as its first line says) or parquet."""
    pandas = need("pandas", "tabular")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path of a CSV or parquet file")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            need("pyarrow", "parquet")
            frame = pandas.read_parquet(path)
        else:
            with open(path, encoding="utf-8-sig") as file:
                first = file.readline()
            separator = max(SEPARATORS, key=first.count)
            frame = pandas.read_csv(path, sep=separator, encoding="utf-8-sig", skipinitialspace=True)
    except ImportError:
        raise
    except Exception as error:  # pandas and pyarrow raise many kinds
        raise ValueError(f"{path} cannot be read as a table: {error}; save it as CSV with a line of names") from error
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame):
        raise ValueError(f"{path} has no rows below its line of names")
    return frame


def choose_columns(frame: Any, targets: Sequence[str], dropped: Sequence[str], source: str) -> Columns:
    """Every column that is no target and not dropped is an input."""
    for option, names in (("--target", targets), ("--drop", dropped)):
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise ValueError(f"{source} has no column {unknown[0]!r} ({option}); it has {quoted(frame.columns)}")
    both = sorted(set(targets) & set(dropped))
    if both:
        raise ValueError(f"column {both[0]!r} is both --target and --drop; leave one of the two out")
    inputs = {
        name: () if is_number(frame[name]) else categories(frame[name], source)
        for name in frame.columns
        if name not in targets and name not in dropped
    }
    if not inputs:
        raise ValueError(
            f"{source} has no column besides {quoted([*targets, *dropped])}; there is nothing to learn from"
        )
    return Columns(inputs, tuple(targets))


def categories(column: Any, source: str) -> tuple[str, ...]:
    """The values of a text column."""
    values = sorted(set(column.dropna().astype(str)))
    if len(values) > MAX_CATEGORIES:
        raise ValueError(
            f"column {column.name!r} of {source} holds text with {len(values)} different values, such as {values[0]!r}; "
            f"leave it out with --drop {column.name}, or turn it into numbers"
        )
    return tuple(values)


def check_complete(frame: Any, names: Sequence[str], source: str) -> None:
    """A ValueError where cells are empty or infinite."""
    missing = len(frame) - len(complete_rows(frame, names))
    if missing:
        where = [name for name in names if frame[name].isna().any()]
        raise ValueError(
            f"{missing} of {len(frame)} rows of {source} have empty or infinite cells"
            f"{f' (columns {quoted(where)})' if where else ''}; fill them, or leave those rows out with --drop-incomplete"
        )


def complete_rows(frame: Any, names: Sequence[str]) -> Any:
    """The rows without empty or infinite cells."""
    part = frame[list(names)]
    kept = part.notna().all(axis=1)
    numbers = part.select_dtypes("number")
    if numbers.shape[1]:
        kept &= np.isfinite(numbers.to_numpy(dtype=np.float64, na_value=np.nan)).all(axis=1)
    return frame[kept]


def is_number(column: Any) -> bool:
    """Whether a column holds numbers; true and false are categories."""
    types = need("pandas.api.types", "tabular")
    return bool(types.is_numeric_dtype(column) and not types.is_bool_dtype(column))


def example(column: Any) -> str:
    """The first value of a column that is no number."""
    return repr(str(column.dropna().iloc[0])) if column.notna().any() else "nothing"


def quoted(names: Sequence[str]) -> str:
    """Names in a sentence; the first ten of many."""
    shown = [repr(str(name)) for name in list(names)[:10]]
    return ", ".join(shown) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
