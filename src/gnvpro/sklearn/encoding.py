"""From the columns of a table to numbers: categories, dates and missing values.

    number, bool      its value; in the place of a missing one the median of the others
    date              days since 1970, and the phase of each of day, week and year that the table covers more than once
    category, text    few levels: one column of zeros and ones per level; many levels: what the level tells of the target
    any, if missing   one more column of zeros and ones

What level l tells of the target y is its mean, shrunk to the mean of all rows as far as levels differ by chance only:

    m + (n_l t / (n_l t + s)) (m_l - m),         s the variance within levels, t the variance between levels, without chance

Training rows get the mean of other rows (five folds), since a mean that contains the own target tells too much. A level that
was not seen in training has no column, or the mean m; a warning names it.

A table is read in two steps. `codes` is a matrix with one column per column of the table: numbers, days, and the index of a
level; NaN if missing, -1 if unseen. Rows with equal codes are equal, so weights may be summed over them. `expand` makes the
columns of the network.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.sklearn.scaling import weighted_median

PERIODS = {"day": 1.0, "week": 7.0, "year": 365.2425}  # days
FOLDS_OF_LEVELS = 5
KINDS_OF_COLUMNS = ("number", "date", "levels")
UNSEEN = -1.0
Array = NDArray[Any]


@dataclass(frozen=True)
class EncodedColumn:
    """How one column of a table becomes numbers."""

    name: str
    kind: str  # "number", "date" or "levels"
    levels: tuple[str, ...] = ()
    has_missing: bool = False  # in training
    median: float = 0.0  # stands for a missing number
    periods: tuple[str, ...] = ()  # of a date
    means: tuple[
        tuple[float, ...], ...
    ] = ()  # of the targets: one row per level, then missing, then unseen; none: one-hot

    @staticmethod
    def of_facts(name: str, facts: Mapping[str, Any]) -> EncodedColumn:
        """Return the column that a file describes, after checking what it says."""
        levels, means = tuple(facts["levels"]), tuple(tuple(float(mean) for mean in row) for row in facts["means"])
        column = EncodedColumn(
            name,
            facts["kind"],
            levels,
            facts["has_missing"] is True,
            float(facts["median"]),
            tuple(facts["periods"]),
            means,
        )
        sound = column.kind in KINDS_OF_COLUMNS and set(column.periods) <= set(PERIODS)
        sound = sound and all(isinstance(each, str) for each in levels) and len(set(levels)) == len(levels)
        if not sound or (means and len(means) != len(levels) + 2) or len({len(row) for row in means}) > 1:
            raise ValueError(f"its column {name!r} is described by {facts!r}")
        return column

    def codes(self, values: Any) -> Array:
        """Return numbers, days or indices of levels."""
        if self.kind == "levels":
            indices = {level: float(k) for k, level in enumerate(self.levels)}
            return np.array(
                [math.nan if is_missing(v) else indices.get(as_text(v), UNSEEN) for v in values], dtype=float
            )
        found = as_dates(values) if self.kind == "date" else as_numbers(values)
        if found is None:
            raise ValueError(
                f"column {self.name!r} of X holds {example(values, self.kind)!r}, which is no {self.kind}; the model was "
                f"trained on {self.kind}s there. Convert the column, or fit again with it"
            )
        return found

    def settled(self, codes: Array, weights: Array) -> tuple[EncodedColumn, Array]:
        """Return the column as these rows have it, and its codes: levels of no row are forgotten."""
        blank = np.isnan(codes)
        there, shares = codes[~blank], weights[~blank]
        column = replace(self, has_missing=bool(blank.any()))
        if self.kind == "levels":
            present = np.unique(there)
            levels = tuple(self.levels[int(k)] for k in present)
            return replace(column, levels=levels), np.where(blank, math.nan, np.searchsorted(present, codes))
        if not len(there):
            return column, codes
        median = float(weighted_median(there[:, None], shares)[0])
        span = float(np.ptp(there)) if self.kind == "date" else 0.0
        periods = tuple(name for name, days in PERIODS.items() if span > days and (np.ptp(there % days) > 0))
        return replace(column, median=median, periods=periods), codes

    def expand(self, codes: Array) -> Array:
        """Return the columns of the network, (rows, columns)."""
        blank = np.isnan(codes)
        if self.kind == "levels":
            places = np.where(blank, len(self.levels), np.where(codes < 0, len(self.levels) + 1, codes)).astype(
                np.int64
            )
            return self.table[places]
        filled = np.where(blank, self.median, codes)
        columns = [filled]
        for name in self.periods:
            phase = 2 * np.pi * (filled % PERIODS[name]) / PERIODS[name]
            columns += [np.sin(phase), np.cos(phase)]
        return np.column_stack([*columns, blank] if self.has_missing else columns)

    @property
    def table(self) -> Array:
        """The numbers of each level, then of a missing and of an unseen one."""
        if self.means:
            return np.array(self.means)
        one_hot = np.eye(len(self.levels) + 2)
        one_hot[-1] = 0.0
        return one_hot[:, : len(self.levels) + self.has_missing]

    @property
    def names_out(self) -> list[str]:
        """Names of the columns of the network."""
        missing = [f"{self.name} is missing"] if self.has_missing and not self.means else []
        if self.means:
            count = len(self.means[0])
            return [f"{self.name} (mean of {'the target' if count == 1 else f'target {k}'})" for k in range(count)]
        if self.kind == "levels":
            return [f"{self.name}={level}" for level in self.levels] + missing
        phases = [f"{part} of the {name} of {self.name}" for name in self.periods for part in ("sine", "cosine")]
        return [self.name, *phases, *missing]

    def doubts(self, codes: Array, values: Any) -> Iterator[str]:
        """Yield a sentence for each thing that was not in training."""
        unseen = np.flatnonzero((codes < 0) & (self.kind == "levels"))
        if len(unseen):
            first = as_text([*values][int(unseen[0])])
            instead = "the mean of all rows is used" if self.means else "these rows count as none of its levels"
            yield (
                f"column {self.name!r} holds {first!r}, which was not in training ({len(unseen)} rows have such levels); "
                f"{instead}"
            )
        blank = int(np.isnan(codes).sum())
        if blank and not self.has_missing:
            instead = (
                "they count as none of its levels" if self.kind == "levels" else f"the median {self.median:g} is used"
            )
            yield f"column {self.name!r} has {blank} missing values and had none in training; {instead}"


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become the inputs of a network."""

    columns: tuple[EncodedColumn, ...]

    @staticmethod
    def of(X: Any) -> Encoding:
        """Return the kinds and levels of the columns of a table or array; `learn` adds what depends on weights and targets.

        Raises:
            ValueError: a column holds numbers and text, or what is neither.
        """
        return Encoding(tuple(read_column(name, values) for name, values in columns_of(X).items()))

    @staticmethod
    def plain(names: Iterable[str]) -> Encoding:
        """Return the encoding of columns that are known to be numbers."""
        return Encoding(tuple(EncodedColumn(name, "number") for name in names))

    def codes(self, X: Any, doubts: bool = False) -> Array:
        """Return one number per cell; warn of what was not in training if `doubts`."""
        values = list(columns_of(X).values())
        found = [column.codes(each) for column, each in zip(self.columns, values, strict=True)]
        for column, codes, each in zip(self.columns, found, values, strict=True):
            for sentence in column.doubts(codes, each) if doubts else ():
                warnings.warn(sentence, UserWarning, stacklevel=4)
        return np.column_stack(found)

    def learn(self, codes: Array, targets: Array, weights: Array, one_hot_up_to: int) -> tuple[Encoding, Array]:
        """Return the encoding of these rows, and the inputs of the network for them."""
        columns, inputs = [], []
        for column, own in zip(self.columns, codes.T, strict=True):
            settled, own = column.settled(own, weights)
            if len(settled.levels) > one_hot_up_to:
                places = np.where(np.isnan(own), len(settled.levels), own).astype(np.int64)
                settled, made = learnt(settled, places, targets, weights)
            else:
                made = settled.expand(own)
            columns.append(settled)
            inputs.append(made)
        return Encoding(tuple(columns)), np.column_stack(inputs)

    def expand(self, codes: Array) -> Array:
        """Return the inputs of the network."""
        return np.column_stack([column.expand(own) for column, own in zip(self.columns, codes.T, strict=True)])

    @property
    def names_out(self) -> list[str]:
        """Names of the inputs of the network."""
        return [name for column in self.columns for name in column.names_out]

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers without missing values."""
        return all(column.kind == "number" and not column.has_missing for column in self.columns)


def learnt(column: EncodedColumn, places: Array, targets: Array, weights: Array) -> tuple[EncodedColumn, Array]:
    """Return the column with the mean of the targets for each level, and for each training row the mean of other rows."""
    count = len(column.levels) + 2
    made, fold = np.empty((len(places), targets.shape[1])), np.random.RandomState(0).permutation(len(places))
    for k in range(FOLDS_OF_LEVELS):
        inside = fold % FOLDS_OF_LEVELS == k
        if not inside.all():
            made[inside] = shrunk_means(places[~inside], targets[~inside], weights[~inside], count)[places[inside]]
    means = shrunk_means(places, targets, weights, count)
    return replace(column, means=tuple(tuple(row) for row in means.tolist())), made


def shrunk_means(places: Array, targets: Array, weights: Array, count: int) -> Array:
    """Return the shrunk mean of the targets at each of `count` places; that of all rows where there is none."""
    n = np.bincount(places, weights, count)
    mean = weights @ targets / weights.sum()
    sums = np.column_stack([np.bincount(places, weights * own, count) for own in targets.T])
    means = np.where(n[:, None] > 0, sums / np.maximum(n, 1e-300)[:, None], mean)
    used, total = int((n > 0).sum()), float(n.sum())
    within = weights @ (targets - means[places]) ** 2 / max(total - used, 1.0)
    spread = n @ (means - mean) ** 2 - (used - 1) * within
    between = np.maximum(spread, 0.0) / max(total - float(n @ n) / total, 1e-300)
    signal = n[:, None] * between
    share = np.divide(signal, signal + within, out=np.zeros_like(signal), where=signal + within > 0)
    found: Array = mean + share * (means - mean)
    return found


def columns_of(X: Any) -> Mapping[str, Any]:
    """Return the columns of a DataFrame or of an array by name."""
    if hasattr(X, "columns"):
        return {
            str(name): X[name] if len(set(X.columns)) == len(X.columns) else X.iloc[:, j]
            for j, name in enumerate(X.columns)
        }
    return {f"x{j}": column for j, column in enumerate(np.asarray(X).T)}


def needs_encoding(X: Any) -> bool:
    """Return whether X is a table or array with columns that are no numbers."""
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        return any(
            np.asarray(values).dtype.kind not in "biufc" or is_category(values) for values in columns_of(X).values()
        )
    array = X if isinstance(X, np.ndarray | list | tuple) else None
    if array is None or (isinstance(array, np.ndarray) and array.dtype.kind not in "OUS"):
        return False
    array = np.asarray(array, dtype=object) if isinstance(array, np.ndarray) else np.empty(0)
    return array.ndim == 2 and any(isinstance(value, str) for value in array.flat)


def is_category(values: Any) -> bool:
    """Return whether a column is of the type of categories."""
    kind = str(getattr(values, "dtype", "")).lower()
    return kind.startswith(("categ", "enum"))


def read_column(name: str, values: Any) -> EncodedColumn:
    """Decide what a column holds."""
    if not is_category(values):
        kind = np.asarray(values).dtype.kind
        if kind == "c":
            raise ValueError(f"Complex data not supported: column {name!r} of X is complex")
        if kind in "biufm" or as_numbers(values) is not None:
            return EncodedColumn(name, "number")
        if kind == "M" or as_dates(values) is not None:
            return EncodedColumn(name, "date")
        other = [value for value in values if not is_missing(value) and not isinstance(value, str)]
        if other:
            texts = [value for value in values if isinstance(value, str)]
            beside = f" and {texts[0]!r}" if texts else ""
            raise ValueError(
                f"column {name!r} of X holds {other[0]!r}{beside}: make it all numbers, or all text "
                f"(X[{name!r}].astype('category'))"
            )
    return EncodedColumn(name, "levels", tuple(sorted({as_text(value) for value in values if not is_missing(value)})))


def is_missing(value: Any) -> bool:
    """Return whether a cell is None, NaN, NaT or NA."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float | np.floating | np.datetime64) and bool(value != value))
    )


