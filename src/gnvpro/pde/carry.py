"""The features of a network with their derivatives in x, and the derivative of both in theta.

`Carrier.run` maps points and channels to the features' jet H (channels, points, features). `Pass.jacobian` maps a
cotangent G of that shape to one row for each point,

    J[i] = d/d theta  sum_{c, f} G[c, i, f] H[c, i, f]                         (points, n_theta)

This is all that Gauss-Newton steps need, because an equation has one residual for each point.

Chains of linear layers, smooth activations, ResNet and NeuralODE use formulas (see `jets`, `layers`, `flows`), all
other modules automatic differentiation (see `autodiff`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gnvpro.networks import NeuralODE, ResNet
from gnvpro.networks.flow import Flow
from gnvpro.pde.beside import Beside, BesideLayer, Functions, FunctionsLayer
from gnvpro.pde.flows import FlowLayer
from gnvpro.pde.forward_jets import AutodiffCarrier
from gnvpro.pde.jet_layers import ByPoint, Collect, JetLayer, LayerPass, Summed, simple_layer
from gnvpro.pde.jets import Channels

Params = dict[str, Tensor]


class Pass(Protocol):
    """The result of a pass over points."""

    @property
    def jet(self) -> Tensor:
        """The jet H."""

    def jacobian(self, G: Tensor) -> Tensor:
        """Return the rows (points, n_theta)."""

    def gradient(self, G: Tensor) -> Tensor:
        """Return the sum of the rows, (n_theta,)."""


class Carrier(Protocol):
    """Runs the features on points."""

    def run(self, params: Params, points: Tensor, channels: Channels) -> Pass:
        """Return the features' jet at these parameters, given by name."""


def carrier_for(features: nn.Module, names: Sequence[str]) -> Carrier:
    """Return formulas if every layer has one, else automatic differentiation; `names` are the parameters to train."""
    layers = _layers(features, "", takes_x=True)
    shared = len({id(p) for p in features.parameters()}) < sum(
        1 for _ in features.named_parameters(remove_duplicate=False)
    )
    if layers is None or shared:
        return AutodiffCarrier(features, tuple(names))
    return ChainCarrier(tuple(layers), tuple(names), {n: p.detach() for n, p in features.named_parameters()})


@dataclass(frozen=True)
class ChainCarrier:
    """Layers in sequence, by formulas."""

    layers: tuple[JetLayer, ...]
    names: tuple[str, ...]
    frozen: Params  # values of parameters that are not trained

    @torch.no_grad()
    def run(self, params: Params, points: Tensor, channels: Channels) -> ChainPass:
        """Run one pass forward."""
        values = {**self.frozen, **params}
        passes: list[LayerPass] = []
        H = channels.of_inputs(points)
        for layer in self.layers:
            passes.append(layer.run(H, values, channels))
            H = passes[-1].jet
        return ChainPass(H, tuple(passes), self.names)


@dataclass(frozen=True)
class ChainPass:
    """The jets between the layers."""

    jet: Tensor
    passes: tuple[LayerPass, ...]
    names: tuple[str, ...]

    def jacobian(self, G: Tensor) -> Tensor:
        """Run one pass backward, down to the first trained layer."""
        rows = self._pull(G, ByPoint())
        return torch.cat([rows[name].reshape(G.shape[1], -1) for name in self.names], 1)

    def gradient(self, G: Tensor) -> Tensor:
        """Run the same pass, summed over the points on the way."""
        sums = self._pull(G, Summed())
        return torch.cat([sums[name].reshape(-1) for name in self.names])

    @torch.no_grad()
    def _pull(self, G: Tensor, collect: Collect) -> dict[str, Tensor]:
        rows: dict[str, Tensor] = {}
        for passed in reversed(self.passes):
            if len(rows) == len(self.names):
                break
            found, G = passed.pull(G, collect, self.names)
            rows |= found
        return rows


def _layers(module: nn.Module, prefix: str, takes_x: bool) -> list[JetLayer] | None:
    """Return the layers of a chain, first to last; None if a module has no formula."""
    if module._forward_hooks or module._forward_pre_hooks:  # hooks may change the result
        return None
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return _chain(module._modules, prefix, takes_x)
    if type(module) is Beside:
        chains = [_layers(part, f"{prefix}parts.{i}.", takes_x) for i, part in enumerate(module.parts)]
        whole = [tuple(chain) for chain in chains if chain]
        return [BesideLayer(tuple(whole))] if whole and len(whole) == len(chains) else None
    if type(module) is Functions:
        return [FunctionsLayer(module)] if takes_x else None
    if type(module) in (ResNet, NeuralODE):
        assert isinstance(module, Flow)
        return [FlowLayer(module, prefix)]
    layer = simple_layer(module, prefix)
    return None if layer is None else [layer]


def _chain(modules: Mapping[str, nn.Module | None], prefix: str, takes_x: bool) -> list[JetLayer] | None:
    layers: list[JetLayer] = []
    for name, child in modules.items():
        inside = None if child is None else _layers(child, f"{prefix}{name}.", takes_x and not layers)
        if inside is None:
            return None
        layers += inside
    return layers
