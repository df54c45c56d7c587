"""scipy.optimize.least_squares with the exact Jacobian: "trf" with its SVD or with LSMR, or MINPACK's "lm"."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.race.in_torch import Functions
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee
from scipy.optimize import least_squares


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Methods and scalings."""
    if spec.loss != "least_squares":
        return []
    return [
        {"method": "trf", "tr_solver": "exact"},
        {"method": "trf", "tr_solver": "exact", "x_scale": "jac"},
        {"method": "trf", "tr_solver": "lsmr"},
        {"method": "lm"},
        {"method": "lm", "x_scale": "jac"},
    ]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Train until its tolerances, the smallest that it accepts, are met."""
    referee.start()
    functions = Functions(problem)

    def residuals(x: np.ndarray) -> np.ndarray:
        weights = torch.from_numpy(x.copy())
        with torch.no_grad():
            values = functions.residuals(weights)
        referee.look(lambda: problem.outputs_at(weights), functions.passes)
        return values.numpy()

    def jacobian(x: np.ndarray) -> np.ndarray:
        return functions.jacobian(torch.from_numpy(x.copy())).numpy()

    tiny = 1e-15
    result = least_squares(
        residuals, problem.weights.numpy(), jacobian, ftol=tiny, xtol=tiny, gtol=tiny, max_nfev=100_000, **settings
    )
    referee.look(lambda: problem.outputs_at(torch.from_numpy(result.x)), functions.passes, last=True)