def as_text(value: Any) -> str:
    """Return the name of a level; the number 2.0 has the name of 2, since missing values turn whole numbers into fractions."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def as_numbers(values: Any) -> Array | None:
    """Return a column as numbers, NaN if missing; None if it holds anything else. Durations become days."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if array.dtype.kind == "m":
        days = array.astype("timedelta64[us]").astype(np.float64) / 86_400e6
        return np.where(np.isnat(array), math.nan, days)
    if array.dtype.kind != "O" or not all(
        is_missing(v) or isinstance(v, bool | int | float | np.number | np.bool_) for v in array
    ):
        return None
    return np.array([math.nan if is_missing(value) else float(value) for value in array], dtype=np.float64)


def as_dates(values: Any) -> Array | None:
    """Return a column as days since 1970, NaN if missing; None if it holds anything but dates."""
    array = np.asarray(values)
    if array.dtype.kind != "M":
        if array.dtype.kind != "O" or not all(is_missing(value) or hasattr(value, "toordinal") for value in array):
            return None
        array = np.array([None if is_missing(value) else value for value in array], dtype="datetime64[us]")
    days = array.astype("datetime64[us]").astype(np.int64) / 86_400e6
    return np.where(np.isnat(array), math.nan, days)


def example(values: Any, kind: str) -> Any:
    """Return the first cell that is no number or no date."""
    wanted: Any = (bool, int, float, np.number) if kind == "number" else ()
    return next((v for v in np.asarray(values, dtype=object) if not is_missing(v) and not isinstance(v, wanted)), None)
