"""optimistix's Levenberg-Marquardt with lineax's conjugate gradients on the normal equations (NormalCG)."""

from __future__ import annotations

from typing import Any

import lineax as lx
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee

from . import optimistix_lm


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Tolerances of the linear solver and the number of its steps."""
    if spec.loss != "least_squares":
        return []
    return [{"rtol": rtol, "max_steps": steps} for rtol in (1e-2, 1e-4) for steps in (100, 1000)]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Train with the given tolerance and number of steps."""
    optimistix_lm.fit(problem, lx.Normal(lx.CG(atol=0.0, **settings)), 1e-12, referee)
