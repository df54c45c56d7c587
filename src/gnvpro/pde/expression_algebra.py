"""The algebra of expressions: sums, products and powers of a field, of numbers and of functions of x.

An expression is a tree (`Expression`). Everything that may occur in one has the operators (`Algebra`): +, -, *, /,
** and `at`, which evaluates a subtree at other points. The leaves defined here are `Known`: a number, a tensor with
one entry for each point, or a function of x. Leaves with a field or an unknown are in `expressions`. Calling a tree
with points evaluates it (`evaluate`).

`diff` differentiates a tree by the rules of calculus until derivatives remain at the field only. The tree then
contains everything that a network must supply. The degree of a tree in the field decides how it is solved: 0 no
field at all, 1 linear, 2 anything else. Unknown constants count as known numbers here: for given constants the
equation is still linear.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from gnvpro.pde.forward import along_axis

Operand = Union["Algebra", float, int, Tensor, np.ndarray, Callable[[Tensor], Tensor]]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {  # by their names in torch
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "truediv": operator.truediv,
    "true_divide": operator.truediv,
}


class Algebra(ABC):
    """Operators of everything that can occur in an expression."""

    @abstractmethod
    def expression(self) -> Expression:
        """Return it as a tree."""

    def __add__(self, other: Operand) -> Expression:
        return Sum((self.expression(), as_expression(other)))

    def __radd__(self, other: Operand) -> Expression:
        return Sum((as_expression(other), self.expression()))

    def __sub__(self, other: Operand) -> Expression:
        return Sum((self.expression(), Product((Known(-1.0), as_expression(other)))))

    def __rsub__(self, other: Operand) -> Expression:
        return Sum((as_expression(other), Product((Known(-1.0), self.expression()))))

    def __neg__(self) -> Expression:
        return Product((Known(-1.0), self.expression()))

    def __pos__(self) -> Expression:
        return self.expression()

    def __mul__(self, other: Operand) -> Expression:
        return Product((self.expression(), as_expression(other)))

    def __rmul__(self, other: Operand) -> Expression:
        return Product((as_expression(other), self.expression()))

    def __truediv__(self, other: Operand) -> Expression:
        return Product((self.expression(), Power(as_expression(other), -1.0)))

    def __rtruediv__(self, other: Operand) -> Expression:
        return Product((as_expression(other), Power(self.expression(), -1.0)))

    def __pow__(self, exponent: float) -> Expression:
        if isinstance(exponent, Algebra):  # an unknown exponent is not its first value
            from gnvpro.pde.expressions import exp, log

            return exp(exponent * log(self))
        return Power(self.expression(), float(exponent))

    def at(self, points: Any) -> Expression:
        """Return the expression at other points, one for each point of the equation (or as many as the equation has rows)."""
        return At(self.expression(), points)

    def __abs__(self) -> Expression:
        from gnvpro.pde.expressions import Function

        return Function("abs", self.expression())

    def __float__(self) -> float:
        raise TypeError(
            "an expression is not a number: write pde.sin(u) instead of math.sin(u), and expression(points) for its values"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Handle operators between an array and an expression; every other function of numpy raises an error."""
        apply = OPERATORS.get(ufunc.__name__)
        if apply is not None and method == "__call__" and len(inputs) == 2 and not kwargs:
            return apply(as_expression(inputs[0]), as_expression(inputs[1]))
        raise TypeError(_instead("np", ufunc.__name__))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle operators between a tensor and an expression; every other function of torch raises an error."""
        name = getattr(func, "__name__", "")
        apply = OPERATORS.get(name.strip("_"))
        if apply is not None and len(args) == 2 and not kwargs:
            return apply(as_expression(args[0]), as_expression(args[1]))
        raise TypeError(_instead("torch", name))


class Expression(Algebra):
    """A tree.

    Fields, constants, derivatives and functions of x combine to expressions by +, -, *, / and **; an `Equation` takes one.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(1, [4], dtype=torch.float64))
    >>> burgers = u * pde.d(u, 0) - 0.1 * pde.d(u, 0, 0)
    >>> isinstance(burgers, Expression), burgers.degree
    (True, 2)
    >>> burgers(torch.zeros(5, 1, dtype=torch.float64)).shape
    torch.Size([5, 1])
    """

    children: tuple[Expression, ...] = ()

    def expression(self) -> Expression:
        """Return self."""
        return self

    @property
    def degree(self) -> int:
        """Degree in the field: 0, 1, or 2 for anything nonlinear."""
        return max((child.degree for child in self.children), default=0)

    @abstractmethod
    def diff(self, axis: int) -> Expression:
        """Return the derivative in x along an axis."""

    def __call__(self, points: Any) -> Tensor:
        """Return the values at points (n, dimension) as (n, 1), with the current field and constants, without gradients."""
        from gnvpro.pde.evaluate import evaluate

        return evaluate(self, points)

    def walk(self) -> Iterator[Expression]:
        """Yield all nodes."""
        yield self
        for child in self.children:
            yield from child.walk()


class Known(Expression):
    """A number, a tensor with an entry for each point, or a function of x."""

    def __init__(self, value: float | Tensor | Callable[[Tensor], Tensor]) -> None:
        self.value = value

    def diff(self, axis: int) -> Expression:
        """Return zero for a number, the automatic derivative for a function; a tensor has none."""
        value = self.value
        if isinstance(value, Tensor):
            raise ValueError(
                "a tensor of values at the points cannot be differentiated in x; give the coefficient as a function of x"
            )
        if not callable(value):
            return Known(0.0)
        return Known(_derivative(value, axis))

    def at_points(self, points: Tensor) -> Tensor:
        """Return its values, (points,)."""
        value = self.value
        if callable(value) and not isinstance(value, Tensor):
            with torch.enable_grad():  # the function may differentiate inside
                value = value(points)
        return column(value, points, "a coefficient").detach()


class Sum(Expression):
    """A sum."""

    def __init__(self, children: Sequence[Expression]) -> None:
        self.children = tuple(children)

    def diff(self, axis: int) -> Expression:
        """Differentiate term by term."""
        return add([child.diff(axis) for child in self.children])


class Product(Expression):
    """A product of two factors."""

    def __init__(self, children: tuple[Expression, Expression]) -> None:
        self.children = children

    @property
    def degree(self) -> int:
        """Sum of the factors' degrees."""
        return min(2, sum(child.degree for child in self.children))

    def diff(self, axis: int) -> Expression:
        """Apply the product rule."""
        a, b = self.children
        return add([Product((a.diff(axis), b)), Product((a, b.diff(axis)))])


