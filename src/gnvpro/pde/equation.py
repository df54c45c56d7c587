"""An equation at points, split into what the network must supply and the function F of it.

    F(atoms(x_i), x_i, constants) = values_i                 one row for each point (or for each integral)

The atoms are derivatives of outputs of the field at a site: the equation's own points, the points of an `At`, or the
nodes of an `Integral`, each of which belongs to one row. So one backward pass through F alone gives the derivative
of every row in every atom, and a row of the linear problem for the head W is

    sum over its sites' points q and atoms a   dF/da(q)  D_a [phi, 1](x_q)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnvpro.arguments import check_number
from gnvpro.pde.expression_algebra import Algebra, At, Expression, Known, Power, Product, Sum, as_expression, column
from gnvpro.pde.expressions import Atom, Constant, Function, Integral
from gnvpro.pde.field import Field
from gnvpro.pde.jets import Channel, Laplacian
from gnvpro.pde.points import PointSet, as_points

Key = tuple[int, Channel]  # output and derivative


class Equation:
    """An expression that should equal values at points.

    Args:
        expression: of the field, as in `-pde.laplacian(u)`.
        points: (n, dimension), or a `pde.points` set; None for an equation of integrals or of `u.at(...)` alone.
        values: a number, a tensor with one entry for each point, a function of x, or another expression.
        weight: of the mean of its squared residuals in the sum over all equations; balanced by default.
        name: for the history and the report.

    Raises:
        ValueError: no field in it, points of another dimension, or values that are not finite or too few.

    Example:
        >>> import torch, gnvpro
        >>> from gnvpro import pde
        >>> u = pde.Field(gnvpro.networks.MLP(2, [8], dtype=torch.float64))
        >>> equation = pde.Equation(-pde.laplacian(u), pde.points.Box([0, 0], [1, 1]).inside(50), 1.0)
        >>> equation.linear, equation.rows
        (True, 50)
    """

    def __init__(
        self,
        expression: Algebra,
        points: Any = None,
        values: Any = 0.0,
        weight: float | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(expression, Algebra):
            parts = "; write an equation for each component" if isinstance(expression, Sequence) else ""
            raise ValueError(
                f"an equation needs an expression with a field in it, got {type(expression).__name__}{parts}"
            )
        if isinstance(values, Algebra):
            expression, values = expression - values, 0.0
        self.expression, self.values, self.name = as_expression(expression), values, name
        fields = {id(node.field): node.field for node in self.expression.walk() if isinstance(node, Atom)}
        if not fields:
            raise ValueError("the expression has no field in it: there is nothing to solve for")
        if len(fields) > 1:
            raise ValueError("an equation holds outputs of one field: give pde.Field outputs=2 and use u[0], u[1]")
        self.field: Field = next(iter(fields.values()))
        if isinstance(weight, Tensor):
            if weight.numel() != 1:
                raise ValueError(
                    "weight is one number; where points differ, multiply the expression by a function of x"
                )
            weight = float(weight)
        self.weight = None if weight is None else check_number("weight", weight, 0.0, strict=True)
        self.set = points if isinstance(points, PointSet) else None
        self.constants = list({id(n): n for n in self.expression.walk() if isinstance(n, Constant)}.values())
        self.compiled = Compiled(
            self.expression, self.field, None if points is None else as_points(points, "an equation")
        )
        self.targets = self._targets(values, self.compiled)

    @property
    def linear(self) -> bool:
        """True if it is linear in the field."""
        return self.expression.degree == 1

    @property
    def rows(self) -> int:
        """Number of residuals."""
        return self.compiled.rows

    @property
    def can_be_redrawn(self) -> bool:
        """True if it can be stated at other points: its points were drawn, and nothing in it belongs to single points."""
        tied = any(
            isinstance(n, At | Integral) or (isinstance(n, Known) and isinstance(n.value, Tensor))
            for n in self.expression.walk()
        )
        free = callable(self.values) or not hasattr(self.values, "__len__")
        number = not isinstance(self.values, Tensor) or self.values.numel() == 1
        return self.set is not None and self.set.draw is not None and not tied and free and number

    def at(self, points: PointSet) -> Equation:
        """Return the same equation at other points."""
        return Equation(self.expression, points, self.values, self.weight, self.name)

    def _targets(self, values: Any, compiled: Compiled) -> Tensor:
        points = compiled.sites[0].points
        if callable(values) and not isinstance(values, Tensor):
            if compiled.own is None:
                raise ValueError("values as a function of x need points; this equation has none of its own")
            with torch.enable_grad():  # the function may differentiate inside, also when points are drawn again
                values = values(points)
        like = points if compiled.own is not None else points.new_zeros(compiled.rows, 1)
        given = values.detach() if isinstance(values, Tensor) else values
        targets = column(given, like, "the values of an equation").clone(memory_format=torch.contiguous_format)
        if not bool(torch.isfinite(targets).all()):
            bad = (~torch.isfinite(targets)).nonzero()[:, 0]
            at = "" if compiled.own is None else f", the first at {point_text(points[bad[0]])}"
            raise ValueError(f"the values of an equation hold {len(bad)} that are not finite (of {len(targets)}){at}")
        return targets


@dataclass(frozen=True)
class Site:
    """Points at which atoms are needed, and the row of the equation for each."""

    points: Tensor
    rows: Tensor | None  # None: point i belongs to row i
    atoms: tuple[Key, ...]


@dataclass(frozen=True)
class Linearized:
    """F and its derivatives: by site and atom, and by constant."""

    values: Tensor  # (rows,)
    in_atoms: list[dict[Key, Tensor]]
    in_constants: dict[int, Tensor]  # by id, (rows,)


Values = list[dict[Key, Tensor]]


class Compiled:
    """An expression with its sites."""

    def __init__(self, expression: Expression, field: Field, points: Tensor | None) -> None:
        self.expression, self.own = expression, points
        self.places: dict[int, int] = {}  # node -> site
        self.weights: dict[int, Tensor] = {}
        collected: list[tuple[Tensor, Tensor | None, set[Key]]] = []
        if points is not None:
            self._check(points, field)
            collected.append((points, None, set()))
        counts = set() if points is None else {len(points)}
        for node in expression.walk():
            if isinstance(node, At):
                where = as_points(node.points, "at")
                self.places[id(node)] = len(collected)
                collected.append((where, None, set()))
                counts.add(len(where))
            elif isinstance(node, Integral):
                where, rows, weights, count = _nodes(node)
                self.places[id(node)] = len(collected)
                self.weights[id(node)] = weights
                collected.append((where, rows, set()))
                if count > 1:
                    counts.add(count)
            else:
                continue
            self._check(where, field)
            if any(isinstance(inner, At | Integral) for child in node.children for inner in child.walk()):
                raise ValueError("an expression at other points, or an integral, cannot hold another one")
        if len(counts) > 1:
            raise ValueError(f"all parts of an equation need the same number of rows, got {sorted(counts)}")
        self.rows = counts.pop() if counts else 1
        if self.rows > 1:
            self._repeat_single_integrals(collected)
        self._collect(expression, 0 if points is not None else None, [atoms for _, _, atoms in collected])
        self.sites = tuple(Site(p, r, tuple(sorted(atoms, key=_order))) for p, r, atoms in collected)

    def _repeat_single_integrals(self, collected: list[tuple[Tensor, Tensor | None, set[Key]]]) -> None:
        """Repeat one integral in an equation of many rows for each of them."""
        for node in self.expression.walk():
            if isinstance(node, Integral):
                place = self.places[id(node)]
                where, own, atoms = collected[place]
                assert own is not None
                if int(own[-1]) == 0:
                    every = torch.arange(self.rows).repeat_interleave(len(where))
                    collected[place] = (where.repeat(self.rows, 1), every, atoms)
                    self.weights[id(node)] = self.weights[id(node)].repeat(self.rows)

    @staticmethod
    def _check(points: Tensor, field: Field) -> None:
        if points.shape[1] != field.n_inputs:
            raise ValueError(f"points have {points.shape[1]} coordinates, the field takes {field.n_inputs}")

    def _collect(self, node: Expression, site: int | None, found: list[set[Key]]) -> None:
        if isinstance(node, Atom | Known) and site is None and not (isinstance(node, Known) and _is_number(node.value)):
            raise ValueError("the equation has no points of its own, but a part of it needs them; give points")
        if isinstance(node, Atom):
            assert site is not None
            found[site].add((node.output, node.channel))
        for child in node.children:
            self._collect(child, self.places.get(id(node), site), found)

    # -- evaluation

    def evaluate(self, atoms: Values, constants: Callable[[Constant, int | None], Any]) -> Tensor:
        """Return F from the atoms at every site."""

        def value(node: Expression, site: int | None) -> Any:
            if isinstance(node, Atom):
                assert site is not None
                return atoms[site][(node.output, node.channel)]
            if isinstance(node, Known):
                return node.value if _is_number(node.value) else node.at_points(self.sites[site or 0].points)
            if isinstance(node, Constant):
                return constants(node, site)
            inner = self.places.get(id(node), site)
            parts = [value(child, inner) for child in node.children]
            if isinstance(node, Sum):
                return sum(parts[1:], start=parts[0])
            if isinstance(node, Product):
                return parts[0] * parts[1]
            if isinstance(node, Power):
                return parts[0] ** node.exponent
            if isinstance(node, Function):
                return getattr(torch, node.name)(torch.as_tensor(parts[0], dtype=torch.float64))
            if isinstance(node, Integral):
                assert inner is not None
                rows, weights = self.sites[inner].rows, self.weights[id(node)]
                assert rows is not None
                return weights.new_zeros(self.rows).index_add(0, rows, weights * parts[0])
            assert isinstance(node, At)
            return parts[0]

        result = torch.as_tensor(value(self.expression, 0 if self.own is not None else None), dtype=torch.float64)
        return result.expand(self.rows)

    def linearize(self, atoms: Values, constants: dict[int, float]) -> Linearized:
        """Return F and its derivatives by one backward pass, with a separate leaf for every point of a site."""
        leaves = [{key: v.detach().requires_grad_() for key, v in site.items()} for site in atoms]
        unknown: dict[tuple[int, int | None], Tensor] = {}

        def constant(node: Constant, site: int | None) -> Tensor:
            key = (id(node), site)
            if key not in unknown:
                count = self.rows if site is None else len(self.sites[site].points)
                unknown[key] = torch.full((count,), constants[id(node)], dtype=torch.float64, requires_grad=True)
            return unknown[key]

        with torch.enable_grad():
            values = self.evaluate(leaves, constant)
            flat = [v for site in leaves for v in site.values()] + list(unknown.values())
            slopes = (
                torch.autograd.grad(values.sum(), flat, allow_unused=True)
                if values.requires_grad
                else [None] * len(flat)
            )
        made = iter([torch.zeros_like(v) if g is None else g for v, g in zip(flat, slopes, strict=True)])
        in_atoms = [{key: next(made) for key in site} for site in leaves]
        in_constants: dict[int, Tensor] = {}
        for (node, site), slope in zip(unknown, made, strict=True):
            rows = None if site is None else self.sites[site].rows
            by_row = slope if rows is None else slope.new_zeros(self.rows).index_add(0, rows, slope)
            in_constants[node] = in_constants.get(node, 0.0) + by_row
        return Linearized(values.detach(), in_atoms, in_constants)

    def zeros(self, fill: float = 0.0) -> Values:
        """Return the atoms of a field that is zero, or a number."""
        return [{key: torch.full((len(s.points),), fill, dtype=torch.float64) for key in s.atoms} for s in self.sites]


def point_text(point: Tensor) -> str:
    """Return a point as text for messages."""
    return "(" + ", ".join(f"{float(x):.6g}" for x in point) + ")"


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int)


def _order(key: Key) -> tuple[int, int, tuple[int, ...]]:
    output, channel = key
    axes = channel.axes if isinstance(channel, Laplacian) else channel
    return output, -1 if isinstance(channel, Laplacian) else len(channel), axes


def _nodes(node: Integral) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the nodes of integrals in one list, their rows, their weights, and the number of integrals."""
    points = torch.as_tensor(getattr(node.points, "points", node.points), dtype=torch.float64)
    if points.dim() == 2:
        points = points[None]
    if points.dim() != 3:
        raise ValueError(
            f"the points of an integral are (q, dimension) or (m, q, dimension), got {tuple(points.shape)}"
        )
    m, q, dimension = points.shape
    weights = torch.as_tensor(node.weights, dtype=torch.float64)
    if weights.dim() == 2 and weights.shape != (m, q):
        weights = weights.reshape(-1)
    if weights.dim() < 2 and weights.shape not in ((), (q,)):
        raise ValueError(f"an integral needs a weight for each of its {q} points, got shape {tuple(weights.shape)}")
    rows = torch.arange(m).repeat_interleave(q)
    return as_points(points.reshape(-1, dimension), "an integral"), rows, weights.expand(m, q).reshape(-1), m
