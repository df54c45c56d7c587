"""pytorch-minimize: its L-BFGS, BFGS, Newton-CG and trust-region methods, and its least_squares for regression."""

from __future__ import annotations

from typing import Any

import torchmin
from benchmarks.race.in_torch import Functions
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee
from torch import Tensor


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Methods."""
    settings: list[dict[str, Any]] = [{"method": "l-bfgs", "history_size": size} for size in (10, 100)]
    settings += [{"method": method} for method in ("bfgs", "newton-cg", "trust-krylov")]
    if spec.loss == "least_squares":
        settings += [{"method": "least_squares", "tr_solver": solver} for solver in ("exact", "lsmr")]
    return settings


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Train until its tolerances are met; they are almost zero."""
    options = dict(settings)
    method = options.pop("method")
    referee.start()
    functions = Functions(problem)

    def listen(weights: Tensor) -> None:
        referee.look(lambda: problem.outputs_at(weights.detach().clone()), functions.passes)

    def watched(weights: Tensor) -> Tensor:
        listen(weights)  # least_squares has no callback
        return functions.residuals(weights)

    tiny, many = 1e-15, 10**9
    if method == "least_squares":
        result = torchmin.least_squares(
            watched, problem.weights, ftol=tiny, xtol=tiny, gtol=tiny, max_nfev=many, **options
        )
    else:
        name = "xtol" if method in ("l-bfgs", "bfgs", "newton-cg") else "gtol"
        result = torchmin.minimize(
            functions.objective,
            problem.weights,
            method,
            max_iter=many,
            options={name: tiny, **({"gtol": 0.0} if "bfgs" in method else {}), **options},
            callback=listen,
        )
    referee.look(lambda: problem.outputs_at(result.x), functions.passes, last=True)
