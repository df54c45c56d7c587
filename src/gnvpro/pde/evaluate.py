"""Evaluate expressions at points: `pde.d(u, 0)(x)` after solving, as `u(x)` evaluates the field."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnvpro.network.evaluation import evaluating
from gnvpro.pde.equation import Equation
from gnvpro.pde.expression_algebra import Expression
from gnvpro.pde.expressions import Atom
from gnvpro.pde.field import Field
from gnvpro.pde.points import as_points
from gnvpro.pde.system import System


def evaluate(expression: Expression, points: Any) -> Tensor:
    """Return an expression at points (n, dimension) as (n, 1), with the current values of field and constants.

    Raises:
        ValueError: no field occurs in it, several do, or it belongs to other points (`at`, tensors of another length).
    """
    where = as_points(points, "an expression")
    fields = {id(node.field): node.field for node in expression.walk() if isinstance(node, Atom)}
    if not fields:
        raise ValueError("the expression has no field in it; evaluate a function of x directly")
    if len(fields) > 1:
        raise ValueError("an expression with several fields is evaluated part by part, one field at a time")
    field = next(iter(fields.values()))
    with evaluating(field):
        return values_of(expression, field, where)[:, None]


@torch.no_grad()
def values_of(expression: Expression, field: Field, points: Tensor) -> Tensor:
    """Return the values (n,) that an expression has for a field of these outputs."""
    system = System(field, [Equation(expression, points, 0.0, 1.0)], [1.0])
    x = system.x()
    return system.residual(system.carry(x), x, field.W()) / system.roots[0]
