"""Read a file into a table, after checking that lines have equal lengths and columns different names."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gnvpro.extras import need

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
UNNAMED = "Unnamed: "  # the beginning of the name of a column without one, as pandas calls it


def read_table(path: Path) -> Any:
    """Return the file as a pandas DataFrame: a CSV file as text, a parquet file with its types.

    The separator of a CSV file is the comma, semicolon or tab, whichever its first line has most of.

    Raises:
        ValueError: it is no table; the message names the line or the columns.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path of a CSV or parquet file")
    pandas = need("pandas", "tabular")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            need("pyarrow", "parquet")
            frame = pandas.read_parquet(path)
            frame.columns = named([str(name) for name in frame.columns], path)
        else:
            frame = read_csv(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; save it as UTF-8, or as parquet") from error
    except Exception as error:  # pandas, pyarrow and csv raise many kinds
        if isinstance(error, ImportError) or type(error) is ValueError:  # ours
            raise
        raise ValueError(f"{path} cannot be read as a table: {error}; save it as CSV with a line of names") from error
    if not len(frame):
        raise ValueError(f"{path} has no rows below its line of names")
    return frame


def read_csv(path: Path) -> Any:
    """Return a CSV file as a DataFrame of text, after checking that its lines are of one length."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        if not first.strip():
            raise ValueError(
                f"{path} cannot be read as a table: its first line is empty; save it as CSV with a line of names"
            )
        separator = max(SEPARATORS, key=first.count)
        file.seek(0)
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        names = named([name.strip() for name in next(rows)], path)
        check_lengths(rows, len(names), path)
    return need("pandas", "tabular").read_csv(
        path,
        sep=separator,
        encoding="utf-8-sig",
        skipinitialspace=True,
        header=None,
        skiprows=1,
        names=names,
        index_col=False,
        dtype=str,
        keep_default_na=False,
    )


def check_lengths(rows: Any, length: int, path: Path) -> None:
    """Raise for the first line that has more or fewer cells than there are names."""
    for row in rows:
        if row and len(row) != length:
            raise ValueError(
                f"line {rows.line_num} of {path} has {len(row)} cells, but its first line names {length} columns; "
                "make them as many (text with a separator in it needs quotation marks)"
            )


def named(names: Sequence[str], path: Path) -> list[str]:
    """Return the names of the columns, after checking that each is there once; one without gets a name as in pandas."""
    filled = [name or f"{UNNAMED}{k}" for k, name in enumerate(names)]
    twice = next((name for name in filled if filled.count(name) > 1), None)
    if twice is not None:
        places = [str(k + 1) for k, name in enumerate(filled) if name == twice]
        raise ValueError(f"columns {' and '.join(places)} of {path} are both called {twice!r}; rename all but one")
    return filled


def fresh(names: Iterable[str], taken: Iterable[str]) -> Iterator[str]:
    """Yield names that are not taken: `row`, or `row (2)` if there is a `row` already.

    >>> list(fresh(["row", "load"], ["row"]))
    ['row (2)', 'load']
    """
    used = set(taken)
    for name in names:
        candidate, k = name, 2
        while candidate in used:
            candidate, k = f"{name} ({k})", k + 1
        used.add(candidate)
        yield candidate


def quoted(names: Iterable[str]) -> str:
    """Return names for a sentence; the first ten if there are more."""
    shown = [repr(str(name)) for name in names]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")
