"""Layers with formulas for jets: forward with all derivatives in x, backward with the rows of their parameters.

A layer maps the jet X that enters it to the jet that leaves it (`LayerPass.jet`). Backward it maps the cotangent G
of the second to one of the first, and collects the parts of its parameters on the way. For a linear layer X -> X V'
+ b

    row of V at a point = sum_c G_c X_c'         row of b = G_()          G of the inputs = G V         c: channels

`Collect` decides whether rows are kept point by point (a Jacobian) or summed (a gradient).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from gnvpro.pde.activations import Derivatives, derivatives_of
from gnvpro.pde.embedding import Periodic
from gnvpro.pde.jets import ActivatedJet, Channels

Params = Mapping[str, Tensor]


class Collect(ABC):
    """Treatment of the cotangents at a layer's parameters."""

    @abstractmethod
    def of_weight(self, G: Tensor, X: Tensor) -> Tensor:
        """Return sum_c G_c X_c'."""

    @abstractmethod
    def of_bias(self, G: Tensor) -> Tensor:
        """Return the cotangent of the value."""


class ByPoint(Collect):
    """Collects a row for each point: (points, outputs, inputs) and (points, outputs)."""

    def of_weight(self, G: Tensor, X: Tensor) -> Tensor:
        """Return outer products, summed over the channels."""
        if len(G) == 1:
            return G[0][:, :, None] * X[0][:, None]
        return G.permute(1, 2, 0) @ X.permute(1, 0, 2)

    def of_bias(self, G: Tensor) -> Tensor:
        """Return the cotangent unchanged."""
        return G[0]


class Summed(Collect):
    """Sums over the points: (outputs, inputs) and (outputs,)."""

    def of_weight(self, G: Tensor, X: Tensor) -> Tensor:
        """Return one product over channels and points."""
        return G.flatten(0, 1).T @ X.flatten(0, 1)

    def of_bias(self, G: Tensor) -> Tensor:
        """Return the sum."""
        return G[0].sum(0)


class LayerPass(Protocol):
    """The result of a pass through a layer."""

    @property
    def jet(self) -> Tensor:
        """The jet after the layer."""

    def pull(self, G: Tensor, collect: Collect, wanted: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Return the collected parts of the wanted parameters, by name, and the cotangent of the inputs."""


class JetLayer(Protocol):
    """A layer."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its parameters."""

    def run(self, X: Tensor, values: Params, channels: Channels) -> LayerPass:
        """Run forward."""


# -- linear


@dataclass(frozen=True)
class LinearJetLayer:
    """The map X -> X V' + b, with the bias on the value alone."""

    names: tuple[str, ...]  # weight, and bias if there is one

    def run(self, X: Tensor, values: Params, channels: Channels) -> LinearPass:
        """Apply the map to every channel alike."""
        V = values[self.names[0]]
        H = X @ V.T
        if len(self.names) == 2:
            H[0] += values[self.names[1]]
        return LinearPass(H, X, V, self.names)


@dataclass(frozen=True)
class LinearPass:
    """The jets on both sides."""

    jet: Tensor
    X: Tensor
    V: Tensor
    names: tuple[str, ...]

    def pull(self, G: Tensor, collect: Collect, wanted: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Return outer products, and G V."""
        rows = {}
        if self.names[0] in wanted:
            rows[self.names[0]] = collect.of_weight(G, self.X)
        if self.names[-1] in wanted and len(self.names) == 2:
            rows[self.names[1]] = collect.of_bias(G)
        return rows, G @ self.V


# -- functions of each entry


@dataclass(frozen=True)
class Activation:
    """A function of each entry, after a fixed linear map if the layer is `Periodic`."""

    derivatives: Derivatives
    names: tuple[str, ...] = ()
    before: Periodic | None = None

    def run(self, X: Tensor, values: Params, channels: Channels) -> ActivationPass:
        """Apply Faa di Bruno's formula."""
        H = X if self.before is None else self.before.phases(X)
        return ActivationPass(ActivatedJet.of(H, self.derivatives, channels), self.before)


@dataclass(frozen=True)
class ActivationPass:
    """The jets and slopes."""

    activated: ActivatedJet
    before: Periodic | None

    @property
    def jet(self) -> Tensor:
        """The jet after the function."""
        return self.activated.output

    def pull(self, G: Tensor, collect: Collect, wanted: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Apply the transposed derivative."""
        pulled = self.activated.pull(G)
        return {}, pulled if self.before is None else pulled @ self.before.matrix


def simple_layer(module: nn.Module, prefix: str) -> JetLayer | None:
    """Return a linear layer, an activation or a periodic layer; None for any other module."""
    if type(module) is nn.Linear:
        names = ("weight",) if module.bias is None else ("weight", "bias")
        return LinearJetLayer(tuple(prefix + name for name in names))
    if type(module) is Periodic:
        return Activation(module.derivatives, before=module)
    derivatives = derivatives_of(module)
    return None if derivatives is None else Activation(derivatives)
