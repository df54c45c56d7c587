"""torch-levenberg-marquardt on the whole training set. It has no penalties: at 1e-10 they make no difference here."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import torch_levenberg_marquardt as tlm
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Kinds of damping, and how fast it falls. Cholesky is its fastest solver, and a failure is a rejected step."""
    if spec.loss != "least_squares":
        return []
    kinds = itertools.product(("standard", "fletcher"), (0.1, 0.3))
    return [{"damping_mode": mode, "dec_factor": factor} for mode, factor in kinds]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Step until it ends."""
    logging.disable(logging.WARNING)  # it logs every failed Cholesky factorisation, although it handles them
    model, (inputs, targets) = problem.model, problem.train
    referee.start()
    damping = tlm.damping.StandardDampingStrategy(min_value=1e-16, **settings)
    trainer = tlm.training.LevenbergMarquardtModule(
        model, tlm.loss.MSELoss(), damping, solve_method="cholesky", attempts_per_step=20
    )
    work, stop = 0, False
    while not stop:
        _, _, stop, logs = trainer.training_step(inputs, targets)
        work += 1 + targets.shape[1] + logs["attempts"]
        referee.look(lambda: model, work)
    referee.look(lambda: model, work, last=True)
