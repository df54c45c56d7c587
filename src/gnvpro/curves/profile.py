"""Profile-likelihood intervals: how far one value can be moved before the data object, all others refitted.

    tau(t) = sign(t - t_best) sqrt((S(t) - S_best) / s^2),        S(t) = min over all others with this one held at t

The interval holds all t with |tau| below a quantile of Student's distribution (of the normal one if the noise is known). It
needs no symmetry, and an end is infinite if S never rises enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from scipy.optimize import brentq
from torch import Tensor

from gnvpro.curves.coefficients import Coefficients
from gnvpro.curves.curve_objective import CurveObjective
from gnvpro.curves.search import descend

DOUBLINGS = 12  # of the distance from the best value before an end counts as infinite
ITERATIONS = 100
RELATIVE = 1e-6  # of the standard error, to which ends are found


def profile_interval(
    rss: Callable[[float], float],
    best: float,
    error: float,
    variance: float,
    quantile: float,
    limits: tuple[float, float],
) -> tuple[float, float]:
    """Both ends, given S as a function of the value held; the best value itself if the data are exact."""
    if variance == 0:
        return best, best
    least = rss(best)

    def beyond(t: float) -> float:
        return math.sqrt(max(rss(t) - least, 0.0) / variance) - quantile

    return tuple(
        _end(beyond, best, side * error * quantile, limit) for side, limit in zip((-1, 1), limits, strict=True)
    )  # type: ignore[return-value]


def _end(beyond: Callable[[float], float], best: float, step: float, limit: float) -> float:
    inside = best
    for _ in range(DOUBLINGS):
        outside = max(best + step, limit) if step < 0 else min(best + step, limit)
        excess = beyond(outside)
        if not excess < 0:  # also if it is not a number
            return (
                float(brentq(beyond, inside, outside, xtol=RELATIVE * abs(step))) if math.isfinite(excess) else outside
            )
        if outside == limit:
            return limit
        inside, step = outside, 2 * step
    return math.copysign(math.inf, step)


def held_rss(objective: CurveObjective, name: str, theta: Mapping[str, float]) -> Callable[[float], float]:
    """S as a function of a parameter, each search starting from the last."""
    last = dict(theta)

    def rss(value: float) -> float:
        parameters = objective.parameters.holding({name: value})
        point = descend(objective.with_parameters(parameters).at(parameters.inner(last)), ITERATIONS)[0]
        last.update(parameters.named(point.theta))
        return point.rss

    return rss


def held_coefficient_rss(objective: CurveObjective, column: int, x: Tensor) -> Callable[[float], float]:
    """S as a function of a coefficient."""

    def rss(value: float) -> float:
        asked = Coefficients({**objective.asked.fixed, column: value}, objective.asked.nonnegative)
        return descend(replace(objective, asked=asked).at(x), ITERATIONS)[0].rss

    return rss
