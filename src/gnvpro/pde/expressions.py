"""Parts of equations other than numbers and functions of x: the field, unknown constants, functions of these,
integrals.

    Atom        a derivative of one output of the field            pde.d(u, 0, 1),  u[0],  pde.laplacian(u)
    Constant    an unknown number, found together with the network's parameters
    Function    sin, exp, ... of an expression, point by point     pde.sin(u)
    Integral    weighted sums of an expression over separate points

All are trees of the algebra (`algebra`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnvpro.pde.expression_algebra import Expression, Known, Operand, Product, add, as_expression
from gnvpro.pde.jets import Channel, Laplacian

if TYPE_CHECKING:
    from gnvpro.pde.field import Field


class Atom(Expression):
    """A derivative of one output of a field."""

    def __init__(self, field: Field, output: int, channel: Channel) -> None:
        self.field, self.output, self.channel = field, output, channel

    @property
    def degree(self) -> int:
        """Degree 1: linear."""
        return 1

    def diff(self, axis: int) -> Expression:
        """Raise the order by one; a Laplacian becomes a sum first."""
        if isinstance(self.channel, Laplacian):
            return add([self._with((i, i, axis)) for i in self.channel.axes])
        return self._with((*self.channel, axis))

    def _with(self, channel: tuple[int, ...]) -> Atom:
        return Atom(self.field, self.output, tuple(sorted(channel)))


class Constant(Expression):
    """An unknown number in the equations, found together with the field: `kappa = pde.Constant(1.0)`.

    After `pde.solve`, `float(kappa)` is the value found.

    Args:
        value: the first value, a finite number.
        name: the name in tables and messages.

    >>> kappa = Constant(1.0, "kappa")
    >>> float(kappa)
    1.0
    """

    def __init__(self, value: float, name: str = "constant") -> None:
        if not math.isfinite(float(value)):
            raise ValueError(f"a constant begins at a finite number, got {value}")
        self.value, self.name = float(value), name

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"Constant({self.value:.8g}, {self.name!r})"

    def diff(self, axis: int) -> Expression:
        """Return zero."""
        return Known(0.0)


class Function(Expression):
    """A function of each point: sin, exp, ..."""

    def __init__(self, name: str, argument: Expression) -> None:
        self.children, self.name = (argument,), name

    @property
    def degree(self) -> int:
        """Degree 2, nonlinear, unless it contains no field."""
        return 2 if self.children[0].degree else 0

    def diff(self, axis: int) -> Expression:
        """Apply the chain rule."""
        argument = self.children[0]
        return Product((SLOPES[self.name](argument), argument.diff(axis)))


class Integral(Expression):
    """Weighted sums of an expression over separate points, one sum for each row."""

    def __init__(self, inside: Expression, points: Any, weights: Any) -> None:
        self.children, self.points, self.weights = (inside,), points, weights

    @property
    def degree(self) -> int:
        """Degree of the integrand."""
        return self.children[0].degree

    def diff(self, axis: int) -> Expression:
        """Return zero: a number does not depend on x."""
        return Known(0.0)


def _make(name: str) -> Callable[[Operand], Expression]:
    def function(argument: Operand) -> Expression:
        return Function(name, as_expression(argument))

    function.__name__ = name
    function.__doc__ = f"""Return {name} of an expression, point by point.

    Args:
        argument: a field, an expression or a number.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u, x = pde.Field(gnvpro.networks.MLP(1, [8], dtype=torch.float64)), torch.rand(5, 1, dtype=torch.float64)
    >>> torch.allclose(pde.{name}(1 + u**2)(x), torch.{name}(1 + u(x) ** 2))
    True
    """
    return function


sin, cos, tanh, exp, log, sqrt = (_make(name) for name in ("sin", "cos", "tanh", "exp", "log", "sqrt"))

SLOPES: dict[str, Callable[[Expression], Expression]] = {
    "sin": cos,
    "cos": lambda a: -sin(a),
    "tanh": lambda a: 1.0 - tanh(a) ** 2,
    "exp": exp,
    "log": lambda a: a**-1,
    "sqrt": lambda a: 0.5 * a**-0.5,
    "abs": lambda a: Function("sign", a),
    "sign": lambda a: Known(0.0),
}
