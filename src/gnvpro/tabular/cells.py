"""Decide whether a column holds numbers, categories or dates. A doubtful column is an error that names the options.

all numbers, or words for missing such as NA     number
all text, or --categories                        category
all dates, or nothing                            not used as an input
some numbers, some text; decimal commas          an error that names the options which settle it
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.extras import need
from gnvpro.tabular.order import Reading

WORDS_FOR_MISSING = {"na", "n/a", "nan", "-nan", "null", "none", "#n/a", "<na>"}  # among numbers; in text they are text
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ]\d\d?:\d\d.*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d\d?/\d\d?")
Array = NDArray[Any]


@dataclass(frozen=True)
class Cells:
    """The cells of a column, read."""

    kind: str  # "number", "category", "date" or "empty"
    values: Array  # float64 or text; NaN or None in a missing cell
    words: tuple[str, ...] = ()  # words for missing that were found: among numbers, or as levels of a category

    @property
    def missing(self) -> Array:
        """A mask of the missing or infinite cells."""
        if self.kind == "number":
            return ~np.isfinite(self.values)
        return np.array([value is None for value in self.values], dtype=bool)

    @property
    def levels(self) -> tuple[str, ...]:
        """The different values of a category."""
        return tuple(sorted({value for value in self.values if value is not None}))


def read_cells(name: str, column: Any, reading: Reading, source: str, category: bool = False) -> Cells:
    """Read a column of a table, as a category if that is known of it.

    Raises:
        ValueError: the column holds numbers and text, or decimal commas.
    """
    types = need("pandas.api.types", "tabular")
    category = category or name in reading.categories
    if types.is_numeric_dtype(column) and not types.is_bool_dtype(column) and not category:
        return Cells("number", column.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_datetime64_any_dtype(column) and not category:
        return Cells("date", text_of(column, reading))
    text = text_of(column, reading)
    if category or types.is_bool_dtype(column):
        return Cells("category", text)
    return read_text(name, text, reading, source)


def text_of(column: Any, reading: Reading) -> Array:
    """Return the cells as text without spaces around it, or None if empty."""
    empty = {"", *reading.missing}
    stripped = (None if missing else str(value).strip() for value, missing in zip(column, column.isna(), strict=True))
    return np.array([None if value in empty else value for value in stripped] + [None], dtype=object)[:-1]


def read_text(name: str, text: Array, reading: Reading, source: str) -> Cells:
    """Decide what a column of text holds."""
    given = np.array([value is not None for value in text], dtype=bool)
    if not given.any():
        return Cells("empty", text)
    word = np.array([value is not None and value.lower() in WORDS_FOR_MISSING for value in text], dtype=bool)
    numbers = as_numbers(text, reading.decimal)
    is_number = ~np.isnan(numbers) & ~word
    words = tuple(sorted({str(value) for value in text[word]}))
    if not is_number.any():
        rest = text[given]
        is_date = all(DATE.fullmatch(value) for value in rest)
        commas = all(DECIMAL_COMMA.fullmatch(value) for value in text[given & ~word]) and not word.all()
        if commas:
            raise ValueError(doubt(name, text, given & ~word, is_number, reading, source))
        return Cells("date" if is_date else "category", text, words)
    other = given & ~word & ~is_number
    if other.any():
        raise ValueError(doubt(name, text, other, is_number, reading, source))
    return Cells("number", numbers, words)


def as_numbers(text: Array, decimal: str) -> Array:
    """Return the cells as numbers, or NaN if a cell is not a number."""
    if decimal == ",":
        text = np.array([None if v is None or "." in v else v.replace(",", ".") for v in text] + [None], dtype=object)[
            :-1
        ]
    found = need("pandas", "tabular").to_numeric(text, errors="coerce")
    return np.asarray(found, dtype=np.float64)


def doubt(name: str, text: Array, other: Array, is_number: Array, reading: Reading, source: str) -> str:
    """Return the error for a column that may be read in two ways, with the options that settle it."""
    row = int(np.flatnonzero(other)[0])
    value = str(text[row])
    categories = f"if the column is a category, write --categories {shlex.quote(name)}"
    where = f"column {name!r} of {source} holds {value!r} in row {row + 1}"
    if reading.decimal == "." and DECIMAL_COMMA.fullmatch(value):
        return f"{where}; if that is a number with a decimal comma, write --decimal ,; {categories}"
    counts = f"numbers in {int(is_number.sum())} rows and other text in {int(other.sum())}"
    return f"{where}, but {counts}: if {value!r} stands for a missing value, write --missing {shlex.quote(value)}; {categories}"
