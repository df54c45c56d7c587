"""torch.optim.LBFGS with its strong-Wolfe line search on all weights."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee
from torch import Tensor

torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])  # the first one imports for a second


def grid(spec: Spec) -> list[dict[str, Any]]:
    """History sizes."""
    return [{"history_size": size} for size in (10, 100)]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Iterate until the line search fails."""
    model, inputs, work = problem.model, problem.train[0], 0
    parts = dict(model.named_parameters())
    referee.start()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=20, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe", **settings
    )

    def closure() -> Tensor:
        nonlocal work
        optimizer.zero_grad()
        value = problem.objective(model(inputs), parts)
        value.backward()
        work += 2
        referee.look(lambda: model, work)
        return value

    before = None
    while before is None or not torch.equal(before, problem.weights):
        before = problem.weights
        optimizer.step(closure)
    referee.look(lambda: model, work, last=True)
