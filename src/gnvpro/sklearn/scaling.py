"""How inputs are scaled before the network sees them: as modules, so that what is fitted takes inputs as they come.

    columns with long tails     x -> asinh((x - median) / w),     w = 1.48 median |x - median|
    every column                x -> (x - mean) / deviation

Where a few values are a hundred times as large as the others, those others all lie in one spot after scaling, and a network of
tanh units cannot tell them apart. asinh leaves the middle as it is and takes the logarithm of the tails. A column has long
tails where its kurtosis is above MAX_KURTOSIS (a Gaussian one has 3); columns of two values are left alone. Weights count
samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]
MAX_KURTOSIS = 6.0
GAUSSIAN = 1.4826  # deviation over median |x - median|


class Standardize(nn.Module):
    """(x - mean) / scale, column by column."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Array, scale: Array) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """The columns with mean zero and variance one."""
        return (inputs - self.mean) / self.scale


class CompressTails(nn.Module):
    """asinh((x - centre) / width) of some columns; a width of zero leaves a column as it is."""

    centre: Tensor
    width: Tensor

    def __init__(self, centre: Array, width: Array) -> None:
        super().__init__()
        self.register_buffer("centre", torch.as_tensor(centre, dtype=torch.float64))
        self.register_buffer("width", torch.as_tensor(width, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """The columns without long tails."""
        long = self.width > 0
        return torch.where(long, torch.asinh((inputs - self.centre) / torch.where(long, self.width, 1.0)), inputs)


def compress_tails(X: Array, weights: Array) -> CompressTails | None:
    """What compresses the columns with long tails; None where there are none."""
    mean, centre = np.average(X, 0, weights), weighted_median(X, weights)
    deviation = np.sqrt(np.average((X - mean) ** 2, 0, weights))
    usable = np.where(deviation > 0, deviation, 1.0)
    kurtosis = np.average(((X - mean) / usable) ** 4, 0, weights)
    two_values = np.array([np.isin(column, (column.min(), column.max())).all() for column in X.T], dtype=bool)
    middle = GAUSSIAN * weighted_median(abs(X - centre), weights)
    width = np.where((kurtosis > MAX_KURTOSIS) & ~two_values, np.where(middle > 0, middle, deviation), 0.0)
    return CompressTails(centre, width) if (width > 0).any() else None


def weighted_median(X: Array, weights: Array) -> Array:
    """Of each column: the smallest value that half of the weight does not exceed."""
    order = np.argsort(X, 0)
    share = np.cumsum(weights[order], 0) / weights.sum()
    rows = (share < 0.5 - 1e-12).sum(0)
    return np.take_along_axis(X, order, 0)[np.minimum(rows, len(X) - 1), np.arange(X.shape[1])]
