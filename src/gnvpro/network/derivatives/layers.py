"""Derivatives of single layers, each at a point; `rules` makes them from modules.

    linear      y = x w' + b         dy = dx w' + x dw' + db          gradients  c' x,  sum c,   pulled back  c w
    convolve    y = w * x + b        dy = w * dx + dw * x + db        its two transposes
    pointwise   y = f(x)             dy = f'(x) dx                    c f'(x)
    normalise   y = w N(x) + b       dy = w N'(x) dx + N(x) dw + db   N' is its own transpose
    the rest (pooling, reshaping, nothing) has no parameters, and a derivative that is a fixed linear map

Callers request only what can be nonzero: something moves in every `jvp`. Layers do not store their outputs, which
the next layer stores as its inputs. They do not switch gradients off either; the caller does that once for the
chain.

Between layers of features the seeds (m, n, features) are stored features first, so that the permutations below cost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.linalg.columns import matmul_small
from gnvpro.network.derivatives.blocks import OuterBlock
from gnvpro.network.derivatives.linearization import Block, Gradients, Rows


@dataclass(frozen=True)
class LinearLayer:
    """nn.Linear on inputs (n, ..., in)."""

    inputs: Tensor
    weight: Tensor
    trainable: frozenset[str]

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Return dx w' + x dw' + db."""
        flat = self.inputs.reshape(-1, self.inputs.shape[-1])
        d_weight, d_bias = d_params.get("weight"), d_params.get("bias")
        d: Tensor | None = None
        if d_weight is not None:
            d = matmul_small(flat, d_weight.T, d_bias)
        elif d_bias is not None:
            d = d_bias[:, None].expand(-1, len(flat)).clone().T
        if d_inputs is not None:
            moved = d_inputs.reshape(flat.shape)
            d = matmul_small(moved, self.weight.T) if d is None else d.T.addmm_(self.weight, moved.T).T
        assert d is not None
        return d.view(*self.inputs.shape[:-1], -1)

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Transpose of `jvp`."""
        c = cotangent.reshape(-1, cotangent.shape[-1])
        gradients = {}
        if "weight" in self.trainable:
            gradients["weight"] = c.T @ self.inputs.reshape(-1, self.inputs.shape[-1])
        if "bias" in self.trainable:
            gradients["bias"] = c.sum(0)
        return gradients, matmul_small(c, self.weight).view(self.inputs.shape) if want_inputs else None

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Return outer products of seeds and inputs; axes between sample and feature are summed."""
        m, n = seeds.shape[:2]
        rows: dict[str, Block] = {}
        if seeds.dim() == 3:
            g = seeds.permute(2, 0, 1).contiguous()
            if "weight" in self.trainable:
                rows["weight"] = OuterBlock(g, self.inputs.T.contiguous())
            if "bias" in self.trainable:
                rows["bias"] = g
            return rows, (self.weight.T @ g.flatten(1)).view(-1, m, n).permute(1, 2, 0) if want_inputs else None
        g = seeds.reshape(m, n, -1, seeds.shape[-1])
        if "weight" in self.trainable:
            x = self.inputs.reshape(n, -1, self.inputs.shape[-1])
            rows["weight"] = torch.einsum("mnto,nti->oimn", g, x).reshape(-1, m, n)
        if "bias" in self.trainable:
            rows["bias"] = g.sum(2).permute(2, 0, 1)
        return rows, seeds @ self.weight if want_inputs else None


