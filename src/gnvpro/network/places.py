"""Temporary replacement of a model's parameters and buffers by other tensors.

A tensor is found by identity, in every place that refers to it: one module under two names is one module, two
modules may share one parameter, and a parameter may also be in a plain list or dictionary. All its places hold the
same tensor at any time, so code that runs the model again (checkpoints, adjoints) uses the same parameters as the
first run.

    with places.holding({"0.weight": tensor}):     every place of the parameter "0.weight" holds the tensor
        ...                                        afterwards each place holds its previous tensor
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

from torch import Tensor, nn

MODULE_INTERNALS = frozenset(vars(nn.Module()))
DEPTH = 4  # of containers within containers
LONGEST = 10_000  # entries of a plain container that is searched

Place = tuple[Any, Any]  # a list or dictionary, and an index or key


@dataclass(frozen=True)
class Places:
    """All places of a model's parameters and buffers, by their first names."""

    by_name: Mapping[str, list[Place]]

    @staticmethod
    def of(model: nn.Module) -> Places:
        """Search all modules."""
        named = [*model.named_parameters(), *model.named_buffers()]
        names = {id(tensor): name for name, tensor in named}
        found: dict[str, list[Place]] = {name: [] for name, _ in named}
        for module in model.modules():
            own = vars(module)
            for container in (own["_parameters"], own["_buffers"]):
                for key, value in container.items():
                    if id(value) in names:
                        found[names[id(value)]].append((container, key))
            for key, value in own.items():
                if isinstance(value, Tensor):
                    if id(value) in names:
                        found[names[id(value)]].append((own, key))
                elif type(value) in (dict, list) and key not in MODULE_INTERNALS:
                    _collect(value, names, found, DEPTH - 1)
        return Places(found)

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Put these tensors in place of the model's own within a block."""
        places = [(container, key, tensor) for name, tensor in tensors.items() for container, key in self.by_name[name]]
        before = [(container, key, container[key]) for container, key, _ in places]
        try:
            for container, key, tensor in places:
                container[key] = tensor
            yield
        finally:
            for container, key, tensor in before:
                container[key] = tensor


def _collect(values: Any, names: Mapping[int, str], found: dict[str, list[Place]], depth: int) -> None:
    """Add the places in a container and its nested containers."""
    if len(values) > LONGEST:
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, Tensor):
            if id(value) in names:
                found[names[id(value)]].append((values, key))
        elif depth and type(value) in (dict, list):
            _collect(value, names, found, depth - 1)


@contextmanager
def intact(model: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers, modes, hooks and requires_grad of the model when the block ends, in any way.

    Numbers in parameters and buffers are not restored.
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
            if own.keys() != entries.keys() or not all(map(is_, map(own.__getitem__, entries), entries.values())):
                own.clear()
                own.update(entries)
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode
        for parameter, wanted in gradients:
            if parameter.requires_grad is not wanted:
                parameter.requires_grad_(wanted)
