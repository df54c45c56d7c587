"""Features side by side: a network, and functions that the solution is known to contain.

    pde.Field(pde.Beside(network, pde.Functions(f)))         u(x) = W [phi(x, theta), f(x)] + bias

The weight of a known function is an extra number of the head, so it is eliminated with the rest. At the corner of an
L such a function is r^(2/3) cos(2/3 angle), which no smooth network can approximate well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gnvpro.pde.forward_jets import AutodiffCarrier
from gnvpro.pde.jet_layers import Collect, JetLayer, LayerPass, Params
from gnvpro.pde.jets import Channels

MAX_KNOWN = 8  # sets of points whose jets are cached


class Functions(nn.Module):
    """Fixed functions of x as features: x (n, dimension) -> (n, how many).

    Args:
        function: maps points (n, dimension) to values (n, how many), with operations that torch differentiates.

    >>> Functions(lambda x: x[:, :1] ** 2)(torch.tensor([[3.0, 0.0]]))
    tensor([[9.]])
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, points: Tensor) -> Tensor:
        """Return their values."""
        return self.function(points)


class Beside(nn.Module):
    """The features of several modules, one after the other.

    Args:
        parts: modules that map points (n, dimension) to features (n, how many).

    >>> Beside(nn.Linear(2, 3), Functions(lambda x: x))(torch.zeros(4, 2)).shape
    torch.Size([4, 5])
    """

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, points: Tensor) -> Tensor:
        """Return all features."""
        return torch.cat([part(points) for part in self.parts], -1)


@dataclass(frozen=True)
class FunctionsLayer:
    """Jets of fixed functions of x; it must be the first layer."""

    module: Functions
    names: tuple[str, ...] = ()
    known: list[tuple[Tensor, Channels, Tensor]] = field(default_factory=list, repr=False, compare=False)

    def run(self, X: Tensor, values: Params, channels: Channels) -> FunctionsPass:
        """Differentiate automatically, without parameters; cached, because the points of a system recur in every pass."""
        points = X[0]
        for before, derivatives, jet in self.known:
            if derivatives == channels and torch.equal(before, points):
                return FunctionsPass(jet, X)
        jet = AutodiffCarrier(self.module, ()).run({}, points, channels).jet
        self.known.append((points.clone(), channels, jet))
        del self.known[:-MAX_KNOWN]
        return FunctionsPass(jet, X)


@dataclass(frozen=True)
class FunctionsPass:
    """A pass without parameters to differentiate."""

    jet: Tensor
    X: Tensor

    def pull(self, G: Tensor, collect: Collect, wanted: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Return no cotangent: nothing precedes x."""
        return {}, torch.zeros_like(self.X)


@dataclass(frozen=True)
class BesideLayer:
    """Chains that all take the same input."""

    chains: tuple[tuple[JetLayer, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters of all chains."""
        return tuple(name for chain in self.chains for layer in chain for name in layer.names)

    def run(self, X: Tensor, values: Params, channels: Channels) -> BesidePass:
        """Run each chain separately."""
        passes = []
        for chain in self.chains:
            H, done = X, []
            for layer in chain:
                done.append(layer.run(H, values, channels))
                H = done[-1].jet
            passes.append(tuple(done))
        return BesidePass(torch.cat([done[-1].jet for done in passes], -1), tuple(passes))


@dataclass(frozen=True)
class BesidePass:
    """The passes of the chains."""

    jet: Tensor
    chains: tuple[tuple[LayerPass, ...], ...]

    def pull(self, G: Tensor, collect: Collect, wanted: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Give each chain its part of the cotangent."""
        rows: dict[str, Tensor] = {}
        into: list[Tensor] = []
        parts = G.split([chain[-1].jet.shape[-1] for chain in self.chains], -1)
        for chain, part in zip(self.chains, parts, strict=True):
            for passed in reversed(chain):
                found, part = passed.pull(part, collect, wanted)
                rows |= found
            into.append(part)
        return rows, torch.stack(into).sum(0)
