"""More points where an equation holds worse than on its own.

Where the residual on fresh points is several times as large as on the points of an equation, it gets as many points again,
drawn from the same place with a probability in proportion to the residual there (Wu, Zhu, Tan, Kartha, Lu 2023): most of them
at a front, or in a corner. At the next look that says so these are drawn again. The points that the user gave stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnvpro.pde.eliminate import Fit
from gnvpro.pde.equation import Equation
from gnvpro.pde.points import PointSet
from gnvpro.pde.system import System

OVERFIT = 1.5  # times the residual on the points: then there are too few of them
MATTERS = 0.1  # share of the misfit on fresh points below which an equation is left alone
CANDIDATES = 8  # for each point drawn


class Refinement:
    """The equations as they were given, and with more points."""

    def __init__(self, equations: Sequence[Equation], seed: int) -> None:
        self.given, self.seed = tuple(equations), seed

    def overfitted(self, system: System, fit: Fit, squares: Sequence[float]) -> list[int]:
        """The equations that need other points; `squares` are mean squares of the residuals on fresh points."""
        own = system.by_equation(fit.assembled.residual)
        parts = [weight * square for weight, square in zip(system.weights, squares, strict=True)]
        found = []
        for i, (equation, square) in enumerate(zip(self.given, squares, strict=True)):
            on_points = float(own[i].square().sum()) / system.weights[i]
            matters = parts[i] >= MATTERS * sum(parts)
            if equation.can_be_redrawn and matters and square > OVERFIT**2 * on_points:
                found.append(i)
        return found

    def refined(self, system: System, x: Tensor, W: Tensor, which: Sequence[int], look: int) -> System:
        """The system with new points for some equations."""
        equations = list(system.equations)
        for i in which:
            added = self._drawn(system, self.given[i], x, W, 10_007 * (self.seed + 1) + 101 * look + i)
            equations[i] = self.with_points(i, added)
        return System(system.field, equations, system.weights, system.constants)

    def with_points(self, i: int, added: Tensor) -> Equation:
        """An equation at its given points and more."""
        points = self.given[i].set
        assert points is not None
        return self.given[i].at(PointSet(torch.cat([points.points, added]), points.draw, points.seed))

    def added(self, system: System) -> list[Tensor | None]:
        """What each equation has beyond its given points."""
        return [
            e.set.points[g.rows :] if e.set is not None and e.rows > g.rows else None
            for e, g in zip(system.equations, self.given, strict=True)
        ]

    def restored(self, system: System, added: Sequence[Tensor | None]) -> System:
        """The system with points that were drawn before."""
        equations = [
            e if a is None else self.with_points(i, a) for i, (e, a) in enumerate(zip(self.given, added, strict=True))
        ]
        return System(system.field, equations, system.weights, system.constants)

    @staticmethod
    @torch.no_grad()
    def _drawn(system: System, equation: Equation, x: Tensor, W: Tensor, seed: int) -> Tensor:
        assert equation.set is not None
        candidates = equation.set.fresh(CANDIDATES * equation.rows, seed)
        there = System(system.field, [equation.at(PointSet(candidates))], [1.0], system.constants)
        sizes = there.residual(there.carry(x), x, W).abs()
        likely = sizes / sizes.max().clamp(min=1e-300) + 1e-12  # all of them can be drawn
        chosen = torch.multinomial(likely, equation.rows, generator=torch.Generator().manual_seed(seed))
        return candidates[chosen]
