"""Nonlinear parameters: which of them move, within which bounds, and how the others follow.

The search runs over x, one unbounded number per free parameter. Bounds are kept by a smooth map from x to theta, and the
steps are measured in the units of `scale`:

    no bound          theta = scale x
    lower bound a     theta = a + s (sqrt(1 + x^2) - 1)          s: distance of the start from the bound
    upper bound b     theta = b - s (sqrt(1 + x^2) - 1)
    both              theta = a + (b - a) / 2 (1 + sin x)

Standard errors never see this map: they come from derivatives with respect to theta itself.

A parameter in `fixed` is a number, the name of the parameter that it equals, or a function of parameters by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gnvpro.curves.algebra import Array

Tie = float | str | Callable[..., Tensor]
INSIDE = 1e-3  # share of the range by which a start on a bound is moved inside


@dataclass(frozen=True)
class Interval:
    """Lower and upper limit of a parameter, and the unit of its steps."""

    low: float | None = None
    high: float | None = None
    unit: float = 1.0

    @staticmethod
    def around(start: float, low: float | None, high: float | None) -> Interval:
        """The bound whose unit fits a start."""
        if low is not None and high is not None:
            return Interval(low, high)
        distance = abs(start - (low if low is not None else high if high is not None else 0.0))
        return Interval(low, high, distance or 1.0)

    def inner(self, theta: float) -> float:
        """x of a theta; a theta on the bound is moved inside, because the map has no slope there."""
        if self.low is not None and self.high is not None:
            share = (theta - self.low) / (self.high - self.low)
            return math.asin(2 * min(max(share, INSIDE), 1 - INSIDE) - 1)
        edge = self.low if self.low is not None else self.high
        if edge is None:
            return theta / self.unit
        return math.sqrt((1 + max(abs(theta - edge) / self.unit, INSIDE)) ** 2 - 1)

    def outer(self, x: float) -> tuple[float, float]:
        """Theta of an x, and its derivative."""
        if self.low is not None and self.high is not None:
            half = (self.high - self.low) / 2
            return self.low + half * (1 + math.sin(x)), half * math.cos(x)
        edge = self.low if self.low is not None else self.high
        if edge is None:
            return self.unit * x, self.unit
        sign = self.unit if self.low is not None else -self.unit
        root = math.sqrt(1 + x * x)
        return edge + sign * (root - 1), sign * x / root

    @property
    def sides(self) -> tuple[tuple[str, float], ...]:
        """The limits that there are, with their names."""
        pairs = (("lower", self.low), ("upper", self.high))
        return tuple((name, value) for name, value in pairs if value is not None)


@dataclass(frozen=True)
class Parameters:
    """Names in the order of the start, the bounds of the free ones, and what the others equal."""

    names: tuple[str, ...]
    bounds: Mapping[str, Interval]  # of free parameters, in order
    fixed: Mapping[str, Tie]

    @property
    def free(self) -> tuple[str, ...]:
        """The parameters that are searched."""
        return tuple(self.bounds)

    def inner(self, theta: Mapping[str, float]) -> Tensor:
        """x of parameters."""
        return torch.tensor([bound.inner(theta[name]) for name, bound in self.bounds.items()], dtype=torch.float64)

    def theta(self, x: Array) -> tuple[Array, Array]:
        """The free parameters at x, and the diagonal of their derivative."""
        pairs = [bound.outer(each) for bound, each in zip(self.bounds.values(), x.tolist(), strict=True)]
        both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def values(self, theta: Array) -> Array:
        """All parameters from the free ones."""
        if not self.fixed:
            return theta
        return torch.stack(list(self._tied_to(torch.from_numpy(theta)).values())).numpy()

    def named(self, theta: Array) -> dict[str, float]:
        """The free parameters by name."""
        return dict(zip(self.free, theta.tolist(), strict=True))

    def _tied_to(self, theta: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = dict(zip(self.free, theta.unbind(), strict=True))
        waiting = dict(self.fixed)
        while waiting:
            ready = [name for name, tie in waiting.items() if set(sources(tie)) <= set(found)]
            if not ready:
                raise ValueError(
                    f"fixed ties {', '.join(map(repr, waiting))} to each other in a circle, or to names that are no "
                    "parameters; tie them to parameters in start"
                )
            for name in ready:
                found[name] = _tied(name, waiting.pop(name), found, theta)
        return {name: found[name] for name in self.names}

    def jacobian(self, theta: Array) -> Array:
        """The derivative of all parameters in the free ones, (names, free)."""
        leaves = torch.from_numpy(theta.copy()).requires_grad_()
        with torch.enable_grad():
            values = self._tied_to(leaves).values()
            rows = [torch.autograd.grad(v, leaves)[0] if v.requires_grad else torch.zeros_like(leaves) for v in values]
        return torch.stack(rows).numpy()

    def holding(self, held: Mapping[str, float]) -> Parameters:
        """Return the parameters with some of the free ones held."""
        bounds = {name: bound for name, bound in self.bounds.items() if name not in held}
        return replace(self, bounds=bounds, fixed={**self.fixed, **held})

    def scaled(self, units: Mapping[str, float]) -> Parameters:
        """Return the parameters with these units for steps of those without bounds."""
        bounds = {
            name: replace(bound, unit=units.get(name, 1.0)) if not bound.sides else bound
            for name, bound in self.bounds.items()
        }
        return replace(self, bounds=bounds)


def _tied(name: str, tie: Tie, found: Mapping[str, Tensor], like: Tensor) -> Tensor:
    if isinstance(tie, str):
        return found[tie]
    if not callable(tie):
        return like.new_tensor(float(tie))
    try:
        value = tie(**{source: found[source] for source in sources(tie)})
        value = value if isinstance(value, Tensor) else like.new_tensor(float(value))
    except (TypeError, RuntimeError) as error:
        raise type(error)(
            f"fixed[{name!r}] failed with {type(error).__name__}: {error}; it is called with tensors, so use torch functions"
        ) from error
    if value.ndim:
        raise ValueError(f"fixed[{name!r}] must return one number; got a tensor of shape {tuple(value.shape)}")
    return value


def sources(tie: Tie) -> tuple[str, ...]:
    """The parameters that a fixed one is computed from."""
    if isinstance(tie, str):
        return (tie,)
    return tuple(inspect.signature(tie).parameters) if callable(tie) else ()
