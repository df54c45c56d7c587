"""Fewer targets with the same sum of squares.

Least squares in a linear head depends on targets Y (samples, targets) through Y Y' alone: with Y = L V', V' V = I,

    |Z W' - Y|^2  =  |Z (V' W)' - L|^2  +  |Z (W - V V' W)'|^2

and the best W lies in the range of V. If there are more targets than samples, L has only as many columns as samples.
It is the triangular factor of Y', computed in parts so that little memory is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

PART = 16  # targets factorised at a time, in multiples of the number of samples


def compressed(Y: Tensor) -> Tensor:
    """Return L with L L' = Y Y' and at most as many columns as rows; Y itself if it has no more."""
    n, K = Y.shape
    if n >= K:
        return Y
    R = Y.new_zeros(0, n)
    for part in Y.T.split(max(PART * n, 1)):
        R = torch.linalg.qr(torch.cat([R, part.to(torch.float64)]), mode="r").R
    return R.T.contiguous()
