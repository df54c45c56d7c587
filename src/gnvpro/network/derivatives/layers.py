"""Derivatives of single layers, each at a point; `gnvpro.rules` makes them from modules.

    linear     y = x w^T + b       dy = dx w^T + x dw^T + db         gradients  c^T x,  sum c,   pulled back  c w
    convolve   y = w * x + b       dy = w * dx + dw * x + db         its two transposes
    pointwise  y = f(x)            dy = f'(x) dx                     c f'(x)
    the rest (pooling, reshaping, nothing) is linear in x and has no parameters

Only what can be different from zero is asked for: something moves in every `jvp`. Layers do not hold their outputs, which
the next layer holds as its inputs; nor do they switch gradients off, which whoever runs the chain does once.

Per-sample Jacobians are parameter-major, (numel, m, n). Between layers of features the seeds (m, n, features) are
stored features first, so that the permutations below cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnvpro.linalg.columns import matmul_small

Gradients = tuple[dict[str, Tensor], Tensor | None]


@dataclass(frozen=True)
class LinearLayer:
    """nn.Linear on inputs (n, ..., in)."""

    inputs: Tensor
    weight: Tensor
    trainable: frozenset[str]
    fresh: ClassVar[bool] = True  # results never share memory with arguments

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """dx w' + x dw' + db."""
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

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> Gradients:
        """Outer products of seeds and inputs; axes between sample and feature are summed."""
        m, n = seeds.shape[:2]
        rows = {}
        if seeds.dim() == 3:
            g = seeds.permute(2, 0, 1).contiguous()
            if "weight" in self.trainable:
                rows["weight"] = (g[:, None] * self.inputs.T.contiguous()[:, None]).reshape(-1, m, n)
            if "bias" in self.trainable:
                rows["bias"] = g
            pulled = (self.weight.T @ g.view(len(g), -1)).view(-1, m, n).permute(1, 2, 0) if want_inputs else None
            return rows, pulled
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
    fresh: ClassVar[bool] = True

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
        """w * dx + dw * x + db."""
        d_weight, d_bias = d_params.get("weight"), d_params.get("bias")
        if d_weight is not None and d_inputs is not None and self.groups == 1:
            # One convolution on twice the channels is faster than two and an addition.
            both = torch.cat((d_inputs, self.inputs), dim=1)
            return self._convolve(both, torch.cat((self.weight, d_weight), dim=1), d_bias)
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

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> Gradients:
        """Products of seeds and image patches, summed over the positions."""
        m, n = seeds.shape[:2]
        rows = {}
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
    fresh: ClassVar[bool] = True

    def scale_(self, d: Tensor) -> Tensor:
        """f'(x) d in place, for tangents and cotangents nobody else holds."""
        return d.mul_(self.slope)

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """f'(x) dx."""
        assert d_inputs is not None
        return d_inputs * self.slope

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """f'(x) c."""
        return {}, cotangent * self.slope if want_inputs else None

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> Gradients:
        """f'(x) seeds."""
        if not want_inputs:
            return {}, None
        if seeds.dim() == 3:  # multiply where the seeds are stored features first
            g = seeds.permute(2, 0, 1).contiguous()
            return {}, (g * self.slope.T.contiguous()[:, None]).permute(1, 2, 0)
        return {}, seeds * self.slope


@dataclass(frozen=True)
class Fixed:
    """A layer without parameters that is linear in its inputs: `forward`, and `backward` on cotangents (k, ...)."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]
    fresh: bool

    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """The layer itself."""
        assert d_inputs is not None
        return self.forward(d_inputs)

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> Gradients:
        """Its transpose."""
        return {}, self.backward(cotangent) if want_inputs else None

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> Gradients:
        """Its transpose, on the seeds of all samples as if each were a sample."""
        if not want_inputs:
            return {}, None
        return {}, self.backward(seeds.flatten(0, 1)).unflatten(0, seeds.shape[:2])
