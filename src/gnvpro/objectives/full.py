"""The full objective of the paper's Algorithm 1: theta and W are both variables.

    Phi(W, theta) = misfit(Z(theta) W') + alpha_1/2 |B theta|^2 + alpha_2/2 |W|^2,          x = (theta, vec W)

Its Gauss-Newton matrix includes the coupling of theta and W: d outputs = J_F d_theta W' + Z dW'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.objectives.reduced import EvaluatedPoint, NetworkObjective, ReducedPoint


@dataclass(eq=False)
class FullPoint(EvaluatedPoint):
    """The full objective at one theta and W."""

    theta: Tensor
    W: Tensor
    start: ClassVar[None] = None  # nothing is eliminated

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs on the samples."""
        return matmul_small(self.Z, self.W.T)

    def reached(self) -> tuple[Tensor, Tensor, float, float, float | None]:
        """Return theta, W, Phi, the mean loss and the accuracy."""
        return self.theta, self.W, self.value, self.misfit, self.accuracy

    @cached_property
    def misfit(self) -> float:
        """Mean loss on the samples."""
        return self.problem.misfit.value(self.outputs)

    @cached_property
    def value(self) -> float:
        """Phi."""
        problem = self.problem
        return problem.theta_penalty.added(self.misfit, self.theta, problem.head_penalty, self.W)

    @property
    def _W(self) -> Tensor:
        return self.W[:, : self.problem.network.n_features]

    def _make_gradient(self) -> Tensor:
        problem = self.problem
        G = problem.misfit.gradient(self.outputs)
        d_theta = self.linearization.vjp(matmul_small(G, self._W)) + problem.theta_penalty.hessian_mv(self.theta)
        d_W = problem.misfit.over.inner(G, self.Z) + problem.head_penalty * self.W
        return torch.cat([d_theta, d_W.reshape(-1)])

    def curvature(self) -> LinearOperator:
        """Complete joint Gauss-Newton matrix, with the coupling of theta and W: two passes per product."""
        J = self.jacobian()
        hessian = self.problem.misfit.hessian(self.outputs)
        n, penalty = self.theta.numel(), self.problem.theta_penalty.hessian_mv

        def mv(v: Tensor) -> Tensor:
            return J.rmv(hessian(J.mv(v))) + torch.cat([penalty(v[:n]), self.problem.head_penalty * v[n:]])

        return symmetric(tuple(self.x.shape), mv)

    def jacobian(self) -> LinearOperator:
        """Return d outputs / d (theta, W)."""
        n, jvp, vjp = self.theta.numel(), self.linearization.jvp, self.linearization.vjp
        inner = self.problem.misfit.over.inner

        def mv(v: Tensor) -> Tensor:
            return matmul_small(jvp(v[:n]), self._W.T) + matmul_small(self.Z, v[n:].reshape(self.W.shape).T)

        def rmv(d_outputs: Tensor) -> Tensor:
            return torch.cat([vjp(matmul_small(d_outputs, self._W)), inner(d_outputs, self.Z).reshape(-1)])

        return LinearOperator(tuple(self.x.shape), tuple(self.outputs.shape), mv, rmv)


class FullObjective(NetworkObjective):
    """The function Phi with theta and W as variables."""

    def join(self, theta: Tensor, W: Tensor) -> Tensor:
        """Return x = (theta, vec W)."""
        return torch.cat([theta, W.reshape(-1)])

    def start(self, x: Tensor, start: None) -> FullPoint:
        """Evaluate at x, without any elimination to start."""
        return self.at(x)

    def at(self, x: Tensor, near: FullPoint | None = None) -> FullPoint:
        """Evaluate at x = (theta, vec W), see `join`."""
        problem = self.problem
        network = problem.network
        theta, W = x[: network.n_theta], x[network.n_theta :].reshape(network.n_targets, -1)
        W = W.to(network.dtype).to(torch.float64)  # as stored in the model
        linearization = network.linearize(theta, problem.inputs, problem.passes, problem.meter, problem.misfit.over)
        Z = append_bias_column(linearization.features, network.bias)
        return FullPoint(problem, x, linearization, Z, theta, W)

    def same_as(self, point: ReducedPoint) -> FullPoint:
        """Return the point with theta and W of a reduced point, sharing its forward pass."""
        x = self.join(point.theta, point.W)
        return FullPoint(point.problem, x, point.linearization, point.Z, point.theta, point.W)