@dataclass(frozen=True)
class ConvLayer:
    """nn.Conv2d with zero padding on inputs (n, channels, height, width)."""

    inputs: Tensor
    weight: Tensor
    trainable: frozenset[str]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def _transpose(self, cotangent: Tensor, inputs: Tensor, want_inputs: bool, want_weight: bool) -> tuple[Any, Any]:
        d_inputs, d_weight, _ = torch.ops.aten.convolution_backward(
            cotangent,
            inputs,
            self.weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0, 0],
            self.groups,
            [want_inputs, want_weight, False],
        )
        return d_inputs, d_weight

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Return w * dx + dw * x + db."""
        d_weight, d_bias = d_params.get("weight"), d_params.get("bias")
        if d_inputs is None:
            return self._convolve(self.inputs, torch.zeros_like(self.weight) if d_weight is None else d_weight, d_bias)
        if d_weight is None:
            return self._convolve(d_inputs, self.weight, d_bias)
        return self._convolve(d_inputs, self.weight, d_bias).add_(self._convolve(self.inputs, d_weight))

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Transpose of `jvp`."""
        want_weight = "weight" in self.trainable
        gradients: dict[str, Tensor] = {}
        d_inputs = None
        if want_inputs or want_weight:
            d_inputs, d_weight = self._transpose(cotangent, self.inputs, want_inputs, want_weight)
            if want_weight:
                gradients["weight"] = d_weight
        if "bias" in self.trainable:
            gradients["bias"] = cotangent.sum((0, 2, 3))
        return gradients, d_inputs

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Return products of seeds and image patches, summed over the positions."""
        m, n = seeds.shape[:2]
        rows: dict[str, Block] = {}
        if "weight" in self.trainable:
            kernel = self.weight.shape[2:]
            patches = nn.functional.unfold(self.inputs, kernel, self.dilation, self.padding, self.stride)
            x = patches.reshape(n, self.groups, -1, patches.shape[-1])
            g = seeds.reshape(m, n, self.groups, -1, patches.shape[-1])
            rows["weight"] = torch.einsum("mngol,ngkl->gokmn", g, x).reshape(-1, m, n)
        if "bias" in self.trainable:
            rows["bias"] = seeds.sum((3, 4)).permute(2, 0, 1).contiguous()
        pulled = None
        if want_inputs:
            # Only the shape of the repeated inputs matters here.
            many = self.inputs.new_empty(m * n, *self.inputs.shape[1:])
            pulled, _ = self._transpose(seeds.reshape(m * n, *seeds.shape[2:]), many, True, False)
            pulled = pulled.view(m, n, *self.inputs.shape[1:])
        return rows, pulled


@dataclass(frozen=True)
class Pointwise:
    """A pointwise activation; `slope` is f'(inputs), a bool mask for ReLU."""

    slope: Tensor

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Return f'(x) dx."""
        assert d_inputs is not None
        return d_inputs * self.slope

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Return f'(x) c."""
        return {}, cotangent * self.slope if want_inputs else None

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Return f'(x) seeds."""
        return {}, seeds * self.slope if want_inputs else None


@dataclass(frozen=True)
class NormLayer:
    """A normalisation, then a weight and a bias: y = w N(x) + b, with N' symmetric."""

    normalised: Tensor  # N(x), (n, ...)
    weight: Tensor  # in a shape that broadcasts with a sample
    shape: torch.Size  # of weight and bias as parameters
    trainable: frozenset[str]
    slope: Callable[[Tensor], Tensor]  # N'(x), applied to tangents (..., n, ...) of any number of leading axes

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Return w N'(x) dx + N(x) dw + db."""
        d = torch.zeros_like(self.normalised) if d_inputs is None else self.weight * self.slope(d_inputs)
        if "weight" in d_params:
            d = d + d_params["weight"].reshape(self.weight.shape) * self.normalised
        return d + d_params["bias"].reshape(self.weight.shape) if "bias" in d_params else d

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Transpose of `jvp`."""
        rows, pulled = self.jacobian(cotangent[None], want_inputs)
        gradients = {name: row.sum((1, 2)).view(self.shape) for name, row in rows.items()}
        return gradients, None if pulled is None else pulled[0]

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return products of seeds and normalised inputs, summed over the positions that share a weight."""
        own = (*seeds.shape[:2], *[1] * (seeds.dim() - 2 - self.weight.dim()), *self.weight.shape)
        rows = {name: seeds * self.normalised if name == "weight" else seeds for name in self.trainable}
        summed = {name: row.sum_to_size(own).flatten(2).permute(2, 0, 1) for name, row in rows.items()}
        return summed, self.slope(self.weight * seeds) if want_inputs else None


@dataclass(frozen=True)
class Fixed:
    """A layer without parameters: its derivative `forward`, and the transpose `backward` on cotangents (m n, ...)."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Apply the linear map."""
        assert d_inputs is not None
        return self.forward(d_inputs)

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Apply its transpose."""
        return {}, self.backward(cotangent) if want_inputs else None

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Apply its transpose to the seeds as if each were a sample."""
        if not want_inputs:
            return {}, None
        return {}, self.backward(seeds.flatten(0, 1)).unflatten(0, seeds.shape[:2])
