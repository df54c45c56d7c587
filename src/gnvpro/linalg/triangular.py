"""Solves with triangular factors."""

from __future__ import annotations

import torch
from torch import Tensor


def solve_triangular(R: Tensor, rhs: Tensor) -> Tensor:
    """Return R^-1 rhs for one right-hand side."""
    return torch.linalg.solve_triangular(R, rhs[:, None], upper=True)[:, 0]
