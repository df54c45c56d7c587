"""Multilayer perceptron: Linear layers, each followed by a pointwise activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gnvpro.networks.stack import Stack


class MLP(Stack):
    """Linear + activation layers of the given widths; with `n_outputs`, a linear head at the end.

    Args:
        n_inputs: count of numbers per sample; inputs have the shape (samples, n_inputs).
        widths: width of each hidden layer.
        activation: makes the activation behind each hidden layer.
        n_outputs: outputs of the linear head. Default: no head; outputs are features (samples, widths[-1]).
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> MLP(2, [4, 4], n_outputs=1)(torch.zeros(5, 2)).shape
    torch.Size([5, 1])
    """

    def __init__(
        self,
        n_inputs: int,
        widths: Sequence[int],
        activation: Callable[[], nn.Module] = nn.Tanh,
        n_outputs: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        layers: list[nn.Module] = []
        for fan_in, width in zip((n_inputs, *widths), widths, strict=False):
            layers += [nn.Linear(fan_in, width, device=device, dtype=dtype), activation()]
        if n_outputs is not None:
            fan_in = widths[-1] if widths else n_inputs
            layers.append(nn.Linear(fan_in, n_outputs, device=device, dtype=dtype))
        super().__init__(*layers)
        self.n_inputs, self.widths, self.n_outputs = n_inputs, tuple(widths), n_outputs

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"n_inputs={self.n_inputs}, widths={self.widths}, n_outputs={self.n_outputs}"
