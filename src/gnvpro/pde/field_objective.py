"""The objective of a system of equations in two forms, as the loop minimises it.

    EliminatedObjective   Phi_red(x) = min_W 1/2 |rho(x, W)|^2 + alpha/2 |W|^2       the head eliminated at every x = (theta, c)
    JointObjective        Phi(x, W)                                                  the head moves with the rest

Both are sums of squares with a Jacobian of rows:

    reduced   (I - Q Q') [ J ; 0 ]            J = d rho / d x,  Q as in `eliminate`
    joint     [ J  Z ; 0  sqrt(alpha) I ]     Z = d rho / d W

A point holds its rows; Jacobian, gradient and local model are computed at first use.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.minimize.row_model import RowModel
from gnvpro.network.work import WorkMeter
from gnvpro.pde.field_head import FieldFit, eliminate, fit_at
from gnvpro.pde.system import Carried, System

ROUNDING = 10 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class EquationPoint(ABC):
    """An objective at one point."""

    system: System
    theta: Tensor  # and the unknown constants
    carried: Carried
    fit: FieldFit | None  # None if something is not finite
    meter: WorkMeter

    @property
    @abstractmethod
    def x(self) -> Tensor:
        """Variables of the objective."""

    @property
    @abstractmethod
    def jacobian(self) -> Tensor:
        """Derivative of the residuals in x."""

    @property
    def value(self) -> float:
        """Phi."""
        return math.nan if self.fit is None else self.fit.value

    @property
    def misfit(self) -> float:
        """Phi without the penalty."""
        return math.nan if self.fit is None else self.fit.misfit

    @property
    def W(self) -> Tensor:
        """The head."""
        return self.fitted.W

    @property
    def fitted(self) -> FieldFit:
        """The rows of a finite point."""
        assert self.fit is not None
        return self.fit

    def gradient(self) -> Tensor:
        """Gradient of Phi."""
        return self.jacobian.T @ self.fitted.residual

    def curvature(self) -> LinearOperator:
        """The Gauss-Newton matrix J'J."""
        J = self.jacobian
        return symmetric((J.shape[1],), lambda v: J.T @ (J @ v))

    def free(self) -> None:
        """Do nothing: the model needs everything that the point holds."""
        return

    def _in_theta(self) -> Tensor:
        """Return J with a fixed head."""
        self.meter.count(1)
        return self.system.jacobian(self.carried, self.theta, self.W, self.fitted.assembled.parts)


class EliminatedPoint(EquationPoint):
    """Phi_red at one x."""

    @property
    def x(self) -> Tensor:
        """theta and the constants."""
        return self.theta

    @cached_property
    def jacobian(self) -> Tensor:
        """Return (I - Q Q') [J; 0]."""
        J, Q = self._in_theta(), self.fitted.Q
        rows = len(J)
        reduced = torch.empty(len(Q), J.shape[1], dtype=J.dtype)
        along = Q[:rows].T @ J
        torch.addmm(J, Q[:rows], along, alpha=-1.0, out=reduced[:rows])
        torch.mm(Q[rows:], along, out=reduced[rows:]).neg_()
        return reduced


class JointPoint(EquationPoint):
    """Phi at one x and W."""

    @cached_property
    def x(self) -> Tensor:
        """theta, the constants, and the head."""
        return torch.cat([self.theta, self.W.reshape(-1)])

    @cached_property
    def jacobian(self) -> Tensor:
        """Return [J Z; 0 sqrt(alpha) I]."""
        J, Z = self._in_theta(), self.fitted.assembled.Z
        joint = torch.zeros(len(self.fitted.residual), J.shape[1] + Z.shape[1], dtype=J.dtype)
        joint[: len(J), : J.shape[1]], joint[: len(J), J.shape[1] :] = J, Z
        joint[len(J) :, J.shape[1] :].diagonal().fill_(self.fitted.factored.root)
        return joint


@dataclass(frozen=True)
class EquationObjective(ABC):
    """Phi of a system."""

    system: System
    head_penalty: float
    meter: WorkMeter = field(default_factory=lambda: WorkMeter(1))  # of passes over all points
    epsilon: float = ROUNDING  # relative rounding error

    @abstractmethod
    def at(self, x: Tensor, near: EquationPoint | None) -> EquationPoint:
        """Evaluate at x; `near` is the last accepted point."""

    @abstractmethod
    def start(self, theta: Tensor, W: Tensor) -> EquationPoint:
        """Return the first point, from parameters and a head."""

    @abstractmethod
    def restored(self, theta: Tensor, W: Tensor) -> EquationPoint:
        """Return a point that was accepted before."""


class EliminatedObjective(EquationObjective):
    """Phi_red: the head eliminated at every x."""

    def at(self, x: Tensor, near: EquationPoint | None) -> EquationPoint:
        """Evaluate at x; for nonlinear equations the elimination starts from the field of `near`."""
        if near is None or near.fit is None:
            return self.start(x, self.system.field.W())
        return self._fitted(x, near.W, near)

    def start(self, theta: Tensor, W: Tensor) -> EquationPoint:
        """Start the elimination from the head."""
        return self._fitted(theta, W, None)

    @torch.no_grad()
    def restored(self, theta: Tensor, W: Tensor) -> EquationPoint:
        """Return a point with the head that the elimination found before."""
        if self.system.linear:
            return self.start(theta, W)
        carried = self.system.carry(theta)
        fit = fit_at(self.system, carried, theta, W, self.head_penalty)
        return EliminatedPoint(self.system, theta, carried, fit, self.meter)

    @torch.no_grad()
    def _fitted(self, x: Tensor, W: Tensor, near: EquationPoint | None) -> EquationPoint:
        self.meter.count(1)
        carried = self.system.carry(x)
        with self.meter.inner_clock():
            around = None if near is None or self.system.linear else self.system.atoms(near.carried, W)
            fit = eliminate(self.system, carried, x, W, self.head_penalty, around)
        return EliminatedPoint(self.system, x, carried, fit, self.meter)


class JointObjective(EquationObjective):
    """Phi with theta and W as variables."""

    def at(self, x: Tensor, near: EquationPoint | None) -> EquationPoint:
        """Evaluate at x, whose last entries are the head."""
        like = self.system.field.W()
        return self.start(x[: -like.numel()], x[-like.numel() :].view_as(like))

    @torch.no_grad()
    def start(self, theta: Tensor, W: Tensor) -> EquationPoint:
        """Return the point of these values."""
        self.meter.count(1)
        carried = self.system.carry(theta)
        fit = fit_at(self.system, carried, theta, W, self.head_penalty)
        return JointPoint(self.system, theta, carried, fit, self.meter)

    def restored(self, theta: Tensor, W: Tensor) -> EquationPoint:
        """Return the point of these values."""
        return self.start(theta, W)


def local_model(point: EquationPoint) -> RowModel:
    """Return the local model for steps from a point."""
    return RowModel(point.jacobian, point.fitted.residual)
