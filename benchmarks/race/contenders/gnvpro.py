"""gnvpro.train with default settings; nothing is tuned."""

from __future__ import annotations

from typing import Any

from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee
from torch import nn

import gnvpro

SOLVER = "auto"


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults."""
    return [{}]


class Looking:
    """A listener that shows the model to the referee, including the start."""

    def __init__(self, model: nn.Module, referee: Referee) -> None:
        self.model, self.referee, self.work = model, referee, 0.0

    def begin(self, history: gnvpro.extend.History, budget: float) -> None:
        """Do nothing."""

    def record(self, record: gnvpro.extend.Record) -> None:
        """Show one more model."""
        self.work = record.work
        if record.accepted:
            self.referee.look(lambda: self.model, record.work)

    def end(self, status: gnvpro.Status) -> None:
        """Do nothing; the last model was shown already."""


def fit(problem: Problem, settings: dict[str, Any], referee: Referee, solver: str = SOLVER) -> None:
    """Train until the run ends or the time is up."""
    spec, model = problem.spec, problem.model
    looking = Looking(model, referee)
    referee.start()
    gnvpro.train(
        model,
        *problem.train,
        loss=spec.loss,
        theta_penalty=gnvpro.Tikhonov(spec.penalty, gnvpro.time_differences if spec.in_time else None),
        head_penalty=spec.penalty,
        solver=solver,
        listeners=[looking],
        **settings,
    )
    referee.look(lambda: model, looking.work, last=True)
