"""Eliminating the head without squaring a condition number.

The penalty adds rows to the same least-squares problem, factorised by QR:

    A = [ Z ; sqrt(alpha) I ] = Q R,        dW = -R^-1 Q' [ rho ; sqrt(alpha) W ]

If all equations are linear, one step from W = 0 is the solution, and a second with the same factors removes rounding
errors. Otherwise the first step solves Newton's linearisation around the field of the last accepted point (Dong,
Yang 2022). It uses the field's values and derivatives, not its head: W is large, and combined with slightly changed
features the same head gives a very different field. Gauss-Newton steps in W follow, by `damped_newton`.
They end when the predicted reduction is a small fraction of the objective.

The residuals as a function of x, with the head following, have the Jacobian

    J_red = (I - Q Q') [ J ; 0 ]            (Kaufman)          dW / dx = -R^-1 Q' [ J ; 0 ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gnvpro.linalg.triangular import solve_triangular
from gnvpro.minimize.damped_newton import damped_newton
from gnvpro.pde.equation import Values
from gnvpro.pde.system import Assembled, Carried, System

ENOUGH = 1e-3  # relative predicted reduction of a step in W below which the head counts as eliminated
MOST_TRIALS = 16


@dataclass(frozen=True)
class Factored:
    """[ Z ; sqrt(alpha) I ] = Q R, computed at first use."""

    Z: Tensor
    root: float

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Q and R."""
        penalty = self.root * torch.eye(self.Z.shape[1], dtype=self.Z.dtype)
        Q, R = torch.linalg.qr(torch.cat([self.Z, penalty]))
        return Q, R

    def step(self, residual: Tensor) -> tuple[Tensor, float]:
        """Return dW and its predicted reduction."""
        Q, R = self.factors
        along = Q.T @ residual
        return -solve_triangular(R, along), 0.5 * float(along @ along)


@dataclass(frozen=True)
class FieldFit:
    """The head at some x and the rows there."""

    W: Tensor
    assembled: Assembled
    factored: Factored

    @cached_property
    def residual(self) -> Tensor:
        """The residuals rho, then sqrt(alpha) W."""
        return torch.cat([self.assembled.residual, self.factored.root * self.W.reshape(-1)])

    @property
    def x(self) -> Tensor:
        """W as a vector, which the search moves."""
        return self.W.reshape(-1)

    def gradient(self) -> Tensor:
        """The gradient of Phi in W."""
        return self.assembled.Z.T @ self.assembled.residual + self.factored.root**2 * self.x

    def free(self) -> None:
        """Do nothing: a fit holds what the next step needs."""

    @cached_property
    def newton(self) -> tuple[Tensor, float]:
        """The Gauss-Newton step in W and its predicted reduction."""
        return self.factored.step(self.residual)

    @property
    def Q(self) -> Tensor:
        """Orthonormal basis of the range of the head."""
        return self.factored.factors[0]

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
) -> FieldFit | None:
    """Return the best head at x, starting from a head or from a field; None if something is not finite."""
    if system.linear:
        return _linear(system, carried, x, start, penalty)
    W: Tensor | None = start
    if field is not None:
        Z, rest = system.assemble_around(carried, x, field)
        W = _solution(Z, rest, start, penalty)
    if W is None:
        return None
    first = fit_at(system, carried, x, W, penalty)
    if first is None:
        return None
    objective = FieldHead(system, carried, x, W, penalty)
    return damped_newton(objective, first, lambda fit: fit.newton[0], is_eliminated, MOST_TRIALS)[0]


def is_eliminated(fit: FieldFit) -> bool:
    """Return whether another step would hardly reduce the objective."""
    return fit.newton[1] <= ENOUGH * fit.value


@dataclass(frozen=True)
class FieldHead:
    """Phi as a function of W, at some x."""

    system: System
    carried: Carried
    x: Tensor
    like: Tensor  # of the shape of W
    penalty: float
    epsilon: ClassVar[float] = 10 * torch.finfo(torch.float64).eps

    def at(self, x: Tensor, near: FieldFit | None) -> FieldFit:
        """Return the rows at a head; `near` is not needed."""
        W = x.view_as(self.like)
        assembled = self.system.assemble(self.carried, self.x, W)
        return FieldFit(W, assembled, Factored(assembled.Z, math.sqrt(self.penalty)))


def fit_at(system: System, carried: Carried, x: Tensor, W: Tensor, penalty: float) -> FieldFit | None:
    """Return the rows at a given head."""
    fit = FieldHead(system, carried, x, W, penalty).at(W, None)
    return fit if _finite(fit.assembled.Z, fit.assembled.residual) else None


def _linear(system: System, carried: Carried, x: Tensor, like: Tensor, penalty: float) -> FieldFit | None:
    """Take one step, and correct its rounding errors."""
    W = torch.zeros_like(like)
    fit = fit_at(system, carried, x, W, penalty)
    if fit is None:
        return None
    start, factored = fit.assembled, fit.factored
    rows = start.residual
    for _ in range(2):
        W = W + factored.step(torch.cat([rows, factored.root * W.reshape(-1)]))[0].view_as(W)
        rows = start.residual + start.Z @ W.reshape(-1)
    return FieldFit(W, Assembled(start.Z, rows, start.parts), factored)


def _solution(Z: Tensor, rest: Tensor, like: Tensor, penalty: float) -> Tensor | None:
    """Minimise |Z W + rest|^2 + penalty |W|^2."""
    if not _finite(Z, rest):
        return None
    residual = torch.cat([rest, torch.zeros(Z.shape[1], dtype=Z.dtype)])
    return Factored(Z, math.sqrt(penalty)).step(residual)[0].view_as(like)


def _finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
