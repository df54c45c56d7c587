"""Eliminating the head without squaring a condition number.

The penalty is more rows of the same least-squares problem, factored by QR:

    A = [ Z ; sqrt(alpha) I ] = Q R,        dW = -R^-1 Q' [ rho ; sqrt(alpha) W ]

Where all equations are linear one step from W = 0 is the solution, and a second with the same factors takes away what
rounding left. Otherwise the first step solves Newton's linearisation around the field of the last accepted point (Dong, Yang
2022) - its values and derivatives, not its head: W is large, and with features that moved a little it is the head of a field
far away. Steps of Gauss-Newton's method in W follow, each halved until it reduces the sum of squares, until a step promises
less than a share of what there is.

How the residuals move with x when the head follows is the projection of J onto the complement of Q:

    J_red = (I - Q Q') [ J ; 0 ]            (Kaufman)          dW / dx = -R^-1 Q' [ J ; 0 ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.pde.equation import Values
from gnvpro.pde.system import Assembled, Carried, System

ENOUGH = 1e-3  # promised by a step in W, relative to the objective, below which the head counts as eliminated
MOST_STEPS = 8
HALVINGS = 6


@dataclass(frozen=True)
class Fit:
    """The head at some x, the rows there, and the factors."""

    W: Tensor
    assembled: Assembled
    residual: Tensor  # rho, then sqrt(alpha) W
    Q: Tensor
    R: Tensor
    steps: int

    @cached_property
    def value(self) -> float:
        """Phi."""
        return 0.5 * float(self.residual @ self.residual)

    @property
    def misfit(self) -> float:
        """Phi without the penalty."""
        rows = self.assembled.residual
        return 0.5 * float(rows @ rows)


def eliminate(
    system: System, carried: Carried, x: Tensor, start: Tensor, penalty: float, field: list[Values] | None = None
) -> Fit | None:
    """The best head at x, from a head or from a field; None where something is not finite."""
    if system.linear:
        return _linear(system, carried, x, start, penalty)
    W: Tensor | None = start
    if field is not None:
        Z, rest = system.assemble_around(carried, x, field)
        W = _solution(Z, rest, start, penalty)
    if W is None:
        return None
    for steps in range(1, MOST_STEPS + 2):
        fit = fit_at(system, carried, x, W, penalty, steps)
        if fit is None:
            return None
        dW, promised = _step(fit.Q, fit.R, fit.residual)
        if promised <= ENOUGH * fit.value or steps > MOST_STEPS:
            return fit
        for halving in range(HALVINGS):
            trial = W + 0.5**halving * dW.view_as(W)
            rows = system.residual(carried, x, trial)
            if 0.5 * (float(rows @ rows) + penalty * float(trial.square().sum())) < fit.value:
                break
        else:
            return fit
        W = trial
    raise AssertionError("the last step returns")


def fit_at(system: System, carried: Carried, x: Tensor, W: Tensor, penalty: float, steps: int = 0) -> Fit | None:
    """The rows at a head as it is."""
    root = math.sqrt(penalty)
    assembled = system.assemble(carried, x, W)
    if not _finite(assembled.Z, assembled.residual):
        return None
    Q, R = _factors(assembled.Z, root)
    return Fit(W, assembled, torch.cat([assembled.residual, root * W.reshape(-1)]), Q, R, steps)


def _linear(system: System, carried: Carried, x: Tensor, like: Tensor, penalty: float) -> Fit | None:
    """One step, and what rounding left of it."""
    root, W = math.sqrt(penalty), torch.zeros_like(like)
    assembled = system.assemble(carried, x, W)
    if not _finite(assembled.Z, assembled.residual):
        return None
    Q, R = _factors(assembled.Z, root)
    rows = assembled.residual
    for _ in range(2):
        W = W + _step(Q, R, torch.cat([rows, root * W.reshape(-1)]))[0].view_as(W)
        rows = assembled.residual + assembled.Z @ W.reshape(-1)
    done = Assembled(assembled.Z, rows, assembled.parts)
    return Fit(W, done, torch.cat([rows, root * W.reshape(-1)]), Q, R, 1)


def _solution(Z: Tensor, rest: Tensor, like: Tensor, penalty: float) -> Tensor | None:
    """argmin |Z W + rest|^2 + penalty |W|^2."""
    if not _finite(Z, rest):
        return None
    Q, R = _factors(Z, math.sqrt(penalty))
    return _step(Q, R, torch.cat([rest, torch.zeros(Z.shape[1], dtype=Z.dtype)]))[0].view_as(like)


def _finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _factors(Z: Tensor, root: float) -> tuple[Tensor, Tensor]:
    width = Z.shape[1]
    stacked = torch.cat([Z, root * torch.eye(width, dtype=Z.dtype)])
    return torch.linalg.qr(stacked)


def _step(Q: Tensor, R: Tensor, residual: Tensor) -> tuple[Tensor, float]:
    """dW and the reduction that it promises."""
    along = Q.T @ residual
    return -solve_triangular(R, along), 0.5 * float(along @ along)


def solve_triangular(R: Tensor, rhs: Tensor) -> Tensor:
    """R^-1 rhs for one right-hand side."""
    return torch.linalg.solve_triangular(R, rhs[:, None], upper=True)[:, 0]
