"""torch.optim.Adam on small or large mini-batches."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one imports for a second


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Learning rates x batch sizes."""
    rates, batches = (1e-3, 3e-3, 1e-2), (32, 400)
    return [{"learning_rate": rate, "batch_size": size} for rate, size in itertools.product(rates, batches)]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Train epochs until the time is up."""
    model, (inputs, targets), size = problem.model, problem.train, settings["batch_size"]
    n, work, parts = len(inputs), 0.0, dict(model.named_parameters())
    draw = torch.Generator().manual_seed(0)
    referee.start()
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    while True:
        order = torch.randperm(n, generator=draw)
        for rows in order.split(size):
            optimizer.zero_grad()
            batch = problem.on(inputs[rows], targets[rows])
            batch.objective(model(batch.train[0]), parts).backward()
            optimizer.step()
            work += 2 * len(rows) / n
            referee.look(lambda: model, work)
