"""Determinant and traces of the joint Gauss-Newton matrix from products alone: stochastic Lanczos quadrature.

For a vector v of random signs tr f(S) = E v' f(S) v, and on the Krylov space of v with Ritz pairs (e_j, u_j)

    v' f(S) v  =  |v|^2 sum_j u_j1^2 f(e_j)                                       f = log for the determinant, 1/e for the trace

S is the reduced Gauss-Newton operator `ReducedPoint.curvature`, including the residual's term. Its share in the
trace over the head, tr(U S^-1 U'), is E t' S^-1 t with t = U' u for random signs u. Every call uses the same
vectors, so that values compared between two points have the same error.

Legend: see `gnvpro.objectives.evidence`; each dimension of a Krylov space costs two passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnvpro.linalg.columns import matmul_small
from gnvpro.minimize.krylov import Arnoldi, arnoldi, random_signs
from gnvpro.objectives.evidence import Penalties, Spectrum, head_eigen
from gnvpro.objectives.posterior import head_posterior
from gnvpro.objectives.reduced import ReducedPoint


@dataclass(frozen=True)
class KrylovJointMatrix:
    """The matrix at a point, given by products; only at the penalties of the point's own problem."""

    point: ReducedPoint
    rank: int = 20
    probes: int = 1

    @property
    def prior_rank(self) -> int:
        """Rank of B: directions that B'B does not shrink to zero, counted by the same quadrature unless B is the identity."""
        theta = self.point.theta
        mv = self.point.problem.theta_penalty.hessian_mv
        alpha = self.point.problem.theta_penalty.alpha
        signs = random_signs(theta, 0)
        if torch.equal(mv(signs), alpha * signs):
            return theta.numel()
        nodes, weights = arnoldi(mv, signs, self.rank, 1e-10).quadrature
        return round(float(weights @ (nodes > 1e-10 * nodes.max())))

    def spectrum(self, at: Penalties) -> Spectrum:
        """Return determinant and traces; `at` must be the penalties of the point."""
        point = self.point
        curvature, penalty = point.curvature().mv, point.problem.theta_penalty
        log_det, theta_trace, head_trace = self._head(at.head)
        for probe in range(self.probes):
            v = random_signs(point.theta, probe)
            space = arnoldi(curvature, v, self.rank, 1e-8)
            nodes, weights = space.quadrature
            log_det += float(weights @ np.log(nodes)) / self.probes
            theta_trace += float(penalty.operator.mv(v) @ penalty.operator.mv(solve(space))) / self.probes
            t = self._coupled(random_signs(point.W, probe))
            nodes, weights = arnoldi(curvature, t, self.rank, 1e-8).quadrature
            head_trace += float(weights @ (1 / nodes)) / self.probes
        return Spectrum(log_det, theta_trace, head_trace)

    def _coupled(self, u: Tensor) -> Tensor:
        """Return t = T' (D + a2)^-1 u."""
        point = self.point
        D = point.sensitivity.fit.inverse_hessian.mv(u)
        bent = point.problem.misfit.hessian(point.outputs)(matmul_small(point.Z, D.T))
        return point.linearization.vjp(matmul_small(bent, point.sensitivity.W))

    def _head(self, alpha: float) -> tuple[float, float, float]:
        """Return log det (D + a2), 0 and tr (D + a2)^-1; for a large head from its blocks, one per target."""
        point = self.point
        largest = point.problem.policy.head.newton_entries
        if point.problem.misfit.identity_hessian or point.W.numel() <= largest:
            values, _, copies = head_eigen(point)
            shifted = values + alpha
            return float(copies * shifted.log().sum()), 0.0, float(copies * (1 / shifted).sum())
        factors = head_posterior(point.Z, point.problem.misfit, point.outputs, alpha, 1.0).factors
        log_det = sum(2 * float(L.diagonal().log().sum()) for L in factors)
        return log_det, 0.0, sum(float(torch.cholesky_inverse(L).diagonal().sum()) for L in factors)


def solve(space: Arnoldi) -> Tensor:
    """Return S^-1 v on the Krylov space of v."""
    nodes, vectors = space.ritz
    return space.basis.new_tensor(vectors @ (space.beta * vectors[0] / nodes)) @ space.basis[:-1]
