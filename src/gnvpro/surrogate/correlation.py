"""Correlations of one input and their derivatives.

    rbf       c(h) = exp(-t^2 / 2)                   t = h / length
    matern52  c(h) = (1 + a + a^2 / 3) exp(-a)       a = sqrt(5) |h| / length
    matern32  c(h) = (1 + a) exp(-a)                 a = sqrt(3) |h| / length

Every derivative in h is a polynomial times the same exponential. The polynomials are returned apart from it, because quotients
c^(k) / c stay finite where both underflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMOOTHNESS = {"rbf": 4, "matern52": 4, "matern32": 2}  # derivatives that exist at h = 0


def correlation(kind: str, h: Tensor, length: Tensor, order: int) -> tuple[Tensor, list[Tensor]]:
    """Return the exponential, and polynomials p_0 to p_order: the k-th derivative is p_k times the exponential.

    >>> h, one = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.ones((), dtype=torch.float64)
    >>> decay, (p0, p1) = correlation("rbf", h, one, 1)
    >>> (decay * p1).tolist() == [0.0, -torch.exp(torch.tensor(-0.5, dtype=torch.float64)).item()]
    True
    """
    if kind == "rbf":
        t = h / length
        square = t * t
        return torch.exp(-0.5 * square), [_smooth(k, t, square) / length**k for k in range(order + 1)]
    rate = ((5.0 if kind == "matern52" else 3.0) / length.square()).sqrt()  # no root of a number: ONNX would round it
    signed = rate * h
    a = signed.abs()
    polynomial = _matern52 if kind == "matern52" else _matern32
    return torch.exp(-a), [polynomial(k, a, signed) * rate**k for k in range(order + 1)]


def _smooth(k: int, t: Tensor, square: Tensor) -> Tensor:
    if k == 0:
        return torch.ones_like(t)
    if k == 1:
        return -t
    if k == 2:
        return square - 1
    return t * (3 - square) if k == 3 else square * (square - 6) + 3


def _matern52(k: int, a: Tensor, signed: Tensor) -> Tensor:
    if k == 0:
        return 1 + a * (1 + a / 3)
    if k == 1:
        return -signed * (1 + a) / 3
    if k == 2:
        return (a * (a - 1) - 1) / 3
    return signed * (3 - a) / 3 if k == 3 else (a * (a - 5) + 3) / 3


def _matern32(k: int, a: Tensor, signed: Tensor) -> Tensor:
    if k == 0:
        return 1 + a
    return -signed if k == 1 else a - 1
