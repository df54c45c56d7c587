"""Forward-mode automatic differentiation along an axis of the points."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def along_axis(function: Callable[[Tensor], Tensor], points: Tensor, axis: int) -> Tensor:
    """The derivative of a function of points (n, dimension) along one axis."""
    direction = torch.zeros_like(points)
    direction[..., axis] = 1.0
    with warnings.catch_warnings():  # torch compiles its own formulas the first time, by what it calls deprecated
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        return torch.func.jvp(function, (points,), (direction,))[1]
