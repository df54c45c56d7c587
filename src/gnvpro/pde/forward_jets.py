"""Jets of any module by forward-mode automatic differentiation, and a vectorised backward pass for each point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro.pde.forward import along_axis
from gnvpro.pde.jets import Channel, Channels, Laplacian

Params = dict[str, Tensor]


@dataclass(frozen=True)
class AutodiffCarrier:
    """Carries jets through any module whose rows are independent of one another."""

    features: nn.Module
    names: tuple[str, ...]

    def run(self, params: Params, points: Tensor, channels: Channels) -> AutodiffPass:
        """Run nested forward mode."""
        with torch.no_grad():
            jet = torch.stack([self.derivative(params, points, channel) for channel in channels.keys])
        return AutodiffPass(jet, self, params, points, channels)

    def derivative(self, params: Params, points: Tensor, channel: Channel) -> Tensor:
        """Return one channel of the features."""
        if isinstance(channel, Laplacian):
            return torch.stack([self.derivative(params, points, (i, i)) for i in channel.axes]).sum(0)

        def differentiated(x: Tensor, axes: tuple[int, ...]) -> Tensor:
            if not axes:
                return torch.func.functional_call(self.features, params, (x,))
            return along_axis(lambda y: differentiated(y, axes[1:]), x, axes[0])

        return differentiated(points, channel)


@dataclass(frozen=True)
class AutodiffPass:
    """Everything needed to differentiate the jet again in theta."""

    jet: Tensor
    carrier: AutodiffCarrier
    params: Params
    points: Tensor
    channels: Channels

    def jacobian(self, G: Tensor) -> Tensor:
        """Return one backward pass for each point, vectorised."""
        trained = {name: self.params[name] for name in self.carrier.names}

        def row(values: Params, point: Tensor, g: Tensor) -> Tensor:
            jets = [self.carrier.derivative(values, point[None], channel)[0] for channel in self.channels.keys]
            return (torch.stack(jets) * g).sum()

        gradients = torch.func.vmap(torch.func.grad(row), in_dims=(None, 0, 1))(trained, self.points, G)
        rows = [gradients[name].reshape(len(self.points), -1) for name in self.carrier.names]
        return torch.cat(rows, 1).detach()

    def gradient(self, G: Tensor) -> Tensor:
        """Return the sum of the rows."""
        return self.jacobian(G).sum(0)
