"""The identity of a run, from its objects: resuming another run raises an error that names the first difference.

    numbers, strings, None           their repr
    tensors, arrays                  shape, dtype and a hash of their content
    dataclasses, containers          field by field, item by item
    functions                        their name, code, defaults and what they close over
    modules                          class and code, attributes, shapes of trained tensors, content of all others
    other objects                    class and code, attributes

An object that holds something else (an open file, a lock, an object of a compiled library) cannot be compared
after a restart. It raises an error; give it a `fingerprint()` that returns a string.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.files import content_hash
from gnvpro.network.theta_and_head import parameter_kinds
from gnvpro.tensor_file import bytes_of


def describe(name: str, value: Any) -> str:
    """Return a text that differs if the value does."""
    return _Description(name).of(value)


def model_parts(model: nn.Module) -> dict[str, str]:
    """A model's structure, code and attributes, and the content of what is not trained; not theta."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return {
        "model": repr(model),
        **parameter_kinds(model),
        "model's frozen values": digest([*frozen, *model.buffers()]),
        "model's code and attributes": content_hash([describe("model", model)])[:16],
    }


def fingerprint(model: nn.Module, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the identity of a run, which `resume` compares."""
    return {
        **model_parts(model),
        **{name: digest([tensor]) for name, tensor in tensors.items()},
        **{name: describe(name, value) for name, value in settings.items()},
    }


def digest(tensors: list[Tensor]) -> str:
    """A hash of shapes, dtypes and content."""
    parts = (part for tensor in tensors for part in (f"{tuple(tensor.shape)} {tensor.dtype}", bytes_of(tensor)))
    return content_hash(parts)[:16]


class _Description:
    """Describes one value; an object that is met again is named by when it was met first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []  # keeps objects alive, so that no id occurs twice

    def of(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | enum.Enum | Path):
            return repr(value)
        if isinstance(value, torch.dtype | torch.device | torch.Size | np.dtype | range | slice):
            return repr(value)
        if id(value) in self.met:
            return f"<{self.met[id(value)]}>"
        self.met[id(value)] = len(self.met)
        self.alive.append(value)
        own = getattr(value, "fingerprint", None)
        if callable(own) and not isinstance(value, type):
            return f"{_title(value)}:{own()}"
        return self._composed(value)

    def _composed(self, value: Any) -> str:
        if isinstance(value, np.ndarray | np.generic):
            value = torch.from_numpy(np.array(value)) if np.asarray(value).dtype != object else value.tolist()
        if isinstance(value, Tensor):
            return f"Tensor({digest([value])})"
        if isinstance(value, list | tuple | set | frozenset):
            items = sorted(map(self.of, value)) if isinstance(value, set | frozenset) else map(self.of, value)
            return f"{type(value).__name__}[{', '.join(items)}]"
        if isinstance(value, Mapping):
            return f"{type(value).__name__}{{{self._items(value)}}}"
        if isinstance(value, functools.partial):
            return f"partial[{self.of((value.func, value.args, value.keywords))}]"
        if isinstance(value, types.MethodType):
            return f"method[{self.of((value.__func__, value.__self__))}]"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
            return getattr(value, "__module__", "") + "." + getattr(value, "__qualname__", repr(value))
        if isinstance(value, torch.Generator):
            return f"Generator({digest([value.get_state()])})"
        return self._object(value)

    def _object(self, value: Any) -> str:
        content = _attributes(value)
        if isinstance(value, nn.Module):
            content = {k: v for k, v in content.items() if k not in MODULE_INTERNALS}
            content |= {k: v for k, v in value._modules.items() if v is not None}
        else:
            content |= self._compiled(value)
        return f"{_title(value)}({self._items(content)}; {self._code_of(type(value))})"

    def _compiled(self, value: Any) -> dict[str, Any]:
        """Return the content of an object of a compiled class beyond its attributes: what Python passes on to copy it."""
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            reduced = reducer(value) if reducer else value.__reduce_ex__(2)
        except Exception:
            raise TypeError(
                f"checkpoint: {self.name} holds a {_title(value)}, which cannot say whether it is the same after a restart; "
                "give the object that holds it a method fingerprint() that returns a string, or leave checkpoint out"
            ) from None
        if isinstance(reduced, str):
            return {"copied from": reduced}
        make, arguments, *more = reduced
        if make is getattr(copyreg, "__newobj__", None) and len(arguments) == 1:  # a plain class has only attributes
            return {}
        return {"copied from": [arguments, *(list(part) if isinstance(part, Iterator) else part for part in more)]}

    def _items(self, mapping: Mapping[Any, Any]) -> str:
        return ", ".join(f"{key}={self.of(item)}" for key, item in mapping.items())

    def _code_of(self, kind: type) -> str:
        """Hash the methods that a class and its parents define, except methods of known libraries."""
        parts = []
        for base in kind.__mro__:
            if base.__module__.split(".")[0] in KNOWN_LIBRARIES:
                continue
            for name, item in vars(base).items():
                inner = getattr(item, "fget", None) or getattr(item, "__func__", None) or getattr(item, "func", item)
                if isinstance(inner, types.FunctionType):
                    parts.append(f"{base.__qualname__}.{name}:{_code(inner)}")
        return content_hash(parts)[:16]

    def _function(self, function: types.FunctionType) -> str:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        inside = self.of((function.__defaults__, function.__kwdefaults__, cells))
        return f"{function.__module__}.{function.__qualname__}[{_code(function)}, {inside}]"


# Their versions are not part of a run: an update would make every run another one.
KNOWN_LIBRARIES = ("gnvpro", "torch", "builtins", "abc", "typing", "collections", "numpy", "dataclasses")
MODULE_INTERNALS = frozenset(vars(nn.Module())) | {"_forward_hooks", "_is_full_backward_hook"}


def _attributes(value: Any) -> dict[str, Any]:
    """Slots and attributes by name, without what is computed from others and kept."""
    kind = type(value)
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for slot in slots for name in ([slot] if isinstance(slot, str) else slot)]
    found = {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}
    kept = (
        k for k in getattr(value, "__dict__", {}) if not isinstance(getattr(kind, k, None), functools.cached_property)
    )
    return {**found, **{name: value.__dict__[name] for name in kept}}


def _title(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _code(function: types.FunctionType, seen: set[types.FunctionType] | None = None) -> str:
    """A hash of what a function does, wherever in its file it stands, and of what it uses of its module."""
    seen = set() if seen is None else seen
    if function in seen or (function.__module__ or "").split(".")[0] in KNOWN_LIBRARIES:
        return ""
    seen.add(function)
    scope, used = function.__globals__, []
    for name in _names(function.__code__):
        value = scope.get(name)
        if isinstance(value, types.FunctionType):
            used.append(f"{name}={_code(value, seen)}")
        elif _is_plain(value):
            used.append(f"{name}={value!r}")
    return content_hash([f"{_bytecode(function.__code__)}{used}"])[:16]


def _is_plain(value: Any) -> bool:
    """Return whether the repr determines the value."""
    return isinstance(value, bool | int | float | str) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _names(code: types.CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in _names(c)]
    return sorted({*code.co_names, *inner})


def _bytecode(code: types.CodeType) -> str:
    return f"{code.co_code!r}{code.co_names}{[_constant(c) for c in code.co_consts]}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _bytecode(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)  # sets have no order
