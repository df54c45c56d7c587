"""Train from shallow to deep: train a coarse network, refine it, and train further.

A module that can be refined has a method `prolongated()`, which returns a deeper module that computes nearly the
same (`gnvpro.networks.NeuralODE` interpolates its weights linearly in time). Everything else in the model, including
the head, is copied unchanged.
"""

from __future__ import annotations

import copy
from typing import Any, cast

from torch import nn

from gnvpro.arguments import has_method


def can_be_refined(model: nn.Module) -> bool:
    """Return True if a module of the model has a method `prolongated`."""
    return any(has_method(module, "prolongated") for module in model.modules())


def prolongated(model: nn.Module) -> nn.Module:
    """Return a deeper copy of the model; the model itself is unchanged."""
    if has_method(model, "prolongated"):
        finer = cast(Any, model).prolongated()
        if not isinstance(finer, nn.Module):
            raise TypeError(
                f"{type(model).__name__}.prolongated() must return an nn.Module, got {type(finer).__name__}"
            )
        return finer
    shell = copy.copy(model)
    shell._modules = {name: prolongated(child) if child is not None else None for name, child in model._modules.items()}
    shell._parameters = copy.deepcopy(model._parameters)
    shell._buffers = copy.deepcopy(model._buffers)
    return shell


def deeper(model: nn.Module, levels: int) -> nn.Module:
    """Return the model refined this many times."""
    for _ in range(levels):
        model = prolongated(model)
    return model
