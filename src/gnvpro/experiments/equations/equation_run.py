"""Solving the equations of the catalogue by several methods, with what the report needs left on disk.

    OUT/NAME/METHOD-seedS/    config.json, history.csv, solution.npz and, written last, metrics.json

While `pde.solve` runs there is also checkpoint.pt, from which --resume continues; baselines start over. The error is
measured during the run on points that were not trained on. Reported are the best over the run, as in the published logs, the
last, and the seconds to the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.experiments.equations.equation_catalogue import EQUATIONS
from gnvpro.experiments.equations.errors import Errors
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.experiments.equations.posed import CatalogueEntry, PosedEquations
from gnvpro.experiments.experiment_run import CHECKPOINT, explained, finished, prepare
from gnvpro.files import HISTORY, METRICS, read_json, write_json
from gnvpro.network.evaluation import one_thread

SOLUTION = "solution.npz"
GRID = 81  # points along each side of a picture


@dataclass(frozen=True)
class EquationOrder:
    """Arguments of the command."""

    problem: str
    methods: Sequence[str] = tuple(METHODS)
    seeds: Sequence[int] = (0,)
    seconds: float | None = None
    out: Path = Path("runs")
    resume: bool = False
    overwrite: bool = False


def run_equation(order: EquationOrder, tell: Callable[[str], object] = lambda text: None) -> list[dict[str, Any]]:
    """Do what was ordered, one run after the other; the metrics of each."""
    problem, results = EQUATIONS[check_choice("equation", order.problem, EQUATIONS)], []
    for method in order.methods:
        check_choice("method", method, METHODS)
    for seed in order.seeds:
        check_count("seed", seed, 0)
    seconds = problem.seconds if order.seconds is None else check_number("seconds", order.seconds, 0.0)
    for seed in order.seeds:
        for method in order.methods:
            directory = order.out / problem.name / f"{method}-seed{seed}"
            config = {
                "kind": "equation",
                "experiment": problem.name,
                "method": method,
                "seed": seed,
                "seconds": seconds,
            }
            if order.resume and finished(directory, config):
                tell(f"{directory}: done before")
                results.append(read_json(directory / METRICS))
                continue
            prepare(directory, config, order.resume, order.overwrite)
            tell(f"{problem.name}, {method}, seed {seed}: {seconds:g} seconds")
            with explained(directory / CHECKPOINT):
                results.append(run_one(problem, method, seed, seconds, directory))
    return results


def run_one(problem: CatalogueEntry, method: str, seed: int, seconds: float, directory: Path) -> dict[str, Any]:
    """One run, written to its directory."""
    with one_thread():
        posed = problem.pose(seed)
        errors = Errors(problem, posed, seconds, directory / HISTORY)
        residuals, status = METHODS[method](posed, errors, seconds, seed, directory / CHECKPOINT)
    best = min(errors.rows, key=lambda row: row[2])
    reached = [at for at, _, error in errors.rows if problem.goal is not None and error <= problem.goal]
    metrics = {
        "experiment": problem.name,
        "method": method,
        "seed": seed,
        "error": errors.rows[-1][2],
        "best_error": best[2],
        "best_seconds": best[0],
        "goal": problem.goal,
        "goal_seconds": reached[0] if reached else None,
        "seconds": errors.rows[-1][0],
        "relative": problem.relative,
        "published": problem.published,
        "status": status,
        "residuals": {r.name: {"checked": float(r), "on_points": r.on_points, "how": r.how} for r in residuals},
        "constants": {name: {"found": float(c), "true": true} for name, (c, true) in posed.constants.items()},
    }
    np.savez_compressed(directory / SOLUTION, allow_pickle=False, **picture(posed))
    write_json(directory / METRICS, metrics)
    (directory / CHECKPOINT).unlink(missing_ok=True)
    return metrics


@torch.no_grad()
def picture(posed: PosedEquations) -> dict[str, np.ndarray]:
    """Solution and error on a grid of the first two coordinates, the others in the middle."""
    low, high = posed.box.low, posed.box.high
    shown = [min(i, len(low) - 1) for i in range(2)]  # a line is drawn along both
    axes = [torch.linspace(float(low[i]), float(high[i]), GRID, dtype=torch.float64) for i in shown]
    points = ((low + high) / 2).expand(GRID * GRID, -1).clone()
    points[:, shown] = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    inside = torch.ones(len(points), dtype=torch.bool) if posed.belongs is None else posed.belongs(points)
    u, exact = (torch.full((len(points),), torch.nan, dtype=torch.float64) for _ in range(2))
    u[inside], exact[inside] = (
        posed.field(points[inside])[:, 0],
        posed.exact(points[inside]).view(int(inside.sum()), -1)[:, 0],
    )
    made = {"solution": u, "error": u - exact}
    return {**{k: v.reshape(GRID, GRID).numpy() for k, v in made.items()}, "a": axes[0].numpy(), "b": axes[1].numpy()}
