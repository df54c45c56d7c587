"""Checking single arguments: every error names the argument, says what was got and what to do instead."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable


def suggestion(value: object, known: Iterable[str]) -> str:
    """The nearest of the known words as a question, or all of them."""
    choices = list(known)
    near = difflib.get_close_matches(str(value), choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(map(repr, choices))}"


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """One of a few words; the nearest one is offered for any other."""
    choices = list(known)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; {suggestion(value, choices)}")
    return str(value)


def check_number(name: str, value: object, least: float, strict: bool = False) -> float:
    """A finite real number of at least (or, strictly, above) some bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or number < least or (strict and number == least):
        raise ValueError(f"{name} must be {'above' if strict else 'at least'} {least:g} and finite, got {value!r}")
    return number


def check_count(name: str, value: object, least: int) -> int:
    """A whole number of at least some bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return int(value)


def check_method(name: str, value: object, method: str, example: str) -> None:
    """None, or an object with a method to call."""
    if value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
        raise TypeError(f"{name} must be {example}, got {value!r}")
