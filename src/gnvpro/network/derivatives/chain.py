"""The output of a network at a point together with its derivative there, by hand-written formulas.

A `Linearization` keeps what the forward pass computed (layer inputs, slopes of the activations) and applies

    jvp        d_output   = J_params d_params + J_inputs d_inputs       one direction, forward
    vjp        (J_params^T c, J_inputs^T c)                             one cotangent, backward
    jacobian   the same for m cotangents a sample, sample by sample     what the exact Gauss-Newton step needs

Nothing known at the point is computed again. Chains of layers with a rule in `gnvpro.rules` are covered, and so is any
module with a method

    linearize(params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None

which is how a network of your own joins in. `params` maps the names of the parameters to differentiate (relative to the
module) to the values to use; a parameter that is missing there is frozen at the module's own value. Modules are taken
in evaluation mode: dropout is the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gnvpro.network.derivatives.layers import Pointwise
from gnvpro.network.derivatives.rules import Layer, rule_for


class Linearization(Protocol):
    """Output of a module at a point and its derivative there; the first axis of inputs and outputs counts samples."""

    @property
    def output(self) -> Tensor:
        """Value at the point."""

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Directional derivative; `d_inputs` None means that the inputs do not move."""

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Transpose of `jvp`: gradients by parameter, and the cotangent of the inputs if wanted."""

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Per-sample derivatives (numel, m, n) of seeds (m, n, *output), and the seeds pulled back to the inputs."""


@torch.no_grad()
def linearize(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None:
    """Linearise `module` at `params` and `inputs`; None when some layer has no rule."""
    return None if params and is_shared(module) else linearize_unshared(module, params, inputs)


@torch.no_grad()
def linearize_unshared(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Linearization | None:
    """The same for a module that is known not to share a parameter: looking takes longer than a small layer does."""
    made = _linearize(module, params, inputs)
    if made is None:
        return None
    output, part = made
    if isinstance(part, Layer):
        return Chain(output, (Link(part, {name: name for name in params}),))
    return part


def _linearize(
    module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor
) -> tuple[Tensor, Linearization | Layer] | None:
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
    """Whether some parameter is used in two places.

    It has one name there, so the layers could not tell it from a frozen one.
    """
    every = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    return len(every) > len(set(every))


def _chain(module: nn.Sequential, params: Mapping[str, Tensor], inputs: Tensor) -> Chain | None:
    links: list[Link] = []
    output = inputs
    for name, child in module._modules.items():  # `named_children` leaves out a layer that is used a second time
        assert child is not None
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)}
        made = _linearize(child, own, output)
        if made is None:
            return None
        output, part = made
        links.append(Link(part, {key: prefix + key for key in own}))
    if sum(len(link.names) for link in links) < len(params):  # some belong to no layer
        return None
    return Chain(output, tuple(links))


@dataclass(frozen=True)
class Link:
    """One layer of a chain; `names` maps its parameters to their names in the chain."""

    part: Linearization | Layer
    names: Mapping[str, str]

    @property
    def fresh(self) -> bool:
        """Whether its tangents and cotangents are new tensors, free to be overwritten by the next layer."""
        return getattr(self.part, "fresh", False)


@dataclass(frozen=True)
class Chain:
    """Layers one after the other: the chain rule."""

    output: Tensor
    links: tuple[Link, ...]

    @torch.no_grad()
    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """First layer to last; layers before the first moving one are skipped."""
        d, owned = d_inputs, False
        for link in self.links:
            if d is not None and owned and isinstance(link.part, Pointwise):
                link.part.scale_(d)
            elif d is not None or link.names:
                d = link.part.jvp({key: d_params[name] for key, name in link.names.items()}, d)
                owned = link.fresh
        return torch.zeros_like(self.output) if d is None else d

    @torch.no_grad()
    def vjp(self, cotangent: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Last layer to first."""
        gradients: dict[str, Tensor] = {}
        pulled: Tensor | None = cotangent
        owned = False
        for link, onward in self._backwards(want_inputs):
            assert pulled is not None
            if owned and isinstance(link.part, Pointwise):
                link.part.scale_(pulled)
                continue
            parts, pulled = link.part.vjp(pulled, onward)
            owned = link.fresh
            gradients.update({link.names[key]: value for key, value in parts.items()})
        return gradients, pulled if want_inputs else None

    @torch.no_grad()
    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Last layer to first, m cotangents at once."""
        rows: dict[str, Tensor] = {}
        pulled: Tensor | None = seeds
        for link, onward in self._backwards(want_inputs):
            assert pulled is not None
            parts, pulled = link.part.jacobian(pulled, onward)
            rows.update({link.names[key]: value for key, value in parts.items()})
        return rows, pulled if want_inputs else None

    def _backwards(self, want_inputs: bool) -> list[tuple[Link, bool]]:
        """Layers from the last to the first that is needed, and whether the cotangent must go on from there."""
        first = 0
        if not want_inputs:
            first = next((i for i, link in enumerate(self.links) if link.names), len(self.links))
        needed = self.links[first:]
        return [(link, want_inputs or i > 0) for i, link in reversed(list(enumerate(needed)))]
