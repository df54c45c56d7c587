"""Checks of single arguments: every error names the argument, the value received, and the remedy."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
EPOCHS = "write work=2 * epochs; work counts passes over the samples, and an epoch has a forward and a backward pass"
RATE = (
    "the default method needs none; for stochastic steps write method=gnvpro.methods.AdamVPro(lr=..., batch_size=...)"
)


def with_advice(advice: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to answer arguments that other libraries have and it does not.

    Args:
        advice: what to write instead of each such argument. For any other unknown argument the nearest known one is offered.

    >>> @with_advice({"lr": "no rate is needed; leave it out"})
    ... def fit(data, work=1): return data
    >>> fit(1, lr=0.1)
    Traceback (most recent call last):
    TypeError: fit has no argument 'lr': no rate is needed; leave it out
    >>> fit(1, wrok=2)
    Traceback (most recent call last):
    TypeError: fit has no argument 'wrok'; did you mean 'work'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = list(inspect.signature(function).parameters)
        named = [name for name in known if name != "self"]

        @functools.wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name not in known:
                    called = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
                    remedy = f": {advice[name]}" if name in advice else f"; {suggestion(name, named)}"
                    raise TypeError(f"{called} has no argument {name!r}{remedy}")
            return function(*args, **given)

        return checked

    return decorate


def suggestion(value: object, known: Iterable[str]) -> str:
    """Return a sentence that offers the nearest known word, or all of them if none is near."""
    choices = list(known)
    near = difflib.get_close_matches(str(value), choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(map(repr, choices))}"


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """Return a word after checking that it is known; the error offers the nearest known word."""
    choices = list(known)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; {suggestion(value, choices)}")
    return str(value)


def check_number(name: str, value: object, least: float, strict: bool = False) -> float:
    """Return a number that must be finite and at least (if strict: above) a bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or number < least or (strict and number == least):
        limit = f"{'above' if strict else 'at least'} {least:g} and " if least > -math.inf else ""
        raise ValueError(f"{name} must be {limit}finite, got {value!r}")
    return number


def check_count(name: str, value: object, least: int) -> int:
    """Return a whole number that must be at least a bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return int(value)


def check_method(name: str, value: object, method: str, example: str) -> None:
    """Raise unless the value is None or an object with this method."""
    if value is not None and (isinstance(value, type) or not has_method(value, method)):
        raise TypeError(f"{name} must be {example}, got {value!r}")


def has_method(value: object, method: str) -> bool:
    """Return whether a user's object has a method."""
    return callable(getattr(value, method, None))
