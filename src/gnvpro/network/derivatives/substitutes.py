"""Substitutes for torch operations whose second derivative is missing or NaN.

Products with the Jacobian differentiate a backward pass once more. If a model contains one of these operations, the
substitute runs while its features are computed. Other models are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Look up bags of equal size, one per row, then reduce."""
    if offsets is not None or max_norm is not None:
        raise NotImplementedError("embedding_bag with offsets or max_norm has no second derivative")
    rows = nn.functional.embedding(input, weight)
    counted = torch.ones_like(input, dtype=weight.dtype)
    if padding_idx is not None:
        counted = (input != padding_idx % weight.shape[0]).to(weight.dtype)
    if mode == "max":
        hidden = (counted == 0)[..., None]
        largest = rows.masked_fill(hidden, -torch.inf).amax(-2)
        return torch.where(hidden.all(-2), torch.zeros_like(largest), largest)
    factors = counted if per_sample_weights is None else counted * per_sample_weights
    total = (rows * factors[..., None]).sum(-2)
    return total / counted.sum(-1, keepdim=True).clamp(min=1) if mode == "mean" else total


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Compute distances from differences."""
    return torch.linalg.vector_norm(x1[..., :, None, :] - x2[..., None, :, :], p, -1)


def _logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Sum over stretches of doubling length: each entry absorbs the stretch before its own."""
    total = input.movedim(dim, -1)
    stretch = 1
    while stretch < total.shape[-1]:
        total = torch.cat([total[..., :stretch], torch.logaddexp(total[..., stretch:], total[..., :-stretch])], -1)
        stretch *= 2
    return total.movedim(-1, dim)


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Compute a straight line clipped between zero and one."""
    output = (input / 6 + 0.5).clamp(0, 1)
    return input.copy_(output) if inplace else output


SUBSTITUTES: dict[Callable[..., Any], Callable[..., Any]] = {
    nn.functional.embedding_bag: _embedding_bag,
    nn.functional.hardsigmoid: _hardsigmoid,
    torch.cdist: _cdist,
    torch.logcumsumexp: _logcumsumexp,
    Tensor.logcumsumexp: _logcumsumexp,
}


class Substituted(TorchFunctionMode):
    """Within this block, the operations in `SUBSTITUTES` are computed by others that have second derivatives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return SUBSTITUTES.get(func, func)(*args, **(kwargs or {}))
