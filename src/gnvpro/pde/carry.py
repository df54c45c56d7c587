"""The features of a network with their derivatives in x, and the derivative of these in theta.

`Carrier.run` takes points and channels to the features' jet H (channels, points, features). `Pass.jacobian` takes a
cotangent G of that shape to one row for each point,

    J[i] = d/d theta  sum_{c, f} G[c, i, f] H[c, i, f]                         (points, n_theta)

which is all that Gauss-Newton steps need: an equation has one residual for each point.

Chains of linear layers and smooth activations go by formulas (see `jets`): with X the jet that enters a linear layer and G
the cotangent that leaves it, the row of its weight is sum_c G_c X_c'. Anything else goes by forward-mode automatic
differentiation in x and a backward pass for each point, vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gnvpro.pde.activations import Derivatives, derivatives_of
from gnvpro.pde.embedding import Periodic
from gnvpro.pde.forward import along_axis
from gnvpro.pde.jets import ActivatedJet, Channel, Channels, Laplacian

Params = dict[str, Tensor]


class Pass(Protocol):
    """What a pass over points left."""

    @property
    def jet(self) -> Tensor:
        """H."""
        ...

    def jacobian(self, G: Tensor) -> Tensor:
        """(points, n_theta)."""
        ...

    def gradient(self, G: Tensor) -> Tensor:
        """The sum of its rows, (n_theta,)."""
        ...


class Carrier(Protocol):
    """Runs the features on points."""

    def run(self, params: Params, points: Tensor, channels: Channels) -> Pass:
        """The features' jet at these parameters, by name."""
        ...


def carrier_for(features: nn.Module, names: Sequence[str]) -> Carrier:
    """By formulas where every layer has one, else by automatic differentiation; `names` are the parameters to train."""
    layers = _layers(features, "")
    shared = len({id(p) for p in features.parameters()}) < sum(
        1 for _ in features.named_parameters(remove_duplicate=False)
    )
    if layers is None or shared:
        return AutodiffCarrier(features, tuple(names))
    return ChainCarrier(tuple(layers), tuple(names), {n: p.detach() for n, p in features.named_parameters()})


# -- by formulas


@dataclass(frozen=True)
class LinearLayer:
    """X -> X V' + b, the bias on the value alone."""

    prefix: str
    bias: bool


@dataclass(frozen=True)
class Activation:
    """A function of each entry."""

    derivatives: Derivatives


Layer = LinearLayer | Activation | Periodic


def _layers(module: nn.Module, prefix: str) -> list[Layer] | None:
    """The layers of a chain, first to last; None where some module has no formula."""
    if module._forward_hooks or module._forward_pre_hooks:  # they may change what it computes
        return None
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        layers: list[Layer] = []
        for name, child in module._modules.items():
            inside = None if child is None else _layers(child, f"{prefix}{name}.")
            if inside is None:
                return None
            layers += inside
        return layers
    if type(module) is nn.Linear:
        return [LinearLayer(prefix, module.bias is not None)]
    if type(module) is Periodic:
        return [module]
    derivatives = derivatives_of(module)
    return None if derivatives is None else [Activation(derivatives)]


@dataclass(frozen=True)
class ChainCarrier:
    """Layers one after the other."""

    layers: tuple[Layer, ...]
    names: tuple[str, ...]
    frozen: Params  # the module's own values, for parameters that are not trained

    @torch.no_grad()
    def run(self, params: Params, points: Tensor, channels: Channels) -> ChainPass:
        """One pass forward."""
        H = channels.of_inputs(points)
        tape: list[tuple[Layer, Any, Tensor | None]] = []
        derivatives: Derivatives
        values = {**self.frozen, **params}
        for layer in self.layers:
            if isinstance(layer, LinearLayer):
                V, X = values[layer.prefix + "weight"], H
                H = X @ V.T
                if layer.bias:
                    H[0] += values[layer.prefix + "bias"]
                tape.append((layer, X, V))
            else:
                if isinstance(layer, Periodic):
                    H, derivatives = layer.phases(H), layer.derivatives
                else:
                    derivatives = layer.derivatives
                activated = ActivatedJet.of(H, derivatives, channels)
                H = activated.output
                tape.append((layer, activated, None))
        return ChainPass(H, tuple(tape), self.names)


