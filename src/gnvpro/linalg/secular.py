"""Minimum of a quadratic model within a radius, from the eigenvalues of its matrix, by one secular equation.

    y  =  argmin  1/2 y' diag(e) y - b'y     within |y| <= radius
    y  =  b / (e + damping),     damping = 0 if that is inside, else the root of |y| = radius

Curvature that is only rounding error is not divided by. If the least eigenvalue is truly negative and b has no
component along its eigenvector, no damping gives a step as long as the radius (the hard case). The step at damping =
-e_min is then lengthened along that eigenvector.

Legend: Delta -> radius, lambda -> damping.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

ROUNDING = 1e-14  # curvature below this fraction of the largest is rounding error


def divide(b: Array, denominator: Array, least: float) -> Array:
    """Return b / denominator, and zero for denominators not above `least`."""
    return np.divide(b, denominator, out=np.zeros_like(b), where=denominator > least)


def within_radius(e: Array, b: Array, radius: float, rounding: float = ROUNDING) -> tuple[Array, float]:
    """Return the minimiser and its damping, for ascending e; curvature below `rounding` times the largest counts as zero."""
    cut = rounding * float(np.abs(e).max())
    least = float(e[0])
    lower = -least if least < -cut else 0.0
    y = divide(b, e + lower, cut)
    if np.linalg.norm(y) <= radius:
        if lower == 0.0:
            return y, 0.0
        if np.linalg.norm(b[e + lower <= cut]) <= 1e-12 * np.linalg.norm(b):
            # the hard case: extend the step to the boundary, along the negative curvature
            y[0] = math.sqrt(max(radius**2 - float(y @ y), 0.0))
            return y, lower
    kept = b if lower > 0.0 else np.where(e > cut, b, 0.0)
    damping = damping_for(e, kept, radius, lower)
    y = divide(kept, e + damping, 0.0)
    # The root is accurate to rounding, and so is this test.
    return y * (radius / np.linalg.norm(y)), damping


def damping_for(e: Array, b: Array, radius: float, lower: float = 0.0) -> float:
    """Return the damping above `lower` for which |b / (e + damping)| is the radius; `lower` if the step is shorter there."""

    def gap(damping: float) -> float:
        norm = float(np.linalg.norm(divide(b, e + damping, 0.0)))
        return 1.0 / radius - (1.0 / norm if norm > 0 else math.inf)

    # |y| <= |b| / (least + damping), so at `upper` the step is certainly inside, rounding included.
    ratio = float(np.linalg.norm(b)) / radius
    upper = max(ratio - float(e.min()), lower) * (1 + 1e-10) + 1e-14 * ratio + 1e-300
    start = lower + 1e-15 * (upper - lower) if lower > 0.0 else 0.0
    if gap(start) <= 0.0:
        return lower
    from scipy.optimize import brentq  # imported here because it takes as long as the rest of the library

    return float(brentq(gap, start, upper, xtol=1e-300, rtol=1e-14, maxiter=500))
