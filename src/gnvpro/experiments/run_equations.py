"""Solving the equations of the catalogue by several methods, with what the report needs left on disk.

    OUT/NAME/METHOD-seedS/    config.json, history.csv, solution.npz and, written last, metrics.json

Methods: `gnvpro` is `pde.solve`; `frozen` solves once for the head with the first, random features; `adam` and `lbfgs` are
torch's optimisers on the full loss, theta and head together, with the same rows, weights and seconds. The error is measured
on points that nobody trained on, along the way; reported is the best over the run, as in the published logs, and the last.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnvpro import pde
from gnvpro.experiments.equations import EQUATIONS, EquationProblem, Posed
from gnvpro.experiments.run import CONFIG, HISTORY, METRICS, read_json, write_json
from gnvpro.pde.system import System

METHODS = ("gnvpro", "lbfgs", "adam", "frozen")
SOLUTION = "solution.npz"
GRID = 81  # points along each side of a picture
STAGE_SHARE = 0.5  # of the seconds, for all stages but the last
LOOKS = 200  # at the error, along a run


@dataclass(frozen=True)
class EquationOrder:
    """What the user asked for."""

    problem: str
    methods: Sequence[str] = METHODS
    seeds: Sequence[int] = (0,)
    seconds: float | None = None
    out: Path = Path("runs")
    resume: bool = False
    overwrite: bool = False


class Errors:
    """The error of a field along a run; looking at it costs the run nothing."""

    def __init__(self, problem: EquationProblem, posed: Posed, seconds: float) -> None:
        self.posed, self.step = posed, seconds / LOOKS
        want = posed.exact(posed.check)
        self.want, self.scale = want, float(want.square().mean().sqrt()) if problem.relative else 1.0
        self.rows: list[tuple[float, float, float]] = []  # seconds, loss, error
        self.begin()

    def begin(self) -> None:
        """The clock starts."""
        self.away, self.began = 0.0, time.process_time()

    def seconds(self) -> float:
        """Processor seconds of the run alone."""
        return time.process_time() - self.began - self.away

    @torch.no_grad()
    def now(self) -> float:
        """The error of the field as it is."""
        return float((self.posed.field(self.posed.check)[:, 0] - self.want).square().mean().sqrt()) / self.scale

    def look(self, loss: float, always: bool = False) -> None:
        """Write down the error, not too often."""
        at = self.seconds()
        if always or not self.rows or at - self.rows[-1][0] >= self.step:
            began = time.process_time()
            self.rows.append((at, loss, self.now()))
            self.away += time.process_time() - began


def run_equation(order: EquationOrder, tell: Callable[[str], object] = lambda text: None) -> list[dict[str, Any]]:
    """Do what was ordered, one run after the other; the metrics of each."""
    if order.problem not in EQUATIONS:
        raise ValueError(f"there is no equation {order.problem!r}; choose from {', '.join(EQUATIONS)}")
    for method in order.methods:
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)} for equations, got {method!r}")
    problem, results = EQUATIONS[order.problem], []
    seconds = problem.seconds if order.seconds is None else order.seconds
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
            if (directory / METRICS).is_file() and not order.overwrite:
                if read_json(directory / CONFIG) != config:
                    raise ValueError(
                        f"{directory} holds another configuration; choose another --out, or --overwrite it"
                    )
                if order.resume:
                    tell(f"{directory}: done before")
                    results.append(read_json(directory / METRICS))
                    continue
            directory.mkdir(parents=True, exist_ok=True)
            (directory / METRICS).unlink(missing_ok=True)
            write_json(directory / CONFIG, config)
            tell(f"{problem.name}, {method}, seed {seed}: {seconds:g} seconds")
            results.append(run_one(problem, method, seed, seconds, directory))
    return results


def run_one(problem: EquationProblem, method: str, seed: int, seconds: float, directory: Path) -> dict[str, Any]:
    """One run, written to its directory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        posed = problem.pose(seed)
        errors = Errors(problem, posed, seconds)
        run = {"gnvpro": _gnvpro, "frozen": _frozen, "adam": _adam, "lbfgs": _lbfgs}[method]
        residuals, status = run(posed, errors, seconds, seed)
        errors.look(errors.rows[-1][1], always=True)
    finally:
        torch.set_num_threads(threads)
    best = min(errors.rows, key=lambda row: row[2])
    metrics = {
        "experiment": problem.name,
        "method": method,
        "seed": seed,
        "error": errors.rows[-1][2],
        "best_error": best[2],
        "best_seconds": best[0],
        "seconds": errors.rows[-1][0],
        "relative": problem.relative,
        "published": problem.published,
        "status": status,
        "residuals": {r.name: {"checked": float(r), "on_points": r.on_points, "how": r.how} for r in residuals},
        "constants": {name: {"found": float(c), "true": true} for name, (c, true) in posed.constants.items()},
    }
    with open(directory / HISTORY, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("seconds", "loss", "error"))
        writer.writerows(errors.rows)
    shown = picture(posed)
    np.savez_compressed(
        directory / SOLUTION, solution=shown["solution"], error=shown["error"], a=shown["a"], b=shown["b"]
    )
    write_json(directory / METRICS, metrics)
    return metrics


