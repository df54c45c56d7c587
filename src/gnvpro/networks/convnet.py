"""The CIFAR-10 network of the paper: two convolutions, average pooling, a linear head.

    image (3, 32, 32) -> conv 5x5, ReLU -> average 2x2 -> conv 5x5, ReLU -> average 16x16 -> features -> Linear

Convolutions keep the image size and have no bias; with channels (32, 64) they hold 2,400 + 51,200 = 53,600 weights.
"""

from __future__ import annotations

import torch
from torch import nn

from gnvpro.networks.stack import Stack


class ConvNet(Stack):
    """Convolutional classifier of 32 x 32 RGB images, ending in a linear head.

    Args:
        n_classes: number of classes; outputs have the shape (samples, n_classes).
        channels: channels of the two convolutions.
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> ConvNet()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        n_classes: int = 10,
        channels: tuple[int, int] = (32, 64),
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        first, second = channels
        super().__init__(
            nn.Conv2d(3, first, 5, padding=2, bias=False, device=device, dtype=dtype),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(first, second, 5, padding=2, bias=False, device=device, dtype=dtype),
            nn.ReLU(),
            nn.AvgPool2d(16),
            nn.Flatten(),
            nn.Linear(second, n_classes, device=device, dtype=dtype),
        )
        self.n_classes, self.channels = n_classes, (first, second)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw convolutions from Kaiming's uniform distribution (bound sqrt(6 / fan_in)); the head keeps PyTorch's default."""
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            elif isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"n_classes={self.n_classes}, channels={self.channels}"