class Power(Expression):
    """A power with a fixed exponent."""

    def __init__(self, base: Expression, exponent: float) -> None:
        self.children, self.exponent = (base,), exponent

    @property
    def degree(self) -> int:
        """Degree of the base for exponents 0 and 1; anything else is nonlinear."""
        base = self.children[0].degree
        return {0.0: 0, 1.0: base}.get(self.exponent, 2 if base else 0)

    def diff(self, axis: int) -> Expression:
        """Apply the chain rule."""
        base = self.children[0]
        outer = Product((Known(self.exponent), Power(base, self.exponent - 1.0)))
        return Product((outer, base.diff(axis)))


class At(Expression):
    """An expression at its own points."""

    def __init__(self, inside: Expression, points: Any) -> None:
        self.children, self.points = (inside,), points

    def diff(self, axis: int) -> Expression:
        """Raise an error: x does not occur in it."""
        raise ValueError("differentiate before moving to other points: pde.d(u, 0).at(y), not pde.d(u.at(y), 0)")


def as_expression(value: Any) -> Expression:
    """Convert anything that may occur in an expression to a tree."""
    if isinstance(value, Algebra):
        return value.expression()
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return Known(float(value)) if value.dim() == 0 else Known(value)
    if callable(value):
        return Known(value)
    try:
        return Known(float(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"an expression is made of fields, numbers, tensors and functions of x, got {type(value).__name__}"
        ) from None


def add(terms: Sequence[Expression]) -> Expression:
    """Return a sum without the zeros that differentiation leaves."""
    kept = [term for term in terms if not _is_zero(term)]
    if not kept:
        return Known(0.0)
    return kept[0] if len(kept) == 1 else Sum(kept)


def _instead(library: str, name: str) -> str:
    """Return what to write instead of a function of numpy or torch."""
    known = {"absolute": "abs(u)", "abs": "abs(u)", "power": "u**2", "square": "u**2", "negative": "-u"}
    known |= {each: f"pde.{each}(u)" for each in ("sin", "cos", "tanh", "exp", "log", "sqrt")}
    write = f"write {known[name]}" if name in known else "use the functions of gnvpro.pde, as in pde.sin(u)"
    return f"{library}.{name} does not know expressions; {write}"


def _is_zero(term: Expression) -> bool:
    if isinstance(term, Product):
        return any(_is_zero(child) for child in term.children)
    return isinstance(term, Known) and isinstance(term.value, float) and term.value == 0.0


def _derivative(function: Callable[[Tensor], Tensor], axis: int) -> Callable[[Tensor], Tensor]:
    return lambda points: along_axis(lambda x: column(function(x), x, "a coefficient"), points, axis)


def column(value: Any, points: Tensor, what: str) -> Tensor:
    """Return a number, or numbers (points,) or (points, 1), as (points,)."""
    n = points.shape[0]
    tensor = real(value, what).to(points.device)
    if tensor.dim() == 0 or tensor.shape in ((1,), (1, 1)):
        return tensor.reshape(()).expand(n)
    if tensor.shape in ((n,), (n, 1)):
        return tensor.reshape(n)
    raise ValueError(f"{what} must have one number for each of the {n} points, got shape {tuple(tensor.shape)}")


def real(value: Any, what: str) -> Tensor:
    """Return numbers as a float64 tensor."""
    if value.is_complex() if isinstance(value, Tensor) else np.iscomplexobj(value):
        raise TypeError(f"{what} must be real; take u[0] and u[1] for the two parts of a complex field")
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} must be numbers, got {value!r}") from None
