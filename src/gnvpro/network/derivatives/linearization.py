"""Protocols for the derivatives of a layer and of a network, and the blocks of per-sample Jacobians.

    jvp        d_output   = J_params d_params + J_inputs d_inputs       one direction, forward
    vjp        (J_params' c, J_inputs' c)                               one cotangent, backward
    jacobian   the same for m cotangents per sample, sample by sample   what the exact Gauss-Newton step needs

A per-sample Jacobian is parameter-major: (numel, m, n) for m seeds and n samples. The derivative in the weight (o,
i) of a linear layer is a product, g[o, m, n] x[i, n]. An `OuterBlock` keeps the factors, which takes o m n + i n
numbers instead of o i m n, and makes sums over seeds and samples m times cheaper (see `blocks`). Other layers return
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class OuterBlock:
    """The rows g[o] x[i] of a Jacobian, (o i, m, n), as factors.

    With a bias the last x is one everywhere, and its rows g[o] come after those of the weight.
    """

    g: Tensor  # (o, m, n)
    x: Tensor  # (i, n)
    bias: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the product."""
        return (len(self.g) * len(self.x), self.g.shape[1], self.g.shape[2])

    def dense(self) -> Tensor:
        """Return the product."""
        return self.in_order(self.g[:, None] * self.x[:, None])

    def in_order(self, values: Tensor) -> Tensor:
        """Return values for (o, i) in the order of the rows."""
        return torch.cat([values[:, :-1].flatten(0, 1), values[:, -1]]) if self.bias else values.flatten(0, 1)

    def with_bias(self) -> OuterBlock:
        """Return the block with rows g[o] for a bias of the same layer."""
        return OuterBlock(self.g, torch.cat([self.x, torch.ones_like(self.x[:1])]), bias=True)

    def to(self, like: Tensor) -> OuterBlock:
        """Return the block in the dtype of another tensor."""
        return OuterBlock(self.g.to(like), self.x.to(like), self.bias)


Block = Tensor | OuterBlock
Rows = Mapping[str, Block | list[OuterBlock]]  # by parameter; a list if its rows come from several layers
Gradients = tuple[dict[str, Tensor], Tensor | None]


class Layer(Protocol):
    """Derivative of a module at a point; the first axis of inputs and outputs counts samples."""

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Return the directional derivative; `d_inputs` None means that the inputs do not move."""

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Transpose of `jvp`: gradients by parameter, and the cotangent of the inputs if wanted."""

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Return per-sample derivatives (numel, m, n) of seeds (m, n, *output), and the seeds pulled back to the inputs."""


class Linearization(Layer, Protocol):
    """A layer derivative together with the output: the result of a module's own `linearize(params, inputs)`."""

    @property
    def output(self) -> Tensor:
        """Value at the point."""


@dataclass(frozen=True)
class FeatureLinearization:
    """Features at one theta, and their Jacobian there, by chunks of samples."""

    features: Tensor  # (rows, n_features), in the network's dtype
    jvp: Callable[[Tensor], Tensor]
    vjp: Callable[[Tensor], Tensor]
    # seeds (m, rows, n_features) -> by chunks: which rows, and their (numel, m, rows) by parameter; m passes in all
    jacobian: Callable[[Tensor], Iterator[tuple[slice, Rows]]]
    free: Callable[[], None] = lambda: None  # frees the forward pass; it is repeated when needed
    depends: bool = True  # True if the features depend on theta at all
    parts: Any = None  # for samples that are not held in memory: the same for each chunk, as `gnvpro.linalg.rows.Rows`
