"""Joint posterior of theta and the head: the uncertainty of outputs at new inputs.

With the joint Gauss-Newton matrix H of (theta, W) (see `gnvpro.objectives.evidence`) and g the derivative of an output in
(theta, W) at features z, the variance of that output is v times

    spread  =  g' (n H)^-1 g  =  [ z' (D + a2)^-1 z  +  |L^-1 (J' w - T' (D + a2)^-1 z)|^2 ] / n,          S = L L'

The first term comes from the head (`gnvpro.objectives.posterior`), the second from theta, with the head following. For least
squares D is the same for every target. For the multinomial loss D is of all outputs together, and what counts is an
output's distance from their mean: a common shift changes no probability, and nothing but the prior holds it.

Legend: J -> Jacobian of the features, w -> row of the head, T, D -> coupling and head_values, v -> noise, L -> factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro.network.passes import PassPlan
from gnvpro.network.separable import SeparableNetwork
from gnvpro.network.subspace import Subspace
from gnvpro.network.work import WorkMeter
from gnvpro.objectives.evidence import DenseJointMatrix, Penalties
from gnvpro.objectives.gauss_newton_matrix import CommonRoot, curvature_root
from gnvpro.objectives.reduced import ReducedPoint

ROWS = 500  # whose Jacobian is held at a time


@dataclass(frozen=True)
class JointPosterior:
    """The covariance of theta and head, as far as outputs need it."""

    theta: Tensor
    W: Tensor
    mix: Tensor  # (n_targets, m): outputs from m seeds
    seeds: Tensor  # (m, n_features)
    factor: Tensor  # L
    follow: Tensor  # T' (D + a2)^-1, (q, m, f)
    head_root: Tensor  # (D + a2)^-1/2, (f, f), or of each output (n_targets, f, n_targets f)
    scale: Tensor  # of the directions in theta
    subspace: Subspace
    n_samples: float

    @staticmethod
    def of(point: ReducedPoint, matrix: DenseJointMatrix, subspace: Subspace, n_samples: float) -> JointPosterior:
        """At the penalties of the point's problem."""
        problem = point.problem
        at = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
        shifted, V = matrix.head_values + at.head, matrix.head_vectors
        W = point.sensitivity.W
        root = curvature_root(problem.misfit, point.outputs, W) if problem.misfit.identity_hessian else None
        mix, seeds = (root.Q, root.R) if isinstance(root, CommonRoot) else (torch.eye(len(W)).to(W), W)
        follow, head_root = (matrix.coupling / shifted) @ V.T, V / shifted.sqrt()
        if root is None and len(W) > 1:
            outputs, features = len(W), len(V) // len(W)
            follow, head_root = follow.reshape(-1, outputs, features), head_root.reshape(outputs, features, -1)
            mix, head_root = mix - 1 / outputs, head_root - head_root.mean(0)
        return JointPosterior(
            point.theta,
            W,
            mix,
            seeds,
            matrix.factor(at),
            follow,
            head_root,
            subspace.scale,
            subspace,
            n_samples,
        )

    def spread(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """For each row and target; `model` has these features, whatever its head."""
        if len(inputs) == 0:
            return self.W.new_zeros((0, len(self.mix)))
        network = SeparableNetwork.of(model, inputs[:2])
        return torch.cat([self._spread(network, part) for part in inputs.split(ROWS)])

    def covariance(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Between the outputs of each row, (rows, outputs, outputs); for losses other than least squares."""
        network = SeparableNetwork.of(model, inputs[:2])
        return torch.cat([self._covariance(network, part) for part in inputs.split(ROWS)])

    def _covariance(self, network: SeparableNetwork, inputs: Tensor) -> Tensor:
        Z, moved = self._moved(network, inputs)
        roots = self.head_root.expand(len(self.mix), -1, -1) if self.head_root.ndim == 2 else self.head_root
        head = (Z @ roots).transpose(0, 1)  # (rows, outputs, m)
        total = head @ head.mT
        for rows, Y in moved:
            theta = torch.einsum("km,qmn->nkq", self.mix, Y)
            total[rows] += theta @ theta.mT
        return total / self.n_samples

    def _spread(self, network: SeparableNetwork, inputs: Tensor) -> Tensor:
        Z, moved = self._moved(network, inputs)
        total = (Z @ self.head_root).square().sum(-1).reshape(-1, len(Z)).T
        total = total.expand(-1, len(self.mix)).clone()
        for rows, Y in moved:
            total[rows] += torch.einsum("km,qmn->nkq", self.mix, Y).square().sum(2)
        return total / self.n_samples

    def _moved(self, network: SeparableNetwork, inputs: Tensor) -> tuple[Tensor, Iterator[tuple[slice, Tensor]]]:
        """Features with the column of ones, and L^-1 (J' w - T' (D + a2)^-1 z), (q, m, rows), some rows at a time."""
        linear = network.linearize(self.theta, inputs, PassPlan(len(inputs)), WorkMeter(len(inputs)))
        features = linear.features.to(self.W)
        ones = features.new_ones((len(features), self.head_root.shape[-2] - features.shape[1]))
        Z = torch.cat([features, ones], 1)

        def moved() -> Iterator[tuple[slice, Tensor]]:
            for rows, jacobians in linear.jacobian(self.seeds[:, None].expand(-1, len(Z), -1)):
                blocks = self.subspace.gather(jacobians, self.W).blocks
                J = torch.cat([b if isinstance(b, Tensor) else b.dense() for b in blocks]) * self.scale[:, None, None]
                moved = J - torch.einsum("qmf,nf->qmn", self.follow, Z[rows])
                yield rows, torch.linalg.solve_triangular(self.factor, moved.flatten(1), upper=False).view(moved.shape)

        return Z, moved() if self.theta.numel() else iter(())
