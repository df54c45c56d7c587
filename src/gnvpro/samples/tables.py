"""User's samples as pandas tables, or several arrays at once. pandas itself is not imported."""

from __future__ import annotations

from typing import Any


def is_table(value: Any) -> bool:
    """Return True for a DataFrame of pandas."""
    return _is_pandas(value) and hasattr(value, "columns")


def is_series(value: Any) -> bool:
    """Return True for a Series of pandas."""
    return _is_pandas(value) and not hasattr(value, "columns")


def _is_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy")


def is_several(value: Any) -> bool:
    """Return True for a tuple or list of arrays, each an argument of the model; a list of numbers is an array."""
    return isinstance(value, tuple | list) and bool(value) and all(getattr(part, "shape", ()) for part in value)


def numeric(name: str, value: Any) -> Any:
    """Return a table as an array of its numbers, missing ones as NaN; return anything else unchanged."""
    if not _is_pandas(value):
        return value
    columns = dict(value.items()) if is_table(value) else {value.name: value}
    for column, content in columns.items():
        if content.dtype.kind not in "biuf":
            raise TypeError(
                f"{name} must be numbers, but its column {column!r} is of type {content.dtype}; encode it, for example by "
                "pandas.get_dummies, or leave it out"
            )
    if any(content.isna().any() for content in columns.values()):
        return value.to_numpy(dtype="float64", na_value=float("nan"), copy=True)
    kinds = {content.dtype.kind for content in columns.values()}
    return value.to_numpy(dtype="float64" if "f" in kinds else "int64", copy=True)  # pandas arrays are not writable
