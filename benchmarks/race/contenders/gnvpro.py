"""gnvpro.train as it comes: no setting is searched for."""

from __future__ import annotations

from typing import Any

from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee

import gnvpro

SOLVER = "auto"


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults."""
    return [{}]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee, solver: str = SOLVER) -> None:
    """Train until nothing more can be done or the time is up."""
    spec, model, last = problem.spec, problem.model, 0.0

    def listen(record: gnvpro.Record) -> None:
        nonlocal last
        last = record.work
        if record.accepted:
            referee.look(lambda: model, record.work)

    referee.start()
    gnvpro.train(
        model,
        *problem.train,
        loss=spec.loss,
        theta_penalty=gnvpro.Tikhonov(spec.penalty, gnvpro.time_differences if spec.in_time else None),
        head_penalty=spec.penalty,
        work=1e9,
        solver=solver,
        on_iteration=listen,
        **settings,
    )
    referee.look(lambda: model, last, last=True)
