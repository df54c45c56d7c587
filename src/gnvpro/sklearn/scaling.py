"""Scaling of inputs by modules before the network, so that the fitted model takes raw inputs.

    columns of extreme size     x -> 2^-e x                       e the exponent of the largest |x|
    columns with long tails     x -> asinh((x - median) / w),     w = 1.48 median |x - median|
    columns cut into pieces     x -> p_1, ..., p_k                p_i = (x - b_(i-1)) / (b_i - b_(i-1)), kept within 0 and 1
    every column                x -> (x - mean) / deviation

If a few values are a hundred times as large as the others, those others all lie in one spot after scaling, and a network of
tanh units cannot tell them apart. asinh barely changes the middle and takes the logarithm of the tails. A column has long
tails if its kurtosis is above MAX_KURTOSIS (a Gaussian one has 3); columns of two values are not changed. A target may also be
linear in the tails themselves: if a linear model of the plain columns predicts left-out rows better than one of the compressed
columns, the tails stay. Weights count samples.

Squares and fourth powers of columns beyond 1e60 would overflow, and powers of columns below 1e-60 would vanish; such columns
are first multiplied by a power of two, which is exact.

Classes and targets often change at a step along a column, as trees model it, while a unit of small weights is smooth along the
whole column. The p_i, with knots b_0 < ... < b_k at quantiles, let a unit bend at the knots and be steep between two of them.
x is their sum, so no information is lost, except beyond the smallest and the largest value seen: there they are constant.
Quantiles that fall on the same value are one knot; a column of few values has a knot at each.

Legend: b_(i-1) -> low, b_i -> high.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from gnvpro.sklearn.linear import fit_linear, thin_svd

Array = NDArray[Any]
Scaling = OrderedDict[str, Any]  # modules by name
MAX_KURTOSIS = 6.0
PLAIN_IS_BETTER = 0.95  # limit on the squared error with plain columns over the error with compressed ones
EXTREME = 200  # exponents of two beyond which powers of a column may overflow or vanish
GAUSSIAN = 1.4826  # deviation over median |x - median|
N_PIECES = 4  # largest number of pieces of a column


class Rescale(nn.Module):
    """Multiply each column by a power of two."""

    factor: Tensor

    def __init__(self, factor: Array) -> None:
        super().__init__()
        self.register_buffer("factor", torch.as_tensor(factor, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the columns at a moderate size."""
        return inputs * self.factor


class Rotate(nn.Module):
    """Project the columns on orthonormal directions, at most as many as there were rows."""

    directions: Tensor

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        self.register_buffer("directions", directions)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one column for each direction."""
        return inputs @ self.directions


class Standardize(nn.Module):
    """(x - mean) / scale, column by column."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Array, scale: Array) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the columns with mean zero and variance one."""
        return (inputs - self.mean) / self.scale

    def times(self, columns: Tensor) -> Standardize:
        """Return this scaling with its result multiplied by a factor for each column."""
        return Standardize(self.mean.numpy(), (self.scale / columns).numpy())