@dataclass(frozen=True)
class ChainPass:
    """The jets between the layers."""

    jet: Tensor
    tape: tuple[tuple[Layer, Any, Tensor | None], ...]
    names: tuple[str, ...]

    def jacobian(self, G: Tensor) -> Tensor:
        """One pass backward, down to the first layer that is trained."""
        rows = self._pull(G, _outer, lambda bias: bias)
        return torch.cat([rows[name].reshape(G.shape[1], -1) for name in self.names], 1)

    def gradient(self, G: Tensor) -> Tensor:
        """The same pass, summed over the points on the way."""
        sums = self._pull(G, lambda g, x: g.flatten(0, 1).T @ x.flatten(0, 1), lambda bias: bias.sum(0))
        return torch.cat([sums[name].reshape(-1) for name in self.names])

    @torch.no_grad()
    def _pull(
        self, G: Tensor, of_weight: Callable[[Tensor, Tensor], Tensor], of_bias: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        wanted, rows = set(self.names), {}
        for layer, kept, V in reversed(self.tape):
            if isinstance(layer, LinearLayer):
                assert V is not None
                weight, bias = layer.prefix + "weight", layer.prefix + "bias"
                if bias in wanted:
                    rows[bias] = of_bias(G[0])
                if weight in wanted:
                    rows[weight] = of_weight(G, kept)
                if len(rows) == len(wanted):
                    break
                G = G @ V
            elif isinstance(layer, Periodic):
                break
            else:
                G = kept.pull(G)
        return rows


def _outer(G: Tensor, X: Tensor) -> Tensor:
    """sum_c G_c X_c' at every point, (points, outputs, inputs)."""
    if len(G) == 1:
        return G[0][:, :, None] * X[0][:, None]
    return G.permute(1, 2, 0) @ X.permute(1, 0, 2)


# -- by automatic differentiation


@dataclass(frozen=True)
class AutodiffCarrier:
    """Any module whose rows do not depend on one another."""

    features: nn.Module
    names: tuple[str, ...]

    def run(self, params: Params, points: Tensor, channels: Channels) -> AutodiffPass:
        """Nested forward mode."""
        with torch.no_grad():
            jet = torch.stack([self.derivative(params, points, channel) for channel in channels.keys])
        return AutodiffPass(jet, self, params, points, channels)

    def derivative(self, params: Params, points: Tensor, channel: Channel) -> Tensor:
        """One channel of the features."""
        if isinstance(channel, Laplacian):
            return torch.stack([self.derivative(params, points, (i, i)) for i in channel.axes]).sum(0)

        def differentiated(x: Tensor, axes: tuple[int, ...]) -> Tensor:
            if not axes:
                return torch.func.functional_call(self.features, params, (x,))
            return along_axis(lambda y: differentiated(y, axes[1:]), x, axes[0])

        return differentiated(points, channel)


@dataclass(frozen=True)
class AutodiffPass:
    """What is needed to differentiate again in theta."""

    jet: Tensor
    carrier: AutodiffCarrier
    params: Params
    points: Tensor
    channels: Channels

    def jacobian(self, G: Tensor) -> Tensor:
        """A backward pass for each point, vectorised."""
        trained = {name: self.params[name] for name in self.carrier.names}

        def row(values: Params, point: Tensor, g: Tensor) -> Tensor:
            jets = [self.carrier.derivative(values, point[None], channel)[0] for channel in self.channels.keys]
            return (torch.stack(jets) * g).sum()

        gradients = torch.func.vmap(torch.func.grad(row), in_dims=(None, 0, 1))(trained, self.points, G)
        rows = [gradients[name].reshape(len(self.points), -1) for name in self.carrier.names]
        return torch.cat(rows, 1).detach()

    def gradient(self, G: Tensor) -> Tensor:
        """The sum of the rows."""
        return self.jacobian(G).sum(0)
