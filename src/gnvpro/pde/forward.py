"""Forward-mode automatic differentiation along an axis of the points.

If torch has no forward formula for a function (such as the backward pass of SiLU), reverse mode is used twice: the
derivative of v -> v' f'(x), which is linear in v, is applied to the direction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def along_axis(function: Callable[[Tensor], Tensor], points: Tensor, axis: int) -> Tensor:
    """Return the derivative of a function of points (n, dimension) along one axis."""
    direction = torch.zeros_like(points)
    direction[..., axis] = 1.0
    with warnings.catch_warnings():  # torch compiles its own formulas at first use, with functions that it deprecates
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        try:
            return torch.func.jvp(function, (points,), (direction,))[1]
        except NotImplementedError:
            return _by_reverse_mode(function, points, direction)


def _by_reverse_mode(function: Callable[[Tensor], Tensor], points: Tensor, direction: Tensor) -> Tensor:
    value, pull = torch.func.vjp(function, points)[:2]
    push = torch.func.vjp(lambda cotangent: pull(cotangent)[0], torch.zeros_like(value))[1]
    return push(direction)[0]
