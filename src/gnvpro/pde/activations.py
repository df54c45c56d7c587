"""Smooth activations with derivatives of any order, for carrying derivatives in x through a layer.

The derivatives of tanh t and of the logistic function s are polynomials in t and s themselves:

    t' = 1 - t^2,   s' = s - s^2        so that      d/dx p(t) = p'(t) (1 - t^2),   d/dx p(s) = p'(s) (s - s^2)

softplus is the integral of s, SiLU is x s(x), GELU is x N(x) with N the normal distribution, whose derivatives are
Hermite polynomials times the bell curve; and (x f)^(k) = x f^(k) + k f^(k-1).

The type of a module identifies its activation. Every function here takes x and the highest order, and returns
f(x), f'(x), ..., f^(order)(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from numpy.polynomial import Polynomial
from torch import Tensor, nn

Derivatives = Callable[[Tensor, int], list[Tensor]]

# Their second derivative is zero wherever it exists: a network of them cannot satisfy an equation of second order.
PIECEWISE_LINEAR = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.Hardtanh,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Threshold,
    nn.Hardsigmoid,
)


class Sine(nn.Module):
    """The activation sin(x).

    >>> float(Sine()(torch.tensor(0.0)))
    0.0
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """sin of each entry."""
        return torch.sin(inputs)


def derivatives_of(module: nn.Module) -> Derivatives | None:
    """Return the derivatives of a module that acts on each entry; None if there is no formula for it."""
    kind = type(module)
    if kind is nn.Softplus:
        return lambda x, order: _softplus(x, order, float(module.beta), float(module.threshold))  # type: ignore[arg-type]
    if kind is nn.GELU:
        return _gelu if module.approximate == "none" else None
    return _SIMPLE.get(kind)


def _tanh(x: Tensor, order: int) -> list[Tensor]:
    return _polynomials(torch.tanh(x), order, (1.0, 0.0, -1.0))


def _sigmoid(x: Tensor, order: int) -> list[Tensor]:
    return _polynomials(torch.sigmoid(x), order, (0.0, 1.0, -1.0))


def _sine(x: Tensor, order: int) -> list[Tensor]:
    s, c = torch.sin(x), torch.cos(x)
    return [(s, c, -s, -c)[k % 4] for k in range(order + 1)]


def _identity(x: Tensor, order: int) -> list[Tensor]:
    return [x, torch.ones_like(x), *(torch.zeros_like(x) for _ in range(order - 1))][: order + 1]


def _softplus(x: Tensor, order: int, beta: float, threshold: float) -> list[Tensor]:
    """Differentiate log(1 + exp(beta x)) / beta; above the threshold it is a straight line, as in torch."""
    value = nn.functional.softplus(x, beta, threshold)
    straight = beta * x > threshold
    slopes = _sigmoid(beta * x, order - 1) if order else []
    rest = [beta**k * slope.masked_fill(straight, 1.0 if k == 0 else 0.0) for k, slope in enumerate(slopes)]
    return [value, *rest]


def _silu(x: Tensor, order: int) -> list[Tensor]:
    return _times_x(x, _sigmoid(x, order))


def _gelu(x: Tensor, order: int) -> list[Tensor]:
    bell = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    normal = [0.5 * torch.erfc(-x / math.sqrt(2.0))]
    hermite, before = torch.ones_like(x), torch.zeros_like(x)
    for k in range(order):
        normal.append((-1) ** k * hermite * bell)
        hermite, before = x * hermite - k * before, hermite
    return _times_x(x, normal)


def _times_x(x: Tensor, f: list[Tensor]) -> list[Tensor]:
    return [x * f[k] + k * f[k - 1] if k else x * f[0] for k in range(len(f))]


def _polynomials(value: Tensor, order: int, slope: tuple[float, ...]) -> list[Tensor]:
    """Return value and its derivatives, which are polynomials in it."""
    derivatives = [value]
    for coefficients in _coefficients(order, slope):
        out = torch.full_like(value, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            out.mul_(value).add_(coefficient)
        derivatives.append(out)
    return derivatives


@lru_cache(maxsize=64)
def _coefficients(order: int, slope: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    polynomial, made = Polynomial([0.0, 1.0]), []
    for _ in range(order):
        polynomial = polynomial.deriv() * Polynomial(slope)
        made.append(tuple(float(c) for c in polynomial.coef))
    return tuple(made)


_SIMPLE: dict[type[nn.Module], Derivatives] = {
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    nn.SiLU: _silu,
    nn.Identity: _identity,
    Sine: _sine,
}
