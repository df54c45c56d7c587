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

from torch import Tensor

from gnvpro.network.derivatives.blocks import OuterBlock

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
