"""A user's model as a function that returns features, with the head left out and a derivative that is known.

The model is run as it is, in its own mode and inside whatever wraps it; a hook on the head hands on what the head is given. The
loss is a number whose derivative in these features is known (`Envelope`); autograd does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.network.find_head import Head


class Envelope(torch.autograd.Function):
    """A number with a known derivative in the features.

    The derivative is scaled before it is rounded to the features' own precision: a `GradScaler` is there to keep
    entries that half precision does not have.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, cotangent: Tensor, value: float) -> Tensor:
        """The number, in float32 at least."""
        ctx.save_for_backward(cotangent)
        ctx.dtype = features.dtype
        return torch.tensor(value, dtype=torch.promote_types(features.dtype, torch.float32), device=features.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The derivative, times what comes from above."""
        (cotangent,) = ctx.saved_tensors
        return (grad * cotangent).to(ctx.dtype), None, None


def named_head(model: nn.Module, name: str | None) -> tuple[str, Head]:
    """The layer of that name, or the last one that could be a head."""
    layers = {
        key: module
        for key, module in model.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))
    }
    if not layers:
        raise ValueError("the model has no nn.Linear or 1x1 nn.Conv2d that could be its head; end it in one")
    chosen = next(reversed(layers)) if name is None else name
    if chosen not in layers:
        raise ValueError(f"head={name!r} is not a linear layer of the model; it has {', '.join(map(repr, layers))}")
    return chosen, layers[chosen]


@contextmanager
def handing_on(head: nn.Module, keep_in_graph: bool) -> Iterator[None]:
    """The model returns its features; DistributedDataParallel wants every parameter to take part, here with a factor 0."""
    calls = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append(module)
        return args[0] + sum(0.0 * p.sum() for p in module.parameters()) if keep_in_graph else args[0]

    handle = head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
    if len(calls) != 1:
        raise ValueError(
            f"the head ran {len(calls)} times in a forward pass, or torch.compile left its hooks out; only a head that runs "
            "once can be eliminated: compile the layers before it, not the whole model"
        )
