"""Objective of the stored model, if it has fewer digits than the passes.

    theta' = rounded theta,   W' = rounded W   or   rounded argmin_W Phi(W, theta'), whichever has the lower objective

Rounding to float32 rarely matters. It does for large heads of opposite signs, and for models in bfloat16:
eliminating the head again at the rounded theta then compensates for much of the rounding of theta.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

SAME = 1e-3  # relative difference of objectives that counts as equal


def rounded_point(problem: Problem, value: float | None) -> ReducedPoint | None:
    """Return the best point that the user's model can hold; None if rounding has no notable effect.

    `value` is the objective before rounding; None computes it. The model that computes is left at the rounded
    parameters.
    """
    if not problem.working.is_copy:
        return None
    if value is None:
        value = problem.full.at(problem.full.join(problem.theta(), problem.W())).value
    problem.working.round()
    theta, W = problem.theta(), problem.W()
    point = problem.reduced.start(theta, WarmStart(W), keep=False)
    if point.fit is None:
        return None

    def with_head(head: Tensor) -> ReducedPoint:
        return replace(point, fit=point.full.with_head(point.Z, head), few=problem.misfit)

    stored = with_head(W)
    if abs(stored.value - value) <= SAME * abs(value):
        return None
    again = with_head(point.W.to(problem.stored_dtype).to(W.dtype))
    return again if again.value < stored.value else stored
