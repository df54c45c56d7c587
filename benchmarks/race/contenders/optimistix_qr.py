"""optimistix's Levenberg-Marquardt with lineax's QR of the whole Jacobian, its default."""

from __future__ import annotations

from typing import Any

import lineax as lx
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee

from . import optimistix_lm


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Return one setting; there is nothing to choose."""
    return [{}] if spec.loss == "least_squares" else []


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Train with QR."""
    optimistix_lm.fit(problem, lx.QR(), 1e-12, referee)
