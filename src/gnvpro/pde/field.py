"""A field u(x) = W phi(x, theta) + bias: a network's features and a linear head, as one nn.Module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_count
from gnvpro.network.evaluation import evaluating
from gnvpro.pde.beside import Beside
from gnvpro.pde.expression_algebra import Algebra, Expression
from gnvpro.pde.expressions import Atom
from gnvpro.pde.features import Domain, Kind
from gnvpro.pde.points import Ball, Box

FIRST = Kind(sines=60, scales=(2.0,))  # before a network is chosen


class Field(nn.Module, Algebra):
    """The unknown of the equations; afterwards a plain PyTorch module with as many outputs as asked for.

    Args:
        features: a domain, `pde.points.Box` or `Ball`, for which `pde.solve` chooses the network and makes it wider while that
            pays; or a module of your own that maps points (n, dimension) to features (n, n_features). The linear head comes
            on top.
        outputs: number of functions u[0], u[1], ... that share these features.
        n_inputs: dimension of the points, if a module does not show it.
        time: number of the coordinate that is time, with a domain.
        periodic: coordinates along which the field is periodic, with a domain; the period is its extent.

    Raises:
        ValueError: the features are not in float64, or do not map points to rows of features; a coordinate does not exist.

    Example:
        >>> from gnvpro import pde
        >>> v = Field(pde.points.Box([0, -1], [1, 1]), time=0, periodic=[1])  # the network is chosen by pde.solve
        >>> import torch, gnvpro
        >>> u = Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
        >>> u(torch.zeros(5, 2, dtype=torch.float64)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        features: nn.Module | Box | Ball,
        outputs: int = 1,
        n_inputs: int | None = None,
        *,
        time: int | None = None,
        periodic: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.domain: Domain | None = None  # if the network is not the user's
        self.chosen = False  # whether its network has been chosen
        self.kind = FIRST  # of its features, if they are not the user's
        if isinstance(features, Box | Ball):
            self.domain = Domain.of(features, time, periodic)
            features = FIRST.build(self.domain, 0)
        elif time is not None or periodic:
            raise ValueError("time and periodic go with a domain, as in pde.Field(pde.points.Box(low, high), time=0)")
        if not isinstance(features, nn.Module):
            raise TypeError(
                f"pde.Field takes a domain, such as pde.points.Box([0, 0], [1, 1]), or an nn.Module that maps points to "
                f"features; got {type(features).__name__}"
            )
        check_count("outputs", outputs, 1)
        wrong = {p.dtype for p in features.parameters()} - {torch.float64}
        if wrong:
            raise ValueError(
                f"the features are in {wrong.pop()}; equations need float64: call .double() on the network"
            )
        if self.domain is not None:
            n_inputs = self.domain.dimension
        self.n_inputs = _dimension(features) if n_inputs is None else n_inputs
        device = next((p.device for p in features.parameters()), torch.device("cpu"))
        with torch.no_grad(), evaluating(features):
            sample = features(torch.zeros(2, self.n_inputs, dtype=torch.float64, device=device))
        if sample.dim() != 2 or sample.shape[0] != 2:
            raise ValueError(
                f"the features must map points (n, {self.n_inputs}) to (n, n_features); "
                f"for 2 points they gave shape {tuple(sample.shape)}"
            )
        self._hold(features, torch.zeros(outputs, sample.shape[1] + 1, dtype=torch.float64, device=device))

    def _hold(self, features: nn.Module, W: Tensor) -> None:
        self.features = features
        self.head = nn.Linear(W.shape[1] - 1, W.shape[0], dtype=torch.float64, device=W.device)
        self.store_head(W)

    def take(self, features: nn.Module, W: Tensor) -> None:
        """Replace the network and the head."""
        self._hold(features, W)
        self.chosen = True

    def widen(self, more: nn.Module) -> None:
        """Append more features, with heads of zero: the values stay."""
        W = self.W()
        parts = self.features.parts if isinstance(self.features, Beside) else [self.features]
        added = more(W.new_zeros(1, self.n_inputs)).shape[1]
        self._hold(Beside(*parts, more), torch.cat([W[:, :-1], W.new_zeros(len(W), added), W[:, -1:]], 1))

    @property
    def outputs(self) -> int:
        """Number of functions."""
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
    for module in features.modules():
        inner: Any = getattr(module, "n_inputs", None)
        if isinstance(inner, int):
            return inner
        if isinstance(module, nn.Linear):
            return module.in_features
    raise ValueError("how many coordinates a point has cannot be seen from the features; say n_inputs=")
