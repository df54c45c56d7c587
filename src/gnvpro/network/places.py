"""Other tensors in the place of a model's parameters and buffers, for as long as a computation lasts.

A tensor is found by identity, in every place where a module keeps it: one module under two names is one module, two modules
may share one parameter, and a parameter may be kept in a plain list or dictionary as well. All its places hold the same
tensor at any time, so whatever runs the model again (checkpoints, adjoints) sees the same parameters as the first run did.

    with places.holding({"0.weight": tensor}):     every place of the parameter "0.weight" holds the tensor
        ...                                        afterwards each holds what it held before
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

MODULE_INTERNALS = frozenset(vars(nn.Module()))
DEPTH = 4  # of containers within containers
LONGEST = 10_000  # entries of a plain container that is searched

Place = tuple[Any, Any]  # a list or dictionary, and the index or key in there


@dataclass(frozen=True)
class Places:
    """Where a model keeps each of its parameters and buffers, by their first names."""

    by_name: Mapping[str, list[Place]]

    @staticmethod
    def of(model: nn.Module) -> Places:
        """Search all modules."""
        named = [*model.named_parameters(), *model.named_buffers()]
        names = {id(tensor): name for name, tensor in named}
        found: dict[str, list[Place]] = {name: [] for name, _ in named}
        for module in model.modules():
            own = vars(module)
            plain = {key: value for key, value in own.items() if key not in MODULE_INTERNALS}
            for container in (own["_parameters"], own["_buffers"]):
                _collect(container, names, found, 0)
            _collect(plain, names, found, DEPTH, own)
        return Places(found)

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """The model holds these tensors in place of its own."""
        places = [(container, key, tensor) for name, tensor in tensors.items() for container, key in self.by_name[name]]
        before = [(container, key, container[key]) for container, key, _ in places]
        try:
            for container, key, tensor in places:
                container[key] = tensor
            yield
        finally:
            for container, key, tensor in before:
                container[key] = tensor


def _collect(
    values: Any, names: Mapping[int, str], found: dict[str, list[Place]], depth: int, owner: Any = None
) -> None:
    """Add the places in a container, and in those that it contains; `owner` is what `values` is a part of."""
    if len(values) > LONGEST:
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, Tensor):
            if id(value) in names:
                found[names[id(value)]].append((values if owner is None else owner, key))
        elif depth and type(value) in (dict, list):
            _collect(value, names, found, depth - 1)


@contextmanager
def intact(model: nn.Module) -> Iterator[None]:
    """However it ends, the model has its own parameters, buffers, modes, hooks and requires_grad again.

    Numbers in parameters and buffers are not touched.
    """
    modules = list(model.modules())
    before = [
        (own, dict(own))
        for module in modules
        for key, own in vars(module).items()
        if key in MODULE_INTERNALS and isinstance(own, dict)
    ]
    modes = [(module, module.training) for module in modules]
    gradients = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield
    finally:
        for own, entries in before:
            if own.keys() != entries.keys() or any(own[key] is not value for key, value in entries.items()):
                own.clear()
                own.update(entries)
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode
        for parameter, wanted in gradients:
            if parameter.requires_grad is not wanted:
                parameter.requires_grad_(wanted)
