"""Steps along one direction: a local model for it, and the search for the length.

A Newton or quasi-Newton direction is d = -H g with H an inverse curvature. Since d' H^-1 d = -g'd, the model
predicts

    predicted reduction of t d  =  -(t - t^2 / 2) g'd,             0 < t <= 1,

so it is a local model like the others, and the loop in `trust_region` needs no change. `SearchRule` restarts in each
direction, with t = 1 or the largest t that the model allows. If other models alternate with this one, it bounds
their steps by a radius.

Legend: t -> fraction, g'd -> slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gnvpro.minimize.step_rules import LineSearchBound, LocalModel, RadiusRule, Step

SHORTEST_FRACTION = 1e-3  # fraction of a step; if that is still too long, the direction is wrong


@dataclass(frozen=True)
class LineModel:
    """The model along one direction."""

    gradient: Tensor
    direction: Tensor
    rank: int
    most: float = 1.0  # first fraction
    first_radius: ClassVar[float] = math.inf  # no bound: the first trial is the whole step

    @cached_property
    def slope(self) -> float:
        """The slope g'd, negative."""
        return float(self.gradient @ self.direction)

    def solve_within(self, radius: float) -> Step:
        """Return the direction, shortened to the radius."""
        return self.along(min(1.0, radius / float(torch.linalg.vector_norm(self.direction))))

    def along(self, fraction: float) -> Step:
        """Return a fraction of the whole step."""
        d_x = fraction * self.direction
        predicted = -(fraction - 0.5 * fraction**2) * self.slope
        return Step(d_x, float(torch.linalg.vector_norm(d_x)), predicted, 1.0 / fraction - 1.0)


@dataclass(frozen=True)
class SearchRule:
    """A backtracking search along the direction of each `LineModel`; a radius for steps of other models."""

    radius: ClassVar[RadiusRule] = RadiusRule()
    accept_above: ClassVar[float] = radius.accept_above

    def propose(self, model: LocalModel, bound: LineSearchBound | None) -> tuple[Step, LineSearchBound]:
        """Return the step within the radius, or the fraction of it."""
        bound = bound or LineSearchBound()
        if isinstance(model, LineModel):
            fraction = min(bound.fraction, model.most)
            return model.along(fraction), LineSearchBound(bound.radius, fraction, searching=True)
        step, radius = self.radius.propose(model, bound.radius)
        return step, LineSearchBound(radius)

    def update(self, bound: LineSearchBound, step_norm: float, ratio: float) -> LineSearchBound:
        """Return the next radius, or the minimum of the parabola through the value, the slope and the trial."""
        if not bound.searching:
            assert bound.radius is not None
            return LineSearchBound(self.radius.update(bound.radius, step_norm, ratio))
        if ratio > self.accept_above:
            return LineSearchBound(bound.radius)
        t = bound.fraction
        if not math.isfinite(ratio):
            return LineSearchBound(bound.radius, 0.1 * t)
        minimum = t / (2 - ratio * (2 - t))  # minimum of -t + a t^2, which equals -ratio (t - t^2 / 2) at the trial
        return LineSearchBound(bound.radius, min(max(minimum, 0.1 * t), 0.5 * t))
