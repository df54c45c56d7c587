"""A user's model as a function that returns features, without the head, with a known derivative.

The model runs unchanged, in its own mode and inside any wrapper; a hook on the head captures its input. The loss is
a number whose derivative in these features is known (`Envelope`); autograd does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.network.find_head import could_be_head
from gnvpro.samples.several import Batch, Several, arguments_of


class Envelope(torch.autograd.Function):
    """A number with a known derivative in the features.

    The derivative is scaled before it is rounded to the features' own precision, because a `GradScaler` is used to
    keep entries that half precision would lose.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, cotangent: Tensor, value: float) -> Tensor:
        """Return the number, in float32 or better."""
        ctx.save_for_backward(cotangent)
        ctx.dtype = features.dtype
        return torch.tensor(value, dtype=torch.promote_types(features.dtype, torch.float32), device=features.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the derivative, times the incoming gradient."""
        (cotangent,) = ctx.saved_tensors
        return (grad * cotangent).to(ctx.dtype), None, None


def named_head(model: nn.Module, name: str | None) -> tuple[str, nn.Module]:
    """Return the layer of that name, or the last one that could be a head."""
    layers = {key: module for key, module in model.named_modules() if could_be_head(module)}
    if not layers:
        raise ValueError(
            "the model has no nn.Linear, or convolution with a kernel of one, that could be its head; end it in one"
        )
    chosen = next(reversed(layers)) if name is None else name
    if chosen not in layers:
        raise ValueError(f"head={name!r} is not a linear layer of the model; it has {', '.join(map(repr, layers))}")
    return chosen, layers[chosen]


def features_of(model: nn.Module, head: nn.Module, inputs: Batch, keep_in_graph: bool = False) -> Tensor:
    """Run the model and return the input of its head.

    DistributedDataParallel needs every parameter to take part, here with a factor 0. A wrapper may run copies of the
    model, so it is made to return the features; any other model may reshape the output of its head.
    """
    given: list[Tensor] = []
    wrapped = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        given.append(args[0] + sum(0.0 * p.sum() for p in module.parameters()) if keep_in_graph else args[0])
        return given[-1] if wrapped else None

    positional, named = arguments_of(inputs)
    handle = head.register_forward_hook(hook)
    try:
        output = model(*positional, **named)
    finally:
        handle.remove()
    if len(given) != 1:
        raise ValueError(
            f"the head ran {len(given)} times in a forward pass, or torch.compile left its hooks out; only a head that runs "
            "once can be eliminated: compile the layers before it, not the whole model"
        )
    return output if wrapped else given[0]


def as_batch(name: str, inputs: Any) -> Batch:
    """Return a model's arguments, samples first, given as a tensor, a tuple or list of them, or a dictionary by name."""
    if isinstance(inputs, Mapping):
        batch: Any = Several((), dict(inputs))
    elif isinstance(inputs, tuple | list):
        batch = Several(tuple(inputs))
    else:
        batch = inputs
    tensors = batch.tensors if isinstance(batch, Several) else [batch]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise ValueError(
            f"{name} must be a tensor of samples, first axis, or a tuple or dictionary of tensors for a model with several "
            f"arguments, got {_told(inputs)}"
        )
    if isinstance(batch, Tensor) and batch.ndim < 2:
        raise ValueError(f"{name} must be a tensor of samples, first axis, got {_told(inputs)}")
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in tensors}
    if len(lengths) > 1:
        raise ValueError(f"{name} have {sorted(lengths)} samples; all arguments of the model must have the same number")
    return batch


def _told(value: object) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}"
    inside = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else []
    return type(value).__name__ + (f" of {', '.join(type(each).__name__ for each in inside)}" if inside else "")
