"""Rules that map a module, its parameters and its inputs to its output and its derivative in `layers`.

A rule belongs to a forward method, not to a class: a subclass that keeps its parent's forward keeps its rule. A rule
returns None for options without a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.linalg.columns import matmul_small
from gnvpro.network.derivatives.layers import ConvLayer, Fixed, LinearLayer, NormLayer, Pointwise
from gnvpro.network.derivatives.linearization import Layer

Rule = Callable[[Any, Mapping[str, Tensor], Tensor], tuple[Tensor, Layer] | None]


def _linear(module: nn.Linear, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, LinearLayer] | None:
    if inputs.dim() < 2:
        return None
    weight, bias = params.get("weight"), params.get("bias")
    weight = module.weight.detach() if weight is None else weight
    bias = module.bias.detach() if bias is None and module.bias is not None else bias
    if inputs.dim() > 2 or bias is None:
        output = matmul_small(inputs, weight.T) if inputs.dim() == 2 else nn.functional.linear(inputs, weight, bias)
    else:  # as `matmul_small`, which also takes rows out of memory
        output = torch.addmm(bias[:, None], weight, inputs.T).T
    return output, LinearLayer(inputs, weight, frozenset(params))


def _conv2d(module: nn.Conv2d, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, ConvLayer] | None:
    before, after = module._reversed_padding_repeated_twice[::2], module._reversed_padding_repeated_twice[1::2]
    if inputs.dim() != 4 or module.padding_mode != "zeros" or before != after:
        return None
    weight, bias = _weight_and_bias(module, params)
    assert weight is not None
    padding = tuple(reversed(before))  # numbers also for padding="same"
    options = (module.stride, padding, module.dilation, module.groups)
    return torch.conv2d(inputs, weight, bias, *options), ConvLayer(inputs, weight, frozenset(params), *options)


def _avg_pool(module: nn.AvgPool2d, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Fixed] | None:
    if inputs.dim() != 4:
        return None
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    options = (kernel, stride, padding, module.ceil_mode, module.count_include_pad, module.divisor_override)
    shape = inputs.shape[1:]

    def backward(c: Tensor) -> Tensor:
        # The kernel needs the inputs as an argument but reads only their shape.
        like = c.new_empty(len(c), *shape)
        return torch.ops.aten.avg_pool2d_backward(c.contiguous(), like, *options)

    def forward(x: Tensor) -> Tensor:
        return torch.ops.aten.avg_pool2d(x, *options)

    return forward(inputs), Fixed(forward, backward)


def _max_pool(module: nn.MaxPool2d, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Fixed] | None:
    if inputs.dim() != 4 or module.return_indices:
        return None
    sizes = (_pair(size) for size in (module.kernel_size, module.stride, module.padding, module.dilation))
    output, index = torch.ops.aten.max_pool2d_with_indices(inputs, *sizes, module.ceil_mode)
    shape, index = inputs.shape[1:], index.flatten(2)  # position of each maximum in its image

    def backward(c: Tensor) -> Tensor:
        pulled = c.new_zeros(len(c), shape[0], shape[1] * shape[2])
        return pulled.scatter_add_(2, index.repeat(len(c) // len(index), 1, 1), c.flatten(2)).view(-1, *shape)

    return output, Fixed(lambda d: d.flatten(2).gather(2, index).view(output.shape), backward)


def _layer_norm(module: nn.LayerNorm, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, NormLayer] | None:
    if len(module.normalized_shape) >= inputs.dim():  # would merge the samples
        return None
    axes = tuple(range(-len(module.normalized_shape), 0))
    variance, mean = torch.var_mean(inputs, axes, correction=0, keepdim=True)
    scale = (variance + module.eps).rsqrt()
    x = scale * (inputs - mean)

    def slope(d: Tensor) -> Tensor:
        return scale * (d - d.mean(axes, keepdim=True) - x * (x * d).mean(axes, keepdim=True))

    return _affine(module, params, x, module.normalized_shape, slope)


def _batch_norm(module: Any, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, NormLayer] | None:
    """Apply batch normalisation as in evaluation, with the running means and variances."""
    if module.training or module.running_mean is None:
        return None
    shape = (-1, *[1] * (inputs.dim() - 2))
    scale = (module.running_var + module.eps).rsqrt().reshape(shape)
    return _affine(module, params, scale * (inputs - module.running_mean.reshape(shape)), shape, lambda d: scale * d)


def _affine(
    module: nn.Module, params: Mapping[str, Tensor], x: Tensor, shape: Sequence[int], slope: Callable[[Tensor], Tensor]
) -> tuple[Tensor, NormLayer]:
    """Apply weight and bias, which broadcast in that shape, to the normalised x."""
    own, bias = _weight_and_bias(module, params)
    weight = x.new_ones(1) if own is None else own.reshape(shape)
    output = weight * x if bias is None else weight * x + bias.reshape(shape)
    return output, NormLayer(x, weight, (weight if own is None else own).shape, frozenset(params), slope)


def _flatten(module: nn.Flatten, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Fixed] | None:
    if module.start_dim % inputs.dim() == 0:  # would merge the samples
        return None
    shape = inputs.shape[1:]
    return module(inputs), Fixed(module.forward, lambda c: c.reshape(len(c), *shape))


def identity(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Fixed]:
    """Return the inputs."""
    return inputs, Fixed(lambda x: x, lambda c: c)


def _tanh(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Pointwise]:
    y = torch.tanh(inputs)
    return y, Pointwise(1 - y * y)


def _sigmoid(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Pointwise]:
    y = torch.sigmoid(inputs)
    return y, Pointwise(y * (1 - y))


def _relu(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Pointwise]:
    return torch.relu(inputs), Pointwise(inputs > 0)


def _differentiated(module: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Pointwise]:
    """Compute the slope by one backward pass."""
    with torch.enable_grad():
        x = inputs.detach().requires_grad_()
        y = module(x.clone())  # some activations work in place
        (slope,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), Pointwise(slope)


def _weight_and_bias(module: Any, params: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return those given, else the module's own."""
    weight, bias = params.get("weight"), params.get("bias")
    if weight is None and module.weight is not None:
        weight = module.weight.detach()
    if bias is None and module.bias is not None:
        bias = module.bias.detach()
    return weight, bias


def _pair(size: int | tuple[int, int]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.AvgPool2d: _avg_pool,
    nn.MaxPool2d: _max_pool,
    nn.LayerNorm: _layer_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Flatten: _flatten,
    nn.Identity: identity,
    nn.Dropout: identity,
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    nn.ReLU: _relu,
    nn.LeakyReLU: _differentiated,
    nn.ELU: _differentiated,
    nn.SiLU: _differentiated,
    nn.GELU: _differentiated,
    nn.Softplus: _differentiated,
}


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule of a layer, or None."""
    for kind in type(module).__mro__:
        if kind in RULES:
            return RULES[kind] if type(module).forward is kind.forward else None
    return None
