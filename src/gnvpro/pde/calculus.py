"""Derivatives of expressions: pde.d, pde.gradient, pde.laplacian, pde.divergence, pde.directional; integrals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnvpro.pde.expression_algebra import Algebra, Expression, Known, Operand, Product, add, as_expression
from gnvpro.pde.expressions import Atom, Integral
from gnvpro.pde.jets import Laplacian


class Vector(Sequence[Expression]):
    """Expressions, one for each axis.

    Args:
        parts: one expression for each axis.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> len(pde.gradient(u)), pde.gradient(u).dot([1.0, 0.0]).degree
    (2, 1)
    """

    def __init__(self, parts: Sequence[Expression]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, axis: Any) -> Any:
        return self.parts[axis]

    def __iter__(self) -> Iterator[Expression]:
        return iter(self.parts)

    def __call__(self, points: Any) -> Tensor:
        """Return the values at points (n, dimension), one column for each axis."""
        return torch.cat([part(points) for part in self.parts], 1)

    def dot(self, other: Any) -> Expression:
        """Return the sum of products with another vector: expressions, numbers, a tensor (points, axes), a function of x."""
        return add([Product((a, b)) for a, b in zip(self.parts, _components(other, len(self)), strict=True)])

    def __mul__(self, factor: Operand) -> Vector:
        return Vector([part * factor for part in self.parts])

    def __rmul__(self, factor: Operand) -> Vector:
        return Vector([factor * part for part in self.parts])

    def __neg__(self) -> Vector:
        return Vector([-part for part in self.parts])

    def __add__(self, other: Sequence[Expression]) -> Vector:
        return Vector([a + b for a, b in zip(self.parts, other, strict=True)])

    def __sub__(self, other: Sequence[Expression]) -> Vector:
        return Vector([a - b for a, b in zip(self.parts, other, strict=True)])


def d(u: Operand, *axes: int) -> Expression:
    """Return the derivative along axes: `d(u, 0)` is du/dx0, `d(u, 0, 1)` is d2u/dx0dx1.

    Args:
        u: a field or an expression.
        axes: the axes, one for each derivative; a column of the points is an axis.

    Raises:
        ValueError: no axis is given, or the field's points do not have it.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> torch.allclose(pde.d(u**2, 0)(x), (2 * u * pde.d(u, 0))(x))
    True
    """
    expression = as_expression(u)
    _check_axes(expression, axes, "pde.d needs an axis, as in pde.d(u, 0)")
    for axis in axes:
        expression = expression.diff(axis)
    return expression


def gradient(u: Algebra, axes: Sequence[int] | None = None) -> Vector:
    """Return the first derivatives along all axes, or some.

    Args:
        u: a field or an expression.
        axes: the axes, such as [1] if axis 0 is time; all if not given.

    Raises:
        ValueError, TypeError: `axes` are empty, no list, or no axes of the points.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> pde.gradient(u)(x).shape
    torch.Size([5, 2])
    """
    return Vector([d(u, axis) for axis in _axes(u, axes)])


def laplacian(u: Algebra, axes: Sequence[int] | None = None) -> Expression:
    """Return the sum of the second derivatives along all axes, or some.

    Args:
        u: a field or an expression.
        axes: the axes, such as [1] if axis 0 is time; all if not given.

    Raises:
        ValueError, TypeError: `axes` are empty, repeated, no list, or no axes of the points.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> torch.allclose(pde.laplacian(u)(x), (pde.d(u, 0, 0) + pde.d(u, 1, 1))(x))
    True
    """
    chosen, expression = _axes(u, axes), as_expression(u)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"each axis of a Laplacian counts once, got {list(chosen)}")
    if isinstance(expression, Atom) and expression.channel == ():
        return Atom(expression.field, expression.output, Laplacian(chosen))
    return add([d(expression, axis, axis) for axis in chosen])


def divergence(vector: Sequence[Expression]) -> Expression:
    """Return the sum of the derivatives of each component along its axis.

    Args:
        vector: one expression for each axis, such as a `Vector`.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> torch.allclose(pde.divergence(pde.gradient(u))(x), pde.laplacian(u)(x))
    True
    """
    return add([d(part, axis) for axis, part in enumerate(vector)])


def dot(a: Sequence[Expression], b: Any) -> Expression:
    """Return the scalar product of two vectors.

    Args:
        a: expressions, one for each axis.
        b: expressions, numbers, a tensor (points, axes), or a function of x that returns one.

    Raises:
        ValueError: `b` has another number of components.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> torch.allclose(pde.dot(pde.gradient(u), [1.0, 2.0])(x), (pde.d(u, 0) + 2 * pde.d(u, 1))(x))
    True
    """
    return Vector(a).dot(b)


def directional(u: Algebra, direction: Any, axes: Sequence[int] | None = None) -> Expression:
    """Return the derivative along a direction; with outward normals, the normal derivative of a Neumann condition.

    Args:
        u: a field or an expression.
        direction: numbers, one vector for each point (n, dimension), or a function of x that returns them.
        axes: the axes of the direction; all if not given.

    Raises:
        ValueError: the direction has another number of components.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> torch.allclose(pde.directional(u, [0.0, 1.0])(x), pde.d(u, 1)(x))
    True
    """
    return gradient(u, axes).dot(direction)


def integral(u: Operand, points: Any, weights: Any) -> Expression:
    """Return weighted sums of an expression over separate points.

    Args:
        u: a field or an expression.
        points: the nodes: (q, dimension) for one sum, (m, q, dimension) for m of them.
        weights: the weights of the nodes, (q,) or (m, q).

    An equation of integrals alone has no points:

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> mean = pde.Equation(pde.integral(u, x, torch.full((5,), 0.2, dtype=torch.float64)), None, 1.0)
    """
    return Integral(as_expression(u), points, weights)


def _components(vector: Any, size: int) -> list[Expression]:
    if isinstance(vector, Tensor) and vector.dim() == 2:
        if vector.shape[1] != size:
            raise ValueError(f"a direction needs {size} components, got a tensor of shape {tuple(vector.shape)}")
        return [Known(vector[:, i]) for i in range(size)]
    if callable(vector) and not isinstance(vector, Tensor | Algebra):
        return [Known(_component(vector, i)) for i in range(size)]
    if len(vector) != size:
        raise ValueError(f"a direction needs {size} components, got {len(vector)}")
    return [as_expression(part) for part in vector]


def _component(function: Callable[[Tensor], Tensor], i: int) -> Callable[[Tensor], Tensor]:
    return lambda points: function(points)[:, i]


def _dimension(expression: Expression) -> int:
    for node in expression.walk():
        if isinstance(node, Atom):
            return node.field.n_inputs
    raise ValueError("there is no field in this expression to take derivatives of")


def _axes(u: Algebra, axes: Sequence[int] | None) -> tuple[int, ...]:
    expression = as_expression(u)
    if axes is None:
        return tuple(range(_dimension(expression)))
    if not isinstance(axes, Sequence):
        raise TypeError(f"axes are a list, as in axes=[1], got {axes!r}")
    _check_axes(expression, axes, "axes are empty: name one, as in axes=[1]")
    return tuple(sorted(axes))


def _check_axes(expression: Expression, axes: Sequence[int], if_empty: str) -> None:
    if not axes:
        raise ValueError(if_empty)
    for axis in axes:
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"an axis is a whole number, as in pde.d(u, 0, 1), got {axis!r}")
    for node in expression.walk():
        if isinstance(node, Atom):
            for axis in axes:
                if not 0 <= axis < node.field.n_inputs:
                    raise ValueError(f"points have {node.field.n_inputs} coordinates, so there is no axis {axis}")
