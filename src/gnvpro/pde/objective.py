"""The reduced objective of a system of equations: the head eliminated at every x = (theta, constants).

    Phi_red(x) = min_W 1/2 |rho(x, W)|^2 + alpha/2 |W|^2

A point holds its rows; the Jacobian with the head following, the gradient and the local model are made when asked for.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.pde.core import LinearOperator, symmetric
from gnvpro.pde.eliminate import Fit, eliminate, fit_at
from gnvpro.pde.equation import Values
from gnvpro.pde.system import Carried, System


@dataclass
class Meter:
    """Passes over all points, and seconds spent on the head."""

    passes: int = 0
    inner_seconds: float = 0.0


@dataclass(frozen=True)
class EquationPoint:
    """The reduced objective at one x."""

    system: System
    x: Tensor
    carried: Carried
    fit: Fit | None
    meter: Meter

    @property
    def value(self) -> float:
        """Phi_red."""
        return math.nan if self.fit is None else self.fit.value

    @property
    def misfit(self) -> float:
        """Without the penalty."""
        return math.nan if self.fit is None else self.fit.misfit

    @property
    def W(self) -> Tensor:
        """The head."""
        assert self.fit is not None
        return self.fit.W

    @cached_property
    def _jacobian(self) -> Tensor:
        """J, the head held."""
        assert self.fit is not None
        self.meter.passes += 1
        return self.system.jacobian(self.carried, self.x, self.fit.W, self.fit.assembled.parts)

    @cached_property
    def reduced_jacobian(self) -> Tensor:
        """(I - Q Q') [J; 0]."""
        assert self.fit is not None
        J, Q = self._jacobian, self.fit.Q
        rows = len(J)
        reduced = torch.empty(len(Q), J.shape[1], dtype=J.dtype)
        along = Q[:rows].T @ J
        torch.addmm(J, Q[:rows], along, alpha=-1.0, out=reduced[:rows])
        torch.mm(Q[rows:], along, out=reduced[rows:]).neg_()
        return reduced

    def atoms(self) -> list[Values]:
        """The field's derivatives at all points."""
        assert self.fit is not None
        return self.system.atoms(self.carried, self.fit.W)

    def gradient(self) -> Tensor:
        """Of Phi_red."""
        assert self.fit is not None
        return self.reduced_jacobian.T @ self.fit.residual

    def curvature(self) -> LinearOperator:
        """The Gauss-Newton matrix of Phi_red, J_red' J_red."""
        J = self.reduced_jacobian
        return symmetric((J.shape[1],), lambda v: J.T @ (J @ v))

    def free(self) -> None:
        """Nothing is held that the model does not need."""


@dataclass(frozen=True)
class EquationObjective:
    """Phi_red of a system."""

    system: System
    head_penalty: float
    meter: Meter = field(default_factory=Meter)
    epsilon: float = 10 * torch.finfo(torch.float64).eps  # relative rounding error

    def at(self, x: Tensor, near: EquationPoint | None) -> EquationPoint:
        """Evaluate at x; where the equations are not linear, the elimination starts from the field of a point near by."""
        if near is None or near.fit is None:
            return self.start(x, self.system.field.W())
        return self._fitted(x, near.fit.W, None if self.system.linear else near.atoms())

    def start(self, x: Tensor, W: Tensor) -> EquationPoint:
        """Evaluate at x, the elimination starting from a given head."""
        return self._fitted(x, W, None)

    @torch.no_grad()
    def restored(self, x: Tensor, W: Tensor) -> EquationPoint:
        """A point where the head was eliminated before: this one."""
        if self.system.linear:
            return self.start(x, W)
        carried = self.system.carry(x)
        return EquationPoint(self.system, x, carried, fit_at(self.system, carried, x, W, self.head_penalty), self.meter)

    @torch.no_grad()
    def _fitted(self, x: Tensor, W: Tensor, field: list[Values] | None) -> EquationPoint:
        self.meter.passes += 1
        carried = self.system.carry(x)
        began = time.perf_counter()
        fit = eliminate(self.system, carried, x, W, self.head_penalty, field)
        self.meter.inner_seconds += time.perf_counter() - began
        return EquationPoint(self.system, x, carried, fit, self.meter)
