"""States: plain values that one function saves and another one loads.

A `State` is a frozen dataclass of tensors, numbers, strings, None, other States, and tuples, lists or dicts of these. No code
writes into a state, or into a tensor that it holds. So a step takes one state and returns another, and a checkpoint of a
method is `saved(state)`, whatever the method.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

KIND = "kind of state"  # the key under which a saved state has its class


class State:
    """The base of all states: subclass it as a frozen dataclass.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Length(State):
    ...     length: float
    >>> loaded(saved(Length(0.5))).length
    0.5
    """

    kinds: ClassVar[dict[str, type[State]]] = {}

    def __init_subclass__(cls) -> None:
        State.kinds[f"{cls.__module__}.{cls.__qualname__}"] = cls


def saved(value: Any) -> Any:
    """A state, or a value of one, as tensors, numbers, strings and containers: what `torch.load` reads without executing."""
    if isinstance(value, State):
        fields = {each.name: saved(getattr(value, each.name)) for each in dataclasses.fields(value)}  # type: ignore[arg-type]
        return {KIND: f"{type(value).__module__}.{type(value).__qualname__}", **fields}
    if isinstance(value, Tensor):
        return value.detach().clone()  # a view would bring the whole storage along
    if isinstance(value, dict):
        return {key: saved(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(saved(item) for item in value)
    return value


def loaded(content: Any) -> Any:
    """Return what `saved` was given; raise ValueError or TypeError if the content is not of that form."""
    if isinstance(content, dict):
        values = {key: loaded(item) for key, item in content.items() if key != KIND}
        return values if KIND not in content else _state(content[KIND], values)
    if isinstance(content, tuple | list):
        return type(content)(loaded(item) for item in content)
    return content


def _state(name: Any, values: dict[str, Any]) -> State:
    """The state of this class with these values, each checked against its annotation."""
    kind = State.kinds.get(name)
    if kind is None:
        raise ValueError(f"there is no state {name!r}; import the module that defines it first")
    hints, names = get_type_hints(kind), {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if names != values.keys():
        raise ValueError(f"{name} has the fields {sorted(names)}, got {sorted(values)}")
    for key, value in values.items():
        if not fits(value, hints[key]):
            raise TypeError(f"{name}.{key} must be {hints[key]}, got {type(value).__name__}")
    return kind(**values)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the annotated type; only tuples of fixed length are checked item by item."""
    if hint is Any:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is tuple and arguments and Ellipsis not in arguments:
        alike = isinstance(value, tuple) and len(value) == len(arguments)
        return alike and all(map(fits, value, arguments))
    kind = origin or hint
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
