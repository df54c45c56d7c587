"""The two objectives of the paper's Algorithm 1, side by side: with the head as a variable, and with it eliminated.

    Phi(W, theta)  = misfit(Z(theta) W') + alpha_1/2 |B theta|^2 + alpha_2/2 |W|^2          FullObjective,    x = (theta, W)
    Phi_red(theta) = Phi(W(theta), theta)                                                   ReducedObjective, x = theta

Evaluating either costs one forward pass. Their gradients in theta are the same formula, since grad_W Phi = 0 at W(theta);
their Gauss-Newton matrices differ in how the outputs move:

    full      d outputs = J_F d_theta W' + Z dW'
    reduced   d outputs = P J_F d_theta                      the head follows (see `reduced_jacobian`)

A point remembers its forward pass, as far as memory allows (see `chunks`) and until it is told to forget it; the gradient
(one backward pass) and products with the curvature (two passes each) are computed when asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.objectives.gauss_newton_matrix import Assembler, GaussNewton
from gnvpro.network.derivatives.protocol import FeatureLinearization
from gnvpro.head.eliminator import Eliminator, HeadFit, WarmStart, with_ones
from gnvpro.problem.misfit import Misfit
from gnvpro.network.separable import SeparableNetwork
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.problem.penalties import BoundPenalty
from gnvpro.head.sensitivity import ReducedDerivatives
from gnvpro.linalg.columns import matmul_small


@dataclass(frozen=True)
class Problem:
    """What is minimised, whichever way: a network, a batch, a misfit and the penalties."""

    network: SeparableNetwork
    inputs: Tensor
    misfit: Misfit
    theta_penalty: BoundPenalty
    head_penalty: float

    @property
    def epsilon(self) -> float:
        """The relative rounding error of an objective: a sum of many terms in float64, of features in their own dtype."""
        return max(10 * torch.finfo(torch.float64).eps, torch.finfo(self.network.dtype).eps)

    @contextmanager
    def inner_clock(self) -> Iterator[None]:
        """Counts the seconds spent on the head."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.network.meter.inner_seconds += time.perf_counter() - start


@dataclass(frozen=True)
class ReducedPoint:
    """The reduced objective at one theta, with the head that is optimal there."""

    problem: Problem
    x: Tensor
    linearization: FeatureLinearization
    Z: Tensor
    start: WarmStart | None  # where the elimination began
    fit: HeadFit | None  # None where the features, or their squares, are not finite
    assembler: Assembler | None = None  # where the Gauss-Newton matrix is wanted as a matrix

    @property
    def theta(self) -> Tensor:
        """The parameters of the features."""
        return self.x

    @property
    def W(self) -> Tensor:
        """The eliminated head."""
        return self._fit.W

    @property
    def outputs(self) -> Tensor:
        """The outputs on the batch."""
        return self._fit.outputs

    @property
    def _fit(self) -> HeadFit:
        if self.fit is None:
            raise ValueError(
                "the model's features are not finite here, so there is no head to eliminate; "
                "scale the inputs or initialise the model with smaller parameters"
            )
        return self.fit

    @cached_property
    def misfit(self) -> float:
        """The mean loss on the batch."""
        return math.nan if self.fit is None else self.problem.misfit.value(self.fit.outputs)

    @cached_property
    def value(self) -> float:
        """Phi_red."""
        if self.fit is None:
            return math.nan
        penalty = 0.5 * self.problem.head_penalty * float(self.fit.W.square().sum())
        return self.misfit + self.problem.theta_penalty.value(self.x) + penalty

    @cached_property
    def _derivatives(self) -> ReducedDerivatives:
        problem = self.problem
        return ReducedDerivatives(self.Z, problem.network.n_features, problem.misfit, self._fit, problem.head_penalty)

    @cached_property
    def gauss_newton(self) -> GaussNewton:
        """The Gauss-Newton matrix, and with it the gradient: as many backward passes as the head has features, or fewer."""
        assert self.assembler is not None
        return self.assembler(self.linearization, self._derivatives, self.problem.theta_penalty.hessian_mv(self.x))

    @cached_property
    def _gradient(self) -> Tensor:
        if self.assembler is not None:
            return self.gauss_newton.gradient
        vjp = self.linearization.vjp(self._derivatives.feature_gradient())
        return vjp + self.problem.theta_penalty.hessian_mv(self.x)

    def forget(self) -> None:
        """Free what the forward pass left."""
        self.linearization.forget()

    def gradient(self) -> Tensor:
        """Its gradient: one backward pass, the first time (none where it comes with the Gauss-Newton matrix)."""
        return self._gradient

    def curvature(self) -> LinearOperator:
        """Its Gauss-Newton matrix: two passes a product."""
        with self.problem.inner_clock():
            on_features = self._derivatives.curvature
        jvp, vjp = self.linearization.jvp, self.linearization.vjp
        penalty = self.problem.theta_penalty.hessian_mv
        return symmetric(tuple(self.x.shape), lambda v: vjp(on_features.mv(jvp(v))) + penalty(v))

    def jacobian(self) -> LinearOperator:
        """d outputs / d theta with the head following."""
        feature_jacobian = LinearOperator(
            tuple(self.x.shape),
            tuple(self.linearization.features.shape),
            self.linearization.jvp,
            self.linearization.vjp,
        )
        return self._derivatives.output_jacobian @ feature_jacobian


