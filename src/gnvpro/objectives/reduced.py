"""The reduced objective of the paper's Algorithm 1: the head is eliminated at every theta.

    Phi_red(theta) = Phi(W(theta), theta),     Phi(W, theta) = misfit(Z(theta) W') + alpha_1/2 |B theta|^2 + alpha_2/2 |W|^2

Evaluating it costs one forward pass. Its gradient is the partial derivative of Phi in theta, since grad_W Phi = 0 at
W(theta); in its Gauss-Newton matrix the head follows: d outputs = P J_F d_theta (see `gnvpro.head.sensitivity`).

A point keeps its forward pass, as far as memory allows (see `gnvpro.network.passes`), until `free`. The gradient
(one backward pass) and products with the curvature (two passes each) are computed on demand.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnvpro.head.eliminator import HeadFit, WarmStart, append_bias_column
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.sensitivity import HeadSensitivity
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.linalg.rows import Rows
from gnvpro.network.derivatives.linearization import FeatureLinearization
from gnvpro.problem.misfit import Misfit
from gnvpro.samples.several import Streamed

if TYPE_CHECKING:
    from gnvpro.objectives.problem import Problem


class NetworkObjective:
    """Phi or Phi_red of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.epsilon = problem.epsilon  # relative rounding error


@dataclass(eq=False)
class EvaluatedPoint(ABC):
    """An objective at one x: its forward pass, and its gradient after the first request."""

    problem: Problem
    x: Tensor
    linearization: FeatureLinearization
    Z: Tensor
    known_gradient: Tensor | None = field(default=None, init=False)  # once it is computed

    @property
    @abstractmethod
    def outputs(self) -> Tensor:
        """Outputs on the samples."""

    @abstractmethod
    def reached(self) -> tuple[Tensor, Tensor, float, float, float | None]:
        """Return theta, W, Phi, the mean loss and the accuracy, which may be None."""

    @property
    def accuracy(self) -> float | None:
        """Share of samples classified correctly; None if the loss does not classify."""
        misfit = self.problem.misfit
        return misfit.accuracy(self.outputs) if misfit.classifies else None

    @abstractmethod
    def _make_gradient(self) -> Tensor: ...

    def gradient(self) -> Tensor:
        """Return the gradient in x; costs one backward pass the first time."""
        if self.known_gradient is None:
            self.known_gradient = self._make_gradient()
        return self.known_gradient

    def free(self) -> None:
        """Free the forward pass."""
        self.linearization.free()


@dataclass(eq=False)
class ReducedPoint(EvaluatedPoint):
    """The reduced objective at one theta, with the optimal head.

    `problem.reduced.at(theta)` returns one.

    Args:
        problem: the problem.
        x: theta, shape (n_theta,).
        linearization: the forward pass, for derivatives.
        Z: the features, shape (samples, n_features), a column of ones for the bias.
        start: start of the elimination.
        fit: the elimination; None if the features are too large to be eliminated, or the head to be stored.
        few: the misfit behind `fit`, of the problem or of its targets rotated to fewer.

    >>> import torch, gnvpro
    >>> X, model = torch.rand(9, 2).double(), gnvpro.networks.MLP(2, [4], n_outputs=1, dtype=torch.float64)
    >>> problem = gnvpro.Problem(model, X, X[:, :1], loss="least_squares")
    >>> point = problem.reduced.at(problem.theta())
    >>> point.W.shape, point.outputs.shape, point.gradient().shape
    (torch.Size([1, 5]), torch.Size([9, 1]), torch.Size([12]))
    >>> float(point.gradient() @ point.curvature().mv(point.gradient())) >= 0
    True
    """

    start: WarmStart | None
    fit: HeadFit | None
    few: Misfit

    @property
    def theta(self) -> Tensor:
        """The parameters of the features."""
        return self.x

    @property
    def W(self) -> Tensor:
        """The eliminated head, its bias as last column."""
        return self.full.W

    @property
    def outputs(self) -> Tensor:
        """Outputs on the samples."""
        return self.full.outputs

    def reached(self) -> tuple[Tensor, Tensor, float, float, float | None]:
        """Return theta, W, Phi, the mean loss and the accuracy."""
        accuracy = self.accuracy if self.problem.misfit.classifies else None
        return self.x, self.full.W, self.value, self.misfit, accuracy

    @property
    def _fit(self) -> HeadFit:
        if self.fit is None:
            raise ValueError(self.trouble)
        return self.fit

    @cached_property
    def full(self) -> HeadFit:
        """The elimination for all targets, if `fit` is for rotated ones."""
        problem = self.problem
        if self.few is problem.misfit:
            return self.fit or self._fit
        return problem.eliminator.fit(self.Z, problem.misfit, problem.head_penalty, None)

    @property
    def trouble(self) -> str:
        """Reason why there is no head here, and what to do."""
        if not within_range(self.problem, self.Z):
            return (
                "the model's features are not finite here, or so large that their squares overflow, though inputs and "
                "parameters are finite; scale the inputs or initialise the model with smaller parameters"
            )
        return (
            f"the eliminated head is too large for {self.problem.stored_dtype}, in which the model stores it; scale the "
            "targets, raise head_penalty, or train in double precision: model.double()"
        )

    @cached_property
    def misfit(self) -> float:
        """Mean loss on the samples."""
        if self.fit is None:
            return math.nan
        return self.fit.misfit(self.fit.W) if self.fit.misfit else self.few.value(self.fit.outputs)

    @cached_property
    def value(self) -> float:
        """Phi_red."""
        if self.fit is None:
            return math.nan
        problem = self.problem
        return problem.theta_penalty.added(self.misfit, self.x, problem.head_penalty, self.fit.W)

    @cached_property
    def sensitivity(self) -> HeadSensitivity:
        """Motion of the eliminated head and the outputs with the features."""
        problem = self.problem
        return HeadSensitivity(self.Z, problem.network.n_features, problem.misfit, self.full, problem.head_penalty)

    @cached_property
    def rotated(self) -> HeadSensitivity:
        """Return the point for targets rotated to fewer: the rotation changes neither gradient nor curvature."""
        if self.few is self.problem.misfit:
            return self.sensitivity
        return HeadSensitivity(self.Z, self.problem.network.n_features, self.few, self._fit, self.problem.head_penalty)

    def _make_gradient(self) -> Tensor:
        vjp = self.linearization.vjp(self.rotated.feature_gradient())
        return vjp + self.problem.theta_penalty.hessian_mv(self.x)

    def curvature(self) -> LinearOperator:
        """Return the Gauss-Newton matrix, two passes per product."""
        with self.problem.meter.inner_clock():
            on_features = self.rotated.curvature
        jvp, vjp = self.linearization.jvp, self.linearization.vjp
        penalty = self.problem.theta_penalty.hessian_mv
        return symmetric(tuple(self.x.shape), lambda v: vjp(on_features.mv(jvp(v))) + penalty(v))

    def jacobian(self) -> LinearOperator:
        """Return d outputs / d theta, with the head following."""
        shapes = tuple(self.x.shape), tuple(self.linearization.features.shape)
        feature_jacobian = LinearOperator(*shapes, self.linearization.jvp, self.linearization.vjp)
        return self.sensitivity.output_jacobian @ feature_jacobian