class CompressTails(nn.Module):
    """asinh((x - centre) / width) of some columns; a width of zero means that a column is not changed."""

    centre: Tensor
    width: Tensor

    def __init__(self, centre: Array, width: Array) -> None:
        super().__init__()
        self.register_buffer("centre", torch.as_tensor(centre, dtype=torch.float64))
        self.register_buffer("width", torch.as_tensor(width, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the columns without long tails."""
        long = self.width > 0
        return torch.where(long, torch.asinh((inputs - self.centre) / torch.where(long, self.width, 1.0)), inputs)


class Pieces(nn.Module):
    """(x - low) / (high - low) within 0 and 1, for each piece of a column."""

    column: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, column: Array, low: Array, high: Array) -> None:
        super().__init__()
        self.register_buffer("column", torch.as_tensor(column, dtype=torch.int64))
        self.register_buffer("low", torch.as_tensor(low, dtype=torch.float64))
        self.register_buffer("high", torch.as_tensor(high, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one column for each piece."""
        return ((inputs[:, self.column] - self.low) / (self.high - self.low)).clamp(0.0, 1.0)


def scalings_of(X: Array, targets: Array, weights: Array, cuts: Iterable[bool]) -> Iterator[Scaling]:
    """Yield the modules that scale the inputs, by name; once for each of `cuts`, true if columns are cut into pieces."""
    factors = moderate_factors(X)
    units = Rescale(factors) if (factors != 1).any() else None
    X = X * factors
    tails = compress_tails(X, weights)
    if tails is not None and plain_is_better(X, tails, targets, weights):
        tails = None
    X = X if tails is None else tails(torch.tensor(X)).numpy()
    for cut in cuts:
        pieces = cut_into_pieces(X, weights) if cut else None
        scaler = standardizer(X if pieces is None else pieces(torch.tensor(X)).numpy(), weights)
        modules = {"units": units, "tails": tails, "pieces": pieces, "scaling": scaler}
        yield OrderedDict((name, module) for name, module in modules.items() if module is not None)


def plain_scaling(X: Array, weights: Array) -> nn.Sequential:
    """Columns at a moderate size with mean zero and variance one, and no more."""
    factors = moderate_factors(X)
    scaler = standardizer(X * factors, weights)
    return nn.Sequential(Rescale(factors), scaler) if (factors != 1).any() else nn.Sequential(scaler)


def standardizer(X: Array, weights: Array) -> Standardize:
    """Return the module that brings columns to mean zero and variance one."""
    scaler = StandardScaler().fit(X, sample_weight=weights)
    return Standardize(scaler.mean_, scaler.scale_)


@dataclass(frozen=True)
class TargetUnits:
    """Factors and shifts that take standardised targets back to raw targets."""

    mean: Tensor
    scale: Tensor

    @staticmethod
    def none(count: int) -> TargetUnits:
        """Return units that do not change the targets."""
        return TargetUnits(torch.zeros(count).double(), torch.ones(count).double())

    @staticmethod
    def of(targets: Array, weights: Array) -> TargetUnits:
        """Return mean and deviation, computed at a moderate size; a constant target has the scale one."""
        e = exponents(targets)
        scaler = StandardScaler().fit(np.ldexp(targets, -e), sample_weight=weights)
        scale = np.where((targets != targets[0]).any(0), scaler.scale_, 1.0)
        return TargetUnits(torch.from_numpy(np.ldexp(scaler.mean_, e)), torch.from_numpy(np.ldexp(scale, e)))

    def scaled(self, targets: Array) -> Array:
        """Return targets of mean zero and variance one; constant targets become zero."""
        e = np.frexp(self.scale.numpy())[1]  # differences of targets may overflow
        moved = np.ldexp(targets, -e) - np.ldexp(self.mean.numpy(), -e)
        constant = ~(targets != targets[0]).any(0)
        found: Array = np.where(constant, 0.0, moved / np.ldexp(self.scale.numpy(), -e))
        return found


def exponents(values: Array) -> Array:
    """Return exponents e with 2^e just above the largest |x| of each column, limited so that 2^e and 2^-e are finite."""
    found: Array = np.clip(np.frexp(abs(values).max(0))[1], -1000, 1000)
    return found


def moderate_factors(X: Array) -> Array:
    """Return a factor for each column: one, or a power of two if the column's size is extreme."""
    e = exponents(X)
    return np.ldexp(1.0, np.where(abs(e) > EXTREME, -e, 0))


def plain_is_better(X: Array, tails: CompressTails, targets: Array, weights: Array) -> bool:
    """Return whether a linear model predicts left-out rows better from plain columns than from compressed ones."""
    goals, shares = torch.tensor(targets), torch.tensor(weights)
    errors = []
    for columns in (X, tails(torch.tensor(X)).numpy()):
        model = fit_linear(standardizer(columns, weights)(torch.tensor(columns)), goals, shares)
        if model is None:
            return False
        errors.append(float((shares[:, None] * (goals - model.left_out).square()).sum()))
    return errors[0] < PLAIN_IS_BETTER * errors[1]


def compress_tails(X: Array, weights: Array) -> CompressTails | None:
    """Return the module that compresses columns with long tails; None if there are none."""
    centre, width = tails_of(X, weights)
    return CompressTails(centre, width) if (width > 0).any() else None


def tails_of(X: Array, weights: Array) -> tuple[Array, Array]:
    """Return the median of each column, and the width of its middle if it has long tails, else zero."""
    mean, centre = np.average(X, 0, weights), weighted_median(X, weights)
    deviation = np.sqrt(np.average((X - mean) ** 2, 0, weights))
    usable = np.where(deviation > 0, deviation, 1.0)
    kurtosis = np.average(((X - mean) / usable) ** 4, 0, weights)
    two_values = np.array([np.isin(column, (column.min(), column.max())).all() for column in X.T], dtype=bool)
    middle = GAUSSIAN * weighted_median(abs(X - centre), weights)
    return centre, np.where((kurtosis > MAX_KURTOSIS) & ~two_values, np.where(middle > 0, middle, deviation), 0.0)


def cut_into_pieces(X: Array, weights: Array) -> Pieces:
    """Cut every column at quantiles, or at its values if these are few; a column of one value is not cut."""
    quantiles = weighted_quantiles(X, weights, [i / N_PIECES for i in range(N_PIECES + 1)])
    knots = []
    for column, cuts in zip(X.T, quantiles.T, strict=True):
        values = np.unique(column)
        knots.append(values if 1 < len(values) <= N_PIECES + 1 else np.unique(cuts))
    knots = [b if len(b) > 1 else np.array([b[0], b[0] + 1]) for b in knots]
    return Pieces(
        np.repeat(np.arange(len(knots)), [len(b) - 1 for b in knots]),
        np.concatenate([b[:-1] for b in knots]),
        np.concatenate([b[1:] for b in knots]),
    )


def row_directions(inputs: Tensor) -> Tensor | None:
    """Orthonormal directions that span the rows, (columns, rank), if there are more columns than rows.

    The first layer's penalty is the same in all directions, so weights across the rows stay zero: leaving those directions out
    changes nothing but the seconds. They are mixed at random, so that inputs along each of them are of one size.
    """
    if inputs.shape[1] <= len(inputs):
        return None
    V = thin_svd(inputs)[2]
    if V.shape[1] == 0:  # rows that are all zero
        return None
    mix = torch.randn(V.shape[1], V.shape[1], generator=torch.Generator().manual_seed(0), dtype=V.dtype)
    rotation: Tensor = V @ torch.linalg.qr(mix).Q
    return rotation


def weighted_quantiles(X: Array, weights: Array, shares: Sequence[float]) -> Array:
    """Return, for each share and column, the smallest value that this share of the weight does not exceed."""
    found = np.empty((len(shares), X.shape[1]))
    for j, column in enumerate(X.T):
        order = np.argsort(column)
        below = np.cumsum(weights[order]) / weights.sum()
        rows = np.searchsorted(below, np.subtract(shares, 1e-12))
        found[:, j] = column[order[np.minimum(rows, len(X) - 1)]]
    return found


def weighted_median(X: Array, weights: Array) -> Array:
    """Return the smallest value of each column that half of the weight does not exceed."""
    median: Array = weighted_quantiles(X, weights, [0.5])[0]
    return median
