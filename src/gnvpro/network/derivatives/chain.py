"""The output of a network at a point together with its derivative there, by hand-written formulas.

The results of the forward pass (layer inputs, slopes of the activations) are stored and never computed again.
Formulas cover chains of layers with a rule in `rules`, and any module with a method

    linearize(params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None

by which your own network provides them. `params` maps the names of the parameters to differentiate (relative to the
module) to the values to use; a missing parameter is frozen at the module's own value. Modules run in evaluation
mode: dropout is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.network.derivatives.protocol import Gradients, Layer, Linearization, Rows
from gnvpro.network.derivatives.rules import rule_for


@torch.no_grad()
def linearize(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None:
    """Linearise `module` at `params` and `inputs`; None if a layer has no rule."""
    return None if params and is_shared(module) else linearize_unshared(module, params, inputs)


@torch.no_grad()
def linearize_unshared(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None:
    """Linearise a module that is known not to share a parameter; the check takes longer than a small layer."""
    made = _linearize(module, params, inputs)
    if made is None:
        return None
    output, part = made
    return part if isinstance(part, Chain) else Chain(output, (Link(part, {name: name for name in params}),))


def _linearize(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Layer] | None:
    # Hooks may change what a module computes.
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    own = getattr(module, "linearize", None)
    if callable(own):
        made = own(params, inputs)
        return None if made is None else (made.output, made)
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        chain = _chain(module, params, inputs)
        return None if chain is None else (chain.output, chain)
    rule = rule_for(module)
    if rule is None or not params.keys() <= module._parameters.keys():
        return None
    return rule(module, params, inputs)


def is_shared(module: nn.Module) -> bool:
    """Return True if a parameter is used in two places.

    It has one name there, so the layers could not distinguish it from a frozen one.
    """
    every = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    return len(every) > len(set(every))


def _chain(module: nn.Sequential, params: Mapping[str, Tensor], inputs: Tensor) -> Chain | None:
    links: list[Link] = []
    output = inputs
    below: dict[str, dict[str, Tensor]] = {}
    for key, value in params.items():
        name, _, rest = key.partition(".")
        below.setdefault(name, {})[rest] = value
    for name, child in module._modules.items():  # `named_children` omits a layer that is used a second time
        assert child is not None
        own = below.get(name, {})
        made = _linearize(child, own, output)
        if made is None:
            return None
        output, part = made
        if isinstance(part, Chain):
            links += [Link(link.part, {key: f"{name}.{own}" for key, own in link.names.items()}) for link in part.links]
        else:
            links.append(Link(part, {key: f"{name}.{key}" for key in own}))
    if sum(len(link.names) for link in links) < len(params):  # some parameters belong to no layer
        return None
    return Chain(output, tuple(links))


@dataclass(frozen=True)
class Link:
    """One layer of a chain; `names` maps its parameters to their names in the chain."""

    part: Layer
    names: Mapping[str, str]


@dataclass(frozen=True)
class Chain:
    """Layers in sequence: the chain rule."""

    output: Tensor
    links: tuple[Link, ...]

    @torch.no_grad()
    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Go from the first layer to the last; layers before the first moving one are skipped."""
        d = d_inputs
        for link in self.links:
            if d is not None or link.names:
                d = link.part.jvp({key: d_params[name] for key, name in link.names.items()}, d)
        return torch.zeros_like(self.output) if d is None else d

    @torch.no_grad()
    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Go from the last layer to the first."""
        return self._backwards(lambda part, c, onward: part.vjp(c, onward), cotangent, want_inputs)

    @torch.no_grad()
    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Go from the last layer to the first, with m cotangents at once."""
        return self._backwards(lambda part, c, onward: part.jacobian(c, onward), seeds, want_inputs)

    def _backwards(
        self,
        pull: Callable[[Layer, Tensor, bool], tuple[Mapping[str, Any], Tensor | None]],
        cotangent: Tensor,
        want_inputs: bool,
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Go through the layers from the last to the first that is needed; return the parts of their parameters by name."""
        first = 0 if want_inputs else next((i for i, link in enumerate(self.links) if link.names), len(self.links))
        found: dict[str, Any] = {}
        pulled: Tensor | None = cotangent
        for i in reversed(range(first, len(self.links))):
            assert pulled is not None
            own, pulled = pull(self.links[i].part, pulled, want_inputs or i > first)
            found.update({self.links[i].names[key]: value for key, value in own.items()})
        return found, pulled if want_inputs else None