class ReducedObjective(NetworkObjective):
    """The function Phi_red: the head is eliminated at every theta."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.few = few_targets(problem)
        self.warm = not isinstance(problem.eliminator, LeastSquares)  # whether an elimination uses a start
        self._in_one_pass = isinstance(problem.inputs, Streamed) and not self.warm

    def at(self, x: Tensor, near: ReducedPoint | None = None) -> ReducedPoint:
        """Evaluate at theta = x; the elimination may start from the head of `near`."""
        return self.start(x, near.fit.warm_start if self.warm and near and near.fit else None)

    def probe(self, x: Tensor, near: ReducedPoint) -> ReducedPoint:
        """Evaluate at theta = x without derivatives: the forward pass is not kept."""
        return self.start(x, near.fit.warm_start if self.warm and near.fit else None, keep=False)

    def start(self, x: Tensor, start: WarmStart | None, keep: bool = True) -> ReducedPoint:
        """Evaluate at theta = x; the elimination starts from a given head."""
        problem = self.problem
        passes, few = problem.passes if keep else replace(problem.passes, kept=0.0), self.few
        linearization = problem.network.linearize(x, problem.inputs, passes, problem.meter, problem.misfit.over)
        Z = append_bias_column(linearization.features, problem.network.bias)
        fit = None
        if self._in_one_pass or within_range(problem, Z):  # one pass checks this itself
            begun = time.perf_counter()
            fit = problem.eliminator.fit(Z, few, problem.head_penalty, start)
            fit = fit.rounded(Z, problem.network.dtype, problem.stored_dtype)
            problem.meter.inner_seconds += time.perf_counter() - begun
        return ReducedPoint(problem, x, linearization, Z, start, fit, few)


def few_targets(problem: Problem) -> Misfit:
    """Return the problem's misfit with at most as many targets as rows, if its head is found by least squares.

    A network that does not compute in float64 keeps all targets: its head is rounded target by target.
    """
    exact = problem.network.dtype == torch.float64
    return problem.misfit.rotated if exact and isinstance(problem.eliminator, LeastSquares) else problem.misfit


MAX_SQUARES = 1e100  # of the sum of squared features: products of the inner Hessian with itself must not overflow


def within_range(problem: Problem, Z: Tensor) -> bool:
    """Return True if features are finite, and small enough for the arithmetic of the elimination."""
    over = problem.misfit.over
    squares = over.sum(sum_of_squares, Z) if isinstance(Z, Rows) else over.total(Z.square().sum())
    return float(squares) < MAX_SQUARES


def sum_of_squares(Z: Tensor) -> Tensor:
    """Return the sum of squares of all entries."""
    return Z.square().sum()
