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
from gnvpro.curves.parameters import Bound, Parameters, Tie, sources


@dataclass(frozen=True)
class Data:
    """Samples and curves."""

    x: Tensor  # (n,) or (n, d)
    Y: Tensor  # (n, K), zero if the weight is zero
    weights: Tensor | None  # (n, 1) or (n, K)
    single: bool  # whether y was a vector

    @property
    def n_observed(self) -> int:
        """Observations that count."""
        if self.weights is None:
            return self.Y.numel()
        return int((self.weights > 0).sum()) * (self.Y.shape[1] if self.weights.shape[1] == 1 else 1)


def as_tensor(name: str, value: Any) -> Tensor:
    """A float64 tensor of an array, a tensor, a list or a table."""
    value = value.to_numpy() if hasattr(value, "to_numpy") else value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # torch warns of others
    try:
        found = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be numbers (numpy, torch or pandas); got {type(value).__name__}: {error}"
        ) from error
    if found.is_complex():
        raise TypeError(f"{name} must be real; got {found.dtype}. Fit real and imaginary part as two curves")
    return found.detach().to(torch.float64)


def check_data(x: Any, y: Any, weights: Any, missing: str) -> Data:
    """Samples, curves and weights that fit together."""
    x, Y = as_tensor("x", x), as_tensor("y", y)
    if x.ndim not in (1, 2):
        raise ValueError(f"x must have shape (n,) or (n, d); got {tuple(x.shape)}")
    if Y.ndim not in (1, 2) or len(Y) != len(x):
        raise ValueError(
            f"y must have shape ({len(x)},) or ({len(x)}, curves), as x has {len(x)} samples; got {tuple(Y.shape)}"
        )
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
    return Data(x, Y, w, single)


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
    ties = {name: tie for name, tie in fixed.items() if not is_coefficient(name, columns, start)}
    coefficients = {
        int(name[1:]): check_number(f"fixed[{name!r}]", value, -math.inf)
        for name, value in fixed.items()
        if name not in ties
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
    values = {
        name: check_number(f"start[{name!r}]", value, -math.inf) for name, value in start.items() if name not in ties
    }
    limits = {name: check_bound(name, value, bounds.get(name)) for name, value in values.items()}
    return Parameters(names, limits, ties), coefficients, values


def is_coefficient(name: str, columns: Any, start: Mapping[str, float]) -> bool:
    """Return whether a name stands for a coefficient: c0 for the first column and so on."""
    return re.fullmatch(r"c\d+", name) is not None and name not in start and name not in parameter_names(columns)


def parameter_names(columns: Any) -> tuple[str, ...]:
    """The names that a basis takes after x; empty if it takes any."""
    parameters = list(inspect.signature(columns).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in named)


def check_names(columns: Any, names: tuple[str, ...]) -> None:
    """The basis takes exactly these parameters."""
    if not callable(columns):
        raise TypeError(f"the basis must be a function of x and the parameters that returns columns; got {columns!r}")
    kinds = [p.kind for p in inspect.signature(columns).parameters.values()]
    known = parameter_names(columns)
    missing = [name for name in known if name not in names]
    unknown = [name for name in names if name not in known]
    if missing and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"start has no value for {', '.join(map(repr, missing))}, which the basis takes; add it to start or fixed"
        )
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"the basis takes no parameter {', '.join(map(repr, unknown))}; it takes {', '.join(known) or 'none'}"
        )


def check_bound(name: str, start: float, limits: Any) -> Bound:
    """Limits around a start."""
    low, high = (None, None) if limits is None else limits
    low = None if low is None or low == -math.inf else check_number(f"bounds[{name!r}][0]", low, -math.inf)
    high = None if high is None or high == math.inf else check_number(f"bounds[{name!r}][1]", high, -math.inf)
    if low is not None and high is not None and not low < high:
        raise ValueError(f"bounds[{name!r}] must be (lower, upper) with lower < upper; got ({low:g}, {high:g})")
    if (low is not None and start < low) or (high is not None and start > high):
        raise ValueError(f"start[{name!r}]={start:g} is outside of its bounds {limits}; choose a start inside")
    return Bound.around(start, low, high)
