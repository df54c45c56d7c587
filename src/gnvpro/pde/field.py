"""A field u(x) = W phi(x, theta) + bias: a network's features and a linear head, as one nn.Module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_count
from gnvpro.network.evaluation import evaluating
from gnvpro.pde.algebra import Algebra, Expression
from gnvpro.pde.expressions import Atom


class Field(nn.Module, Algebra):
    """The unknown of the equations; afterwards a plain PyTorch module with as many outputs as asked for.

    Args:
        features: maps points (n, dimension) to features (n, n_features); the linear head comes on top.
        outputs: how many functions u[0], u[1], ... share these features.
        n_inputs: the dimension of the points, where the features do not tell it.

    Raises:
        ValueError: the features are not in float64, or do not map points to rows of features.

    Example:
        >>> import torch, gnvpro
        >>> u = Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
        >>> u(torch.zeros(5, 2, dtype=torch.float64)).shape
        torch.Size([5, 1])
    """

    def __init__(self, features: nn.Module, outputs: int = 1, n_inputs: int | None = None) -> None:
        super().__init__()
        if not isinstance(features, nn.Module):
            raise TypeError(f"pde.Field takes an nn.Module that maps points to features, got {type(features).__name__}")
        check_count("outputs", outputs, 1)
        wrong = {p.dtype for p in features.parameters()} - {torch.float64}
        if wrong:
            raise ValueError(
                f"the features are in {wrong.pop()}; equations need float64: call .double() on the network"
            )
        self.n_inputs = _dimension(features) if n_inputs is None else n_inputs
        device = next((p.device for p in features.parameters()), torch.device("cpu"))
        with torch.no_grad(), evaluating(features):
            sample = features(torch.zeros(2, self.n_inputs, dtype=torch.float64, device=device))
        if sample.dim() != 2 or sample.shape[0] != 2:
            raise ValueError(
                f"the features must map points (n, {self.n_inputs}) to (n, n_features); "
                f"for 2 points they gave shape {tuple(sample.shape)}"
            )
        self.features = features
        self.head = nn.Linear(sample.shape[1], outputs, dtype=torch.float64, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def outputs(self) -> int:
        """How many functions it holds."""
        return self.head.out_features

    def forward(self, points: Tensor) -> Tensor:
        """The values at points, (n, outputs)."""
        return self.head(self.features(points))

    def __getitem__(self, output: int) -> Expression:
        if isinstance(output, bool) or not isinstance(output, int):
            raise TypeError(f"an output of the field is a whole number, as in u[0], got {output!r}")
        if not -self.outputs <= output < self.outputs:
            raise IndexError(f"the field has {self.outputs} outputs, there is no u[{output}]")
        return Atom(self, output % self.outputs, ())

    def expression(self) -> Expression:
        """The only output."""
        if self.outputs != 1:
            raise ValueError(f"the field has {self.outputs} outputs: say which one, as in u[0]")
        return Atom(self, 0, ())

    def W(self) -> Tensor:
        """The head (outputs, n_features + 1), the bias as last column."""
        return torch.cat([self.head.weight.detach(), self.head.bias.detach()[:, None]], 1)

    @torch.no_grad()
    def store_head(self, W: Tensor) -> None:
        """Write a head into the module."""
        self.head.weight.copy_(W[:, :-1])
        self.head.bias.copy_(W[:, -1])


def _dimension(features: nn.Module) -> int:
    own: Any = getattr(features, "n_inputs", None)
    if isinstance(own, int):
        return own
    for module in features.modules():
        inner: Any = getattr(module, "n_inputs", None)
        if isinstance(inner, int):
            return inner
        if isinstance(module, nn.Linear):
            return module.in_features
    raise ValueError("how many coordinates a point has cannot be seen from the features; say n_inputs=")