@dataclass(frozen=True)
class ReducedObjective:
    """Phi_red: the head is eliminated at every theta."""

    problem: Problem
    eliminator: Eliminator
    assembler: Assembler | None = None

    @property
    def epsilon(self) -> float:
        """Relative rounding error."""
        return self.problem.epsilon

    def at(self, x: Tensor, near: ReducedPoint | None) -> ReducedPoint:
        """Evaluate at theta = x, the elimination starting from the head of a point near by."""
        return self.start(x, near.fit.warm_start if near and near.fit else None)

    def probe(self, x: Tensor, near: ReducedPoint) -> ReducedPoint:
        """The same where no derivative will be asked for: nothing of the forward pass is kept."""
        return self.start(x, near.fit.warm_start if near.fit else None, keep=False)

    def start(self, x: Tensor, start: WarmStart | None, keep: bool = True) -> ReducedPoint:
        """Evaluate at theta = x, the elimination starting from a given head."""
        problem = self.problem
        linearization = problem.network.linearize(x, problem.inputs, keep)
        Z = with_ones(linearization.features, problem.network.bias)
        fit = None
        if torch.isfinite(Z.square().sum()):  # the inner Hessian holds squares
            with problem.inner_clock():
                fit = self.eliminator.fit(Z, problem.misfit, problem.head_penalty, start)
        return ReducedPoint(problem, x, linearization, Z, start, fit, self.assembler)


@dataclass(frozen=True)
class FullPoint:
    """The full objective at one theta and W."""

    problem: Problem
    x: Tensor
    theta: Tensor
    W: Tensor
    linearization: FeatureLinearization
    Z: Tensor

    @cached_property
    def outputs(self) -> Tensor:
        """The outputs on the batch."""
        return matmul_small(self.Z, self.W.T)

    @cached_property
    def misfit(self) -> float:
        """The mean loss on the batch."""
        return self.problem.misfit.value(self.outputs)

    @cached_property
    def value(self) -> float:
        """Phi."""
        penalty = 0.5 * self.problem.head_penalty * float(self.W.square().sum())
        return self.misfit + self.problem.theta_penalty.value(self.theta) + penalty

    @cached_property
    def _gradient(self) -> Tensor:
        G = self.problem.misfit.gradient(self.outputs)
        d_theta = self.linearization.vjp(matmul_small(G, self._W)) + self.problem.theta_penalty.hessian_mv(self.theta)
        return torch.cat([d_theta, (G.T @ self.Z + self.problem.head_penalty * self.W).reshape(-1)])

    @property
    def _W(self) -> Tensor:
        return self.W[:, : self.problem.network.n_features]

    def forget(self) -> None:
        """Free what the forward pass left."""
        self.linearization.forget()

    def gradient(self) -> Tensor:
        """Its gradient in (theta, W): one backward pass, the first time."""
        return self._gradient

    def curvature(self) -> LinearOperator:
        """The complete joint Gauss-Newton matrix, the coupling of theta and W included: two passes a product."""
        J = self.jacobian()
        hessian = self.problem.misfit.hessian(self.outputs)
        n, penalty = self.theta.numel(), self.problem.theta_penalty.hessian_mv

        def mv(v: Tensor) -> Tensor:
            return J.rmv(hessian(J.mv(v))) + torch.cat([penalty(v[:n]), self.problem.head_penalty * v[n:]])

        return symmetric(tuple(self.x.shape), mv)

    def jacobian(self) -> LinearOperator:
        """d outputs / d (theta, W)."""
        n, jvp, vjp = self.theta.numel(), self.linearization.jvp, self.linearization.vjp

        def mv(v: Tensor) -> Tensor:
            return matmul_small(jvp(v[:n]), self._W.T) + matmul_small(self.Z, v[n:].reshape(self.W.shape).T)

        def rmv(d_outputs: Tensor) -> Tensor:
            return torch.cat([vjp(matmul_small(d_outputs, self._W)), (d_outputs.T @ self.Z).reshape(-1)])

        return LinearOperator(tuple(self.x.shape), tuple(self.outputs.shape), mv, rmv)


@dataclass(frozen=True)
class FullObjective:
    """Phi: theta and W are both variables."""

    problem: Problem

    @property
    def epsilon(self) -> float:
        """Relative rounding error."""
        return self.problem.epsilon

    def at(self, x: Tensor, near: FullPoint | None) -> FullPoint:
        """Evaluate at x = (theta, vec W)."""
        network = self.problem.network
        theta = x[: network.n_theta]
        W = x[network.n_theta :].reshape(network.n_targets, -1)
        linearization = network.linearize(theta, self.problem.inputs)
        return FullPoint(self.problem, x, theta, W, linearization, with_ones(linearization.features, network.bias))
