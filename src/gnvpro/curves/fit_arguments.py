"""Check the arguments of `curves.fit`: samples, curves, weights, missing values, start, bounds, ties."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnvpro.arguments import check_number
from gnvpro.curves.algebra import Array
from gnvpro.curves.parameters import Interval, Parameters, Tie, sources

LARGEST = 1e140  # value of y whose square, times some thousands of values, is still a float64


@dataclass(frozen=True)
class Data:
    """Samples and curves."""

    x: Tensor  # (n,) or (n, d)
    Y: Array  # (n, K), zero if the weight is zero
    weights: Array | None  # (n, 1) or (n, K)
    single: bool  # whether y was a vector

    @property
    def n_observed(self) -> int:
        """Observations that count."""
        if self.weights is None:
            return self.Y.size
        return int(self.counts.sum())

    @property
    def counts(self) -> Array:
        """Observations that count, by curve."""
        n, K = self.Y.shape
        return np.broadcast_to(n if self.weights is None else (self.weights > 0).sum(0), (K,))


def as_tensor(name: str, value: Any) -> Tensor:
    """A float64 tensor of an array, a tensor, a list or a table; masked and missing values become NaN."""
    if isinstance(value, Tensor):
        found = value.detach()
    else:
        try:
            found = torch.from_numpy(_as_array(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{name} must be numbers (numpy, torch or pandas); got {type(value).__name__}: {error}"
            ) from error
    if found.is_complex():
        raise TypeError(f"{name} must be real; got {found.dtype}. Fit real and imaginary part as two curves")
    return found.to("cpu", torch.float64)


def _as_array(value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return np.ma.filled(value.astype(np.float64), np.nan)
    made = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    if made.dtype == object and hasattr(value, "to_numpy"):
        made = value.to_numpy(dtype=np.float64, na_value=np.nan)  # pandas.NA and None
    elif made.dtype == object:
        made = made.astype(np.float64)
    if made.dtype.kind == "c":
        return made
    if made.dtype.kind not in "biuf":
        raise TypeError(f"its values are {made.dtype}")
    made = np.ascontiguousarray(made, dtype=np.float64).reshape(made.shape)  # no negative strides
    return made if made.flags.writeable else made.copy()  # torch warns of others


def check_data(x: Any, y: Any, weights: Any, missing: str) -> Data:
    """Samples, curves and weights that fit together."""
    x, Y = as_tensor("x", x), as_tensor("y", y)
    if x.ndim not in (1, 2):
        raise ValueError(f"x must have shape (n,) or (n, d); got {tuple(x.shape)}")
    if Y.ndim not in (1, 2) or len(Y) != len(x):
        raise ValueError(
            f"y must have shape ({len(x)},) or ({len(x)}, curves), as x has {len(x)} samples; got {tuple(Y.shape)}"
        )
    if not Y.numel():
        raise ValueError(f"y has shape {tuple(Y.shape)}: there is nothing to fit")
    single = Y.ndim == 1
    Y = Y[:, None] if single else Y
    if not torch.isfinite(x).all():
        raise ValueError("x must be finite; leave out the samples where it is not")
    w = None if weights is None else check_weights(as_tensor("weights", weights), Y.shape)
    if missing not in ("raise", "omit"):
        raise ValueError(f'missing must be "raise" or "omit"; got {missing!r}')
    lost = torch.isnan(Y)
    if torch.isinf(Y).any():
        raise ValueError("y has infinite values; leave them out, or mark them as NaN and pass missing='omit'")
    if lost.any():
        if missing == "raise":
            raise ValueError(f"y is NaN in {int(lost.sum())} places; pass missing='omit' to leave them out")
        Y = torch.where(lost, 0.0, Y)
        w = torch.where(lost, 0.0, torch.ones_like(Y) if w is None else w.expand_as(Y))
    check_size(Y if w is None else w.sqrt() * Y)
    return Data(x.clone(), Y.numpy(), None if w is None else w.numpy(), single)


def check_size(Y: Tensor) -> None:
    """Raise an error if the squares of y leave the range of float64."""
    largest = float(Y.abs().max())
    if largest > LARGEST or 0 < largest < 1 / LARGEST:
        raise ValueError(
            f"the largest value of y (times the root of its weight) is {largest:.0e}, so that squares leave the range "
            "of float64; divide y by a number of this size"
        )


def check_weights(w: Tensor, shape: torch.Size) -> Tensor:
    """One weight per sample or one per value, not negative."""
    w = w[:, None] if w.ndim == 1 else w
    if w.shape not in ((shape[0], 1), shape):
        raise ValueError(
            f"weights must have one value per sample ({shape[0]},) or per value of y {tuple(shape)}; got {tuple(w.shape)}"
        )
    if not torch.isfinite(w).all() or (w < 0).any():
        raise ValueError(
            "weights must be finite and not negative; weights are 1 / variance, so a zero leaves a value out"
        )
    if not (w > 0).any():
        raise ValueError("weights are all zero: there is nothing to fit")
    return w


def check_parameters(
    columns: Any, start: Mapping[str, float], bounds: Mapping[str, Any], fixed: Mapping[str, Tie]
) -> tuple[Parameters, dict[int, float], dict[str, float]]:
    """The parameters, fixed coefficients by column, and the start of the free parameters."""
    if not callable(columns):
        raise TypeError(f"the basis must be a function of x and the parameters that returns columns; got {columns!r}")
    for argument, value in (("start", start), ("bounds", bounds), ("fixed", fixed)):
        if not isinstance(value, Mapping):
            raise TypeError(f'{argument} must be a dictionary by parameter, such as {{"k1": ...}}; got {value!r}')
    ties = {
        name: tie if isinstance(tie, str) or callable(tie) else as_number(f"fixed[{name!r}]", tie)
        for name, tie in fixed.items()
        if not is_coefficient(name, columns, start)
    }
    coefficients = {
        int(name[1:]): as_number(f"fixed[{name!r}]", value) for name, value in fixed.items() if name not in ties
    }
    names = (*start, *(name for name in ties if name not in start))
    searched = [name for name in start if name not in ties]
    for name in bounds:
        if name not in searched:
            raise ValueError(f"bounds has {name!r}, which is no free parameter in start; known: {', '.join(searched)}")
    check_names(columns, names)
    for name, tie in ties.items():
        for source in sources(tie):
            if source not in names:
                raise ValueError(
                    f"fixed[{name!r}] is tied to {source!r}, which is no parameter; known: {', '.join(names)}"
                )
    values = {name: as_number(f"start[{name!r}]", value) for name, value in start.items() if name not in ties}
    limits = {name: check_bound(name, value, bounds.get(name)) for name, value in values.items()}
    return Parameters(names, limits, ties), coefficients, values


def as_number(name: str, value: Any) -> float:
    """A finite number, also from an array or a tensor that holds one."""
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        value = value.item()
    return check_number(name, value, -math.inf)


def is_coefficient(name: str, columns: Any, start: Mapping[str, float]) -> bool:
    """Return whether a name stands for a coefficient: c0 for the first column and so on."""
    return re.fullmatch(r"c\d+", name) is not None and name not in start and name not in parameter_names(columns)


def parameter_names(columns: Any, defaults: bool = True) -> tuple[str, ...]:
    """The names that a basis takes after x, with or without those that have a default."""
    parameters = list(inspect.signature(columns).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in named and (defaults or p.default is p.empty))


def check_names(columns: Any, names: tuple[str, ...]) -> None:
    """The basis takes exactly these parameters, except those with a default."""
    kinds = [p.kind for p in inspect.signature(columns).parameters.values()]
    known = parameter_names(columns)
    missing = [name for name in parameter_names(columns, defaults=False) if name not in names]
    unknown = [name for name in names if name not in known]
    if missing and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"start has no value for {', '.join(map(repr, missing))}, which the basis takes; add it to start or fixed"
        )
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"the basis takes no parameter {', '.join(map(repr, unknown))}; it takes {', '.join(known) or 'none'}"
        )


def check_bound(name: str, start: float, limits: Any) -> Interval:
    """Limits around a start."""
    try:
        low, high = (None, None) if limits is None else limits
    except (TypeError, ValueError):
        raise ValueError(f"bounds[{name!r}] must be (lower, upper), with None for no limit; got {limits!r}") from None
    low = None if low is None or low == -math.inf else as_number(f"bounds[{name!r}][0]", low)
    high = None if high is None or high == math.inf else as_number(f"bounds[{name!r}][1]", high)
    if low is not None and high is not None and not low < high:
        raise ValueError(f"bounds[{name!r}] must be (lower, upper) with lower < upper; got ({low:g}, {high:g})")
    if (low is not None and start < low) or (high is not None and start > high):
        raise ValueError(f"start[{name!r}]={start:g} is outside of its bounds {limits}; choose a start inside")
    return Interval.around(start, low, high)
