"""Solve an equation of the catalogue by `pde.solve` or by a baseline.

gnvpro    `pde.solve`
frozen    the head for the first, random features: one solve
adam      torch's ADAM on the full loss, theta and head together, with the same rows, weights and seconds
lbfgs     torch's L-BFGS on the same variables
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gnvpro import Checkpoint, Status, pde
from gnvpro.experiments.equations.errors import Errors
from gnvpro.experiments.equations.posed import PosedEquations
from gnvpro.extend import History, Record
from gnvpro.pde.system import System

Done = tuple[list[pde.Residual], str]


@dataclass
class Looks:
    """A listener that looks at the error."""

    errors: Errors

    def begin(self, history: History, budget: float) -> None:
        """A resumed run keeps the earlier measurements."""
        if history:
            self.errors.keep(history[-1].seconds)

    def record(self, record: Record) -> None:
        """Look, not too often."""
        self.errors.look(record.loss, record.seconds)

    def end(self, status: Status) -> None:
        """Nothing is left to do."""


def _gnvpro(posed: PosedEquations, errors: Errors, seconds: float, seed: int, checkpoint: Path) -> Done:
    errors.begin()
    chosen = posed.field.domain is not None  # such a run may go over to slabs of time, which no checkpoint holds
    result = pde.solve(
        posed.field,
        posed.equations,
        seconds=seconds,
        seed=seed,
        clock=errors.clock,
        checkpoint=None if chosen else Checkpoint(checkpoint, every=20),
        resume=not chosen,  # if there is something to resume from
        listeners=[Looks(errors)],
    )
    last = result.history[-1]
    errors.look(last.loss, last.seconds, always=True)
    return result.residuals, result.status.name


def _frozen(posed: PosedEquations, errors: Errors, seconds: float, seed: int, checkpoint: Path) -> Done:
    """Head for fixed features: one solve, or a few by Newton's method if the equations are nonlinear."""
    result = pde.solve(posed.field, posed.equations, seconds=None, iterations=0, seed=seed)
    errors.look(result.history[-1].loss, always=True)
    return result.residuals, result.status.name


def _variables(posed: PosedEquations) -> tuple[System, Tensor, Tensor]:
    system = System(posed.field, posed.equations)
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


def _adam(posed: PosedEquations, errors: Errors, seconds: float, seed: int, checkpoint: Path) -> Done:
    """ADAM, learning rate 1e-3 decaying to 1e-5 over the run's seconds."""
    system, x, W = _variables(posed)
    _warm_up()
    optimiser = torch.optim.Adam([x, W], lr=1e-3)
    errors.begin()
    value = _loss(system, x, W)
    while (spent := errors.clock()) < seconds:
        optimiser.param_groups[0]["lr"] = 1e-3 * 0.01 ** (spent / seconds)
        optimiser.step()
        value = _loss(system, x, W)
        system.store(x.detach(), W.detach())
        errors.look(value)
    errors.look(value, always=True)
    return [], "SECONDS_SPENT"


def _lbfgs(posed: PosedEquations, errors: Errors, seconds: float, seed: int, checkpoint: Path) -> Done:
    """torch's L-BFGS with a strong-Wolfe search."""
    system, x, W = _variables(posed)
    optimiser = torch.optim.LBFGS([x, W], lr=1.0, max_iter=20, history_size=100, line_search_fn="strong_wolfe")
    _warm_up()
    errors.begin()
    value, before = float("inf"), None
    while errors.clock() < seconds and value != before:
        before, value = value, float(optimiser.step(lambda: _loss(system, x, W)))
        system.store(x.detach(), W.detach())
        errors.look(value)
    errors.look(value, always=True)
    return [], "SECONDS_SPENT" if errors.clock() >= seconds else "STEP_TOO_SMALL"


METHODS: dict[str, Callable[[PosedEquations, Errors, float, int, Path], Done]] = {
    "gnvpro": _gnvpro,
    "lbfgs": _lbfgs,
    "adam": _adam,
    "frozen": _frozen,
}
