"""What makes a run this run, said by its objects themselves: resuming another one is refused with the first thing that differs.

    numbers, strings, None           as they are
    tensors, arrays                  shape, dtype and a hash of their content
    dataclasses, containers          field by field, item by item
    functions                        their name, code, defaults and what they close over
    modules                          class and code, attributes, shapes of what is trained, content of what is not
    other objects                    class and code, attributes

An object that holds something else (an open file, a lock, an object of a compiled library) cannot say whether it is the same
after a restart, and is refused: give it a `fingerprint()` that returns a string.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def describe(name: str, value: Any) -> str:
    """A text that differs where the value does."""
    return _Description(name).of(value)


def model_parts(model: nn.Module) -> dict[str, str]:
    """A model's structure, code and attributes, and the content of what is not trained; not theta."""
    shapes = {
        f"model parameter {name}": f"{tuple(p.shape)} {p.dtype} {'trained' if p.requires_grad else 'frozen'}"
        for name, p in model.named_parameters()
    }
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return {
        "model": repr(model),
        **shapes,
        "model's frozen values": digest([*frozen, *model.buffers()]),
        "model's code and attributes": _hash(describe("model", model)),
    }


def digest(tensors: list[Tensor]) -> str:
    """A hash of shapes, dtypes and content."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Description:
    """Describes one value; an object that is met again is named by when it was met first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no id is used twice

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
        if isinstance(value, nn.Module):
            content = {k: v for k, v in vars(value).items() if k not in MODULE_INTERNALS}
            content |= {k: v for k, v in value._modules.items() if v is not None}
        elif dataclasses.is_dataclass(value):
            content = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        elif hasattr(value, "__dict__"):
            content = vars(value)
        elif hasattr(type(value), "__slots__"):
            content = {name: getattr(value, name, None) for name in type(value).__slots__}
        else:
            raise TypeError(
                f"checkpoint: {self.name} holds a {_title(value)}, which cannot say whether it is the same after a restart; "
                "give the object that holds it a method fingerprint() that returns a string, or leave checkpoint out"
            )
        return f"{_title(value)}({self._items(content)}; {self._code_of(type(value))})"

    def _items(self, mapping: Mapping[Any, Any]) -> str:
        return ", ".join(f"{key}={self.of(item)}" for key, item in mapping.items())

    def _code_of(self, kind: type) -> str:
        """A hash of the methods that a class and its parents define, those of known libraries left out."""
        parts = []
        for base in kind.__mro__:
            if base.__module__.split(".")[0] in KNOWN_LIBRARIES:
                continue
            for name, item in vars(base).items():
                inner = getattr(item, "fget", None) or getattr(item, "__func__", None) or getattr(item, "func", item)
                if isinstance(inner, types.FunctionType):
                    parts.append(f"{base.__qualname__}.{name}:{_code(inner)}")
        return _hash("".join(parts))

    def _function(self, function: types.FunctionType) -> str:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        inside = self.of((function.__defaults__, function.__kwdefaults__, cells))
        return f"{function.__module__}.{function.__qualname__}[{_code(function)}, {inside}]"


# Their versions are not part of a run: an update would end every one.
KNOWN_LIBRARIES = ("gnvpro", "torch", "builtins", "abc", "typing", "collections", "numpy", "dataclasses")
MODULE_INTERNALS = frozenset(vars(nn.Module())) | {"_forward_hooks", "_is_full_backward_hook"}


def _title(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _code(function: types.FunctionType) -> str:
    """A hash of what a function does, wherever in its file it stands, and of the constants of its module that it uses."""
    if function.__module__.split(".")[0] in KNOWN_LIBRARIES:
        return ""
    scope = function.__globals__
    used = {
        n: scope[n] for n in function.__code__.co_names if isinstance(scope.get(n), bool | int | float | str | tuple)
    }
    return _hash(f"{_bytecode(function.__code__)}{used}")


def _bytecode(code: types.CodeType) -> str:
    constants = [_bytecode(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code!r}{code.co_names}{constants}"
