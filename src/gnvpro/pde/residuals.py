"""The residuals away from the points of the equations: the check that every result reports.

If an equation's points were drawn (`pde.points`) and its values are known everywhere, the residual is measured on
fresh points. If the points were given, each is left out in turn: with Q from the elimination of the head and h_i =
|Q_i|^2,

    residual at point i of the head found without it  =  rho_i / (1 - h_i)

with theta fixed, exactly for linear equations. If h_i is one, only this point determines its value (the ends of a
line, one integral); its residual is then reported unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.pde.equation import Equation
from gnvpro.pde.field_head import FieldFit
from gnvpro.pde.points import PointSet
from gnvpro.pde.system import System

MOST_FRESH = 4000
FEWEST_FRESH = 200
LEAST_FREEDOM = 1e-6  # 1 - h below which a point cannot be left out


class Residual(float):
    """The root mean square of one equation's residual away from its points; a float.

    `on_points` is the same on the points of the equation; `how` describes the check.

    `Solution.residuals` has one for each equation.

    Args:
        checked: the root mean square away from the points.
        on_points: the same on the points of the equation.
        name: name of the equation.
        how: how it was checked, in words.
        rows: number of points of the equation.

    >>> Residual(0.002, 0.001, name="Poisson", how="on fresh points", rows=50)
    Residual(Poisson: 0.002 on fresh points, 0.001 on its 50 points)
    """

    name: str
    on_points: float
    how: str
    rows: int

    def __new__(cls, checked: float, on_points: float, name: str, how: str, rows: int) -> Residual:
        """Make the float and store its attributes."""
        made = super().__new__(cls, checked)
        made.name, made.on_points, made.how, made.rows = name, on_points, how, rows
        return made

    def __repr__(self) -> str:
        return f"Residual({self.name}: {float(self):.3g} {self.how}, {self.on_points:.3g} on its {self.rows} points)"


@dataclass(frozen=True)
class Seen:
    """A residual away from the points of its equation."""

    mean_square: float
    mean_size: float

    @property
    def peaked(self) -> float:
        """Root mean square over mean size: 1.3 for a bell curve, large if few points dominate."""
        return math.sqrt(self.mean_square) / self.mean_size if self.mean_size > 0 else 1.0


class Check:
    """The equations of a system at fresh points, if these can be drawn."""

    def __init__(self, system: System, seed: int) -> None:
        self.system = system
        self.fresh: list[Equation | None] = []
        for i, equation in enumerate(system.equations):
            fresh = None
            if equation.can_be_redrawn and equation.set is not None:
                count = min(max(equation.rows, FEWEST_FRESH), MOST_FRESH)
                fresh = equation.at(PointSet(equation.set.fresh(count, 7919 * (seed + 1) + i)))
            self.fresh.append(fresh)
        drawn = [e for e in self.fresh if e is not None]
        self._fresh_system = system.holding(drawn, [1.0] * len(drawn)) if drawn else None

    @torch.no_grad()
    def seen(self, x: Tensor, fit: FieldFit) -> list[Seen]:
        """Return the residual of each equation."""
        system = self.system
        fresh: list[Tensor] = []
        if self._fresh_system is not None:
            rows = self._fresh_system.residual(self._fresh_system.carry(x), x, fit.W)
            own = zip(self._fresh_system.by_equation(rows), self._fresh_system.roots, strict=True)
            fresh = [part / root for part, root in own]
        left_out = system.by_equation(fit.assembled.residual / self._freedom(fit))
        made, drawn = [], iter(fresh)
        for equation, root, rows in zip(self.fresh, system.roots, left_out, strict=True):
            residual = rows / root if equation is None else next(drawn)
            made.append(Seen(float(residual.square().mean()), float(residual.abs().mean())))
        return made

    def _freedom(self, fit: FieldFit) -> Tensor:
        """Return 1 - h by row, and 1 if h is one."""
        freedom = 1.0 - fit.Q[: self.system.rows].square().sum(1)
        return torch.where(freedom > LEAST_FREEDOM, freedom, 1.0)

    def misfit(self, seen: Sequence[Seen]) -> float:
        """Return the misfit with these residuals."""
        return 0.5 * sum(w * s.mean_square for w, s in zip(self.system.weights, seen, strict=True))

    def report(self, x: Tensor, fit: FieldFit) -> list[Residual]:
        """Return one entry for each equation."""
        system = self.system
        own = system.by_equation(fit.assembled.residual)
        made = []
        for i, seen in enumerate(self.seen(x, fit)):
            equation = system.equations[i]
            on_points = math.sqrt(float(own[i].square().mean())) / system.roots[i]
            how = "left out" if self.fresh[i] is None else "on fresh points"
            made.append(
                Residual(math.sqrt(seen.mean_square), on_points, equation.name or f"equation {i}", how, equation.rows)
            )
        return made
