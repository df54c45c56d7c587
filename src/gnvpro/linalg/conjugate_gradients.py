"""Preconditioned conjugate gradients for systems with a symmetric operator that is given by its products.

    H D = right,        z = precondition(residual)  ~  H^-1 residual

Unknowns are tensors of any shape. The iterations end at the tolerance, or when a direction has no positive
curvature.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]

MAX_PRODUCTS = 500  # limit for one system


def conjugate_gradients(apply: Map, right: Tensor, precondition: Map, rtol: float, most: int = MAX_PRODUCTS) -> Tensor:
    """Return D with |H D - right| <= rtol |right|."""
    D, residual = torch.zeros_like(right), right
    wanted = rtol * float(torch.linalg.vector_norm(right))
    direction = preconditioned = precondition(residual)
    weight = float((residual * preconditioned).sum())
    for _ in range(most if wanted > 0 else 0):
        image = apply(direction)
        curvature = float((direction * image).sum())
        if not curvature > 0:
            break
        D = D + (weight / curvature) * direction
        residual = residual - (weight / curvature) * image
        if float(torch.linalg.vector_norm(residual)) <= wanted:
            break
        preconditioned = precondition(residual)
        before, weight = weight, float((residual * preconditioned).sum())
        direction = preconditioned + (weight / before) * direction
    return D
