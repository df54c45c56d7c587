"""More points for equations with larger residuals on fresh points than on their own.

An equation gets as many points again if its residual on fresh points is larger than on its own, or if progress is
slow and the residual lives on a small part of the domain, such as a front or a corner. The new points are drawn from
the same place with a probability proportional to the size of the residual there (Wu, Zhu, Tan, Kartha, Lu 2023),
again at every such check. The user's points are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnvpro.pde.equation import Equation
from gnvpro.pde.field_head import FieldFit
from gnvpro.pde.points import PointSet
from gnvpro.pde.residuals import Seen
from gnvpro.pde.system import System

OVERFIT = 1.5  # times the residual on the points: above this there are too few of them
PEAKED = 2.0  # root mean square over mean size of the residual: above this it lives on a small part of the domain
MATTERS = 0.1  # share of the misfit on fresh points below which an equation is left unchanged
CANDIDATES = 8  # candidates for each point drawn


class Refinement:
    """The original equations, and the same equations with more points."""

    def __init__(self, equations: Sequence[Equation], seed: int) -> None:
        self.given, self.seed = tuple(equations), seed

    def needing(self, system: System, fit: FieldFit, seen: Sequence[Seen], slow: bool) -> list[int]:
        """Return the equations that need more points, from their residuals on fresh ones; `slow` means little recent
        progress.
        """
        own = system.by_equation(fit.assembled.residual)
        parts = [weight * each.mean_square for weight, each in zip(system.weights, seen, strict=True)]
        found = []
        for i, (equation, each) in enumerate(zip(self.given, seen, strict=True)):
            on_points = float(own[i].square().sum()) / system.weights[i]
            overfits = each.mean_square > OVERFIT**2 * on_points
            matters = parts[i] >= MATTERS * sum(parts)
            if equation.can_be_redrawn and matters and (overfits or (slow and each.peaked > PEAKED)):
                found.append(i)
        return found

    def refined(self, system: System, x: Tensor, W: Tensor, which: Sequence[int], look: int) -> System:
        """Return the system with new points for some equations."""
        equations = list(system.equations)
        for i in which:
            added = self._drawn(system, self.given[i], x, W, 10_007 * (self.seed + 1) + 101 * look + i)
            equations[i] = self.with_points(i, added)
        return system.holding(equations)

    def with_points(self, i: int, added: Tensor) -> Equation:
        """Return an equation at its original points and more."""
        points = self.given[i].set
        assert points is not None
        return self.given[i].at(PointSet(torch.cat([points.points, added]), points.draw, points.seed))

    def added(self, system: System) -> list[Tensor | None]:
        """Return the points of each equation beyond its original ones."""
        return [
            e.set.points[g.rows :] if e.set is not None and e.rows > g.rows else None
            for e, g in zip(system.equations, self.given, strict=True)
        ]

    def restored(self, system: System, added: Sequence[Tensor | None]) -> System:
        """Return the system with points that were drawn before."""
        equations = [
            e if a is None else self.with_points(i, a) for i, (e, a) in enumerate(zip(self.given, added, strict=True))
        ]
        return system.holding(equations)

    @staticmethod
    @torch.no_grad()
    def _drawn(system: System, equation: Equation, x: Tensor, W: Tensor, seed: int) -> Tensor:
        assert equation.set is not None
        candidates = equation.set.fresh(CANDIDATES * equation.rows, seed)
        there = system.holding([equation.at(PointSet(candidates))], [1.0])
        sizes = there.residual(there.carry(x), x, W).abs()
        likely = sizes / sizes.max().clamp(min=1e-300) + 1e-12  # every candidate has a chance
        chosen = torch.multinomial(likely, equation.rows, generator=torch.Generator().manual_seed(seed))
        return candidates[chosen]
