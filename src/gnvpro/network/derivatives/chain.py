"""The output of a network at a point together with its derivative there, by hand-written formulas.

The results of the forward pass (layer inputs, slopes of the activations) are stored and never computed again.
Formulas cover chains of layers with a rule in `rules`, and any module with a method

    linearize(params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None

by which your own network provides them. `params` maps the names of the parameters to differentiate (relative to the
module) to the values to use; a missing parameter is frozen at the module's own value. Modules run in evaluation
mode: dropout is the identity.

`bound` looks up the rules and the names once per model; `Formulas.at` is one forward pass with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.arguments import has_method
from gnvpro.network.derivatives.linearization import Gradients, Layer, Linearization, Rows
from gnvpro.network.derivatives.rules import Rule, identity, rule_for


@dataclass(frozen=True)
class BoundLayer:
    """One layer: its rule, and its parameters to differentiate by their own names and those in the chain."""

    module: nn.Module
    rule: Rule
    own: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Formulas:
    """The layers of a network whose derivatives have formulas."""

    layers: tuple[BoundLayer, ...]
    first: int  # the first layer with a parameter; the number of layers if there is none

    @torch.no_grad()
    def at(self, params: Mapping[str, Tensor], inputs: Tensor) -> Chain | None:
        """Linearise at these parameters and inputs; None if a layer has no formula for such inputs."""
        parts, output = [], inputs
        for layer in self.layers:
            own = dict(zip(layer.own, map(params.__getitem__, layer.names), strict=True))
            made = layer.rule(layer.module, own, output)
            if made is None:
                return None
            output, part = made
            parts.append(part)
        return Chain(output, self, parts)


def bound(module: nn.Module, names: Collection[str], prefix: str = "") -> Formulas | None:
    """Return the formulas of a module for those of its parameters, whose names begin with `prefix`.

    None if a layer has no rule, or a parameter belongs to no layer.
    """
    inside = [name for name in names if name.startswith(prefix)]
    layers = _bound(module, inside, prefix)
    if layers is None:
        return None
    moving = [i for i, layer in enumerate(layers) if layer.own]
    if sum([len(layers[i].own) for i in moving]) < len(inside):
        return None
    return Formulas(tuple(layers), moving[0] if moving else len(layers))


def _bound(module: nn.Module, names: Collection[str], prefix: str) -> list[BoundLayer] | None:
    if module._forward_hooks or module._forward_pre_hooks:  # they may change what a module computes
        return None
    rule = rule_for(module)
    if rule is identity:
        return []
    inside = tuple([name for name in names if name.startswith(prefix)])
    own = tuple([name.removeprefix(prefix) for name in inside])
    if has_method(module, "linearize"):
        return [BoundLayer(module, _by_itself, own, inside)]
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        # `named_children` omits a layer that is used a second time
        children = [(name, child) for name, child in module._modules.items() if child is not None]
        parts = [_bound(child, inside, f"{prefix}{name}.") for name, child in children]
        return None if None in parts else [layer for part in parts for layer in part or ()]
    if rule is None or not module._parameters.keys() >= set(own):
        return None
    return [BoundLayer(module, rule, own, inside)]


def _by_itself(module: Any, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Layer] | None:
    """Use the module's own method."""
    made = module.linearize(params, inputs)
    return None if made is None else (made.output, made)


@torch.no_grad()
def linearize(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None:
    """Linearise `module` at `params` and `inputs`; None if a layer has no rule."""
    formulas = None if params and is_shared(module) else bound(module, params.keys())
    return None if formulas is None else formulas.at(params, inputs)


def is_shared(module: nn.Module) -> bool:
    """Return True if a parameter is used in two places.

    It has one name there, so the layers could not distinguish it from a frozen one.
    """
    every = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    return len(every) > len(set(every))


@dataclass(frozen=True)
class Chain:
    """Layers in sequence: the chain rule."""

    output: Tensor
    formulas: Formulas
    parts: Sequence[Layer]

    @torch.no_grad()
    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Go from the first layer to the last; layers before the first moving one are skipped."""
        d = d_inputs
        for layer, part in zip(self.formulas.layers, self.parts, strict=True):
            if d is not None or layer.own:
                d = part.jvp(dict(zip(layer.own, map(d_params.__getitem__, layer.names), strict=True)), d)
        return torch.zeros_like(self.output) if d is None else d

    @torch.no_grad()
    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Go from the last layer to the first."""
        return self._backwards([*map(attrgetter("vjp"), self.parts)], cotangent, want_inputs)

    @torch.no_grad()
    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Go from the last layer to the first, with m cotangents at once."""
        return self._backwards([*map(attrgetter("jacobian"), self.parts)], seeds, want_inputs)

    def _backwards(
        self,
        pulls: Sequence[Callable[[Tensor, bool], tuple[Mapping[str, Any], Tensor | None]]],
        cotangent: Tensor,
        want_inputs: bool,
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Go through the layers from the last to the first that is needed; return the parts of their parameters by name."""
        first = 0 if want_inputs else self.formulas.first
        found: dict[str, Any] = {}
        pulled: Tensor | None = cotangent
        for i in range(len(pulls) - 1, first - 1, -1):
            assert pulled is not None
            own, pulled = pulls[i](pulled, want_inputs or i > first)
            layer = self.formulas.layers[i]
            for key, name in zip(layer.own, layer.names, strict=True):
                if key in own:
                    found[name] = own[key]
        return found, pulled if want_inputs else None
