"""Check the arguments of `pde.solve` before any work: raise errors for what cannot work, and warn of surprises."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from gnvpro.pde.activations import PIECEWISE_LINEAR
from gnvpro.pde.equation import Equation, point_text
from gnvpro.pde.expression_algebra import Known
from gnvpro.pde.expressions import Atom
from gnvpro.pde.field import Field
from gnvpro.pde.jets import order_of
from gnvpro.pde.system import System


def check_equations(field: Any, equations: Any) -> list[Equation]:
    """A list of equations for this field."""
    if not isinstance(field, Field):
        raise TypeError(f"pde.solve takes a pde.Field first, got {type(field).__name__}")
    if isinstance(equations, Equation):
        equations = [equations]
    checked = list(equations)
    if not checked:
        raise ValueError("pde.solve needs at least one equation")
    for equation in checked:
        if not isinstance(equation, Equation):
            raise TypeError(f"equations are pde.Equation objects, got {type(equation).__name__}")
        if equation.field is not field:
            raise ValueError("an equation is about another field than the one to solve for")
    return checked


def order_of_equation(equation: Equation) -> int:
    """The highest derivative in it."""
    return max(order_of(node.channel) for node in equation.expression.walk() if isinstance(node, Atom))


def check_smooth(field: Field, equations: Sequence[Equation], system: System) -> None:
    """Raise an error if second derivatives are needed but zero for this network."""
    order = max(order_of_equation(e) for e in equations)
    if order < 2:
        return
    kinds = {type(m).__name__ for m in field.features.modules() if isinstance(m, PIECEWISE_LINEAR)}
    reason = f"{', '.join(sorted(kinds))} is linear piece by piece" if kinds else "all its second derivatives are zero"
    saturated = "" if kinds else ", or scale the points if they are so far out that its units are flat there"
    carried = system.carry(system.x())
    zero = all(
        not bool(done.jet[i].any())
        for (channels, _), done in zip(system.groups, carried.passes, strict=True)
        for i, channel in enumerate(channels.keys)
        if order_of(channel) >= 2
    )
    if kinds or zero:
        raise ValueError(
            f"the equations hold derivatives of order {order}, but the network has none: {reason}. "
            f"Use a smooth activation, such as torch.nn.Tanh or pde.Sine{saturated}"
        )


def not_finite(system: System, x: torch.Tensor, W: torch.Tensor) -> str:
    """Name the equation whose rows are not finite, and a likely cause."""
    rows = system.assemble(system.carry(x), x, W)
    whole = rows.Z.sum(1) + rows.residual
    bad = next(i for i, part in enumerate(system.by_equation(whole)) if not bool(torch.isfinite(part).all()))
    equation = system.equations[bad]
    rows_of = ~torch.isfinite(system.by_equation(whole)[bad])
    first, at = int(rows_of.nonzero()[0]), ""
    if equation.compiled.own is not None:
        at = (
            f" at {int(rows_of.sum())} of {equation.rows} points, the first {point_text(equation.compiled.own[first])},"
        )
    return (
        f"{equation.name or f'equation {bad}'} has no finite value or derivative{at} for the field that the run "
        "begins with: look for a coefficient that is not finite at some point, points that should be scaled, and terms such "
        "as 1/u or pde.log(u), since a field begins at zero (u.head.bias can be set to begin elsewhere)"
    )


def warn_about(equations: Sequence[Equation], system: System) -> list[str]:
    """Warn of a singular problem and name the cause; the solution of least norm is then found."""
    said = []
    width = (system.n_features + 1) * system.outputs
    if system.rows < width:
        said.append(
            f"there are {system.rows} rows for a head of {width} numbers: fewer points than features. The equations can hold "
            "at all points without holding in between; give more points"
        )
    if singular_outputs(system):
        said.append(
            f"no equation fixes the value of {', '.join(f'u[{k}]' for k in singular_outputs(system))}, only derivatives or "
            "differences of it: there is no boundary condition that makes the solution unique. The one of least norm is found"
        )
    elif (
        len({order_of_equation(e) for e in equations}) == 1
        and order_of_equation(equations[0]) > 0
        and not any(map(_has_function, equations))
    ):
        said.append(
            "there is no boundary or initial condition: all equations have the same order. The one of least norm is found"
        )
    for text in said:
        warnings.warn(text, UserWarning, stacklevel=3)
    return said


def _has_function(equation: Equation) -> bool:
    """Return whether it contains a function of x: conditions may be built in, as in u = x (1 - x) v."""
    return any(
        isinstance(n, Known) and callable(n.value) and not isinstance(n.value, torch.Tensor)
        for n in equation.expression.walk()
    )


@torch.no_grad()
def singular_outputs(system: System) -> list[int]:
    """Outputs to which a constant may be added without changing a residual."""
    W = torch.full_like(system.field.W(), 1.0)
    x = system.x()
    Z = system.assemble(system.carry(x), x, W).Z
    width = system.n_features + 1
    return [k for k in range(system.outputs) if not bool(Z[:, (k + 1) * width - 1].abs().max() > 1e-12)]