@torch.no_grad()
def picture(posed: Posed) -> dict[str, np.ndarray]:
    """Solution and error on a grid of the first two coordinates, the others in the middle."""
    low, high = posed.box.low, posed.box.high
    axes = [torch.linspace(float(low[i]), float(high[i]), GRID, dtype=torch.float64) for i in range(2)]
    points = ((low + high) / 2).expand(GRID * GRID, -1).clone()
    points[:, :2] = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    inside = torch.ones(len(points), dtype=torch.bool) if posed.belongs is None else posed.belongs(points)
    u, exact = (torch.full((len(points),), torch.nan, dtype=torch.float64) for _ in range(2))
    u[inside], exact[inside] = posed.field(points[inside])[:, 0], posed.exact(points[inside])
    made = {"solution": u, "error": u - exact}
    return {**{k: v.reshape(GRID, GRID).numpy() for k, v in made.items()}, "a": axes[0].numpy(), "b": axes[1].numpy()}


Done = tuple[list[pde.Residual], str]


def _gnvpro(posed: Posed, errors: Errors, seconds: float, seed: int) -> Done:
    *before, last = posed.stages
    result = None
    for i, equations in enumerate([*before, last]):
        until = seconds if equations is last else STAGE_SHARE * seconds * (i + 1) / len(before)
        left = until - errors.seconds()
        result = pde.solve(
            posed.field,
            equations,
            seconds=left,
            seed=seed,
            clock=errors.seconds,
            listeners=[lambda record: errors.look(record.loss)],
        )
    assert result is not None
    return result.residuals, result.status.name


def _frozen(posed: Posed, errors: Errors, seconds: float, seed: int) -> Done:
    """The head for the features as they are: one solve, or Newton's few where the equations are not linear."""
    result = pde.solve(posed.field, posed.stages[-1], seconds=None, iterations=0, seed=seed)
    errors.look(result.history[-1].loss, always=True)
    return result.residuals, result.status.name


def _variables(posed: Posed) -> tuple[System, Tensor, Tensor]:
    system = System(posed.field, posed.stages[-1])
    x, W = system.x(), torch.zeros_like(posed.field.W())
    torch.nn.init.xavier_uniform_(W, generator=torch.Generator().manual_seed(0))
    return system, x.requires_grad_(), W.requires_grad_()


def _warm_up() -> None:
    """torch.optim imports much the first time that an optimiser steps."""
    x = torch.zeros(1, requires_grad=True)
    x.grad = torch.zeros(1)
    torch.optim.Adam([x]).step()


def _loss(system: System, x: Tensor, W: Tensor) -> float:
    value, x.grad, W.grad = system.gradient(x.detach(), W.detach())
    return value


def _adam(posed: Posed, errors: Errors, seconds: float, seed: int) -> Done:
    """ADAM, learning rate 1e-3 decaying to 1e-5 over the run's seconds."""
    system, x, W = _variables(posed)
    _warm_up()
    optimiser = torch.optim.Adam([x, W], lr=1e-3)
    errors.begin()
    while (spent := errors.seconds()) < seconds:
        optimiser.param_groups[0]["lr"] = 1e-3 * 0.01 ** (spent / seconds)
        value = _loss(system, x, W)
        optimiser.step()
        system.store(x.detach(), W.detach())
        errors.look(value)
    return [], "WORK_SPENT"


def _lbfgs(posed: Posed, errors: Errors, seconds: float, seed: int) -> Done:
    """torch's L-BFGS with a strong-Wolfe search."""
    system, x, W = _variables(posed)
    optimiser = torch.optim.LBFGS([x, W], lr=1.0, max_iter=20, history_size=100, line_search_fn="strong_wolfe")
    _warm_up()
    errors.begin()
    before = float("inf")
    while errors.seconds() < seconds:
        value = float(optimiser.step(lambda: _loss(system, x, W)))
        system.store(x.detach(), W.detach())
        errors.look(value)
        if value == before:
            return [], "STEP_TOO_SMALL"
        before = value
    return [], "WORK_SPENT"
