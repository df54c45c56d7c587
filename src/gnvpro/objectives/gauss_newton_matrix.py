"""The complete Gauss-Newton matrix of the reduced problem, from the per-sample Jacobian of the features.

With J_i = d features / d theta of row i, and H_i the Hessian of its loss in its outputs (see
`gnvpro.head.sensitivity`),

    A = sum_i J_i' W' H_i W J_i  -  S1' inv S1  +  S2' inv S2  +  alpha B'B
    S1 = sum_i (H_i W J_i) (x) z_i,    S2 = sum_i g_i (x) J_i                            (n_targets n_features rows each)

The first term dominates the cost. With H_i = C_i C_i' and C_i' W = Q_i R_i, it is the square of R_i J_i, which has

    m = min(n_targets, n_features)

rows per sample: m backward passes give all of R_i J_i, never J_i itself. S1 and the gradient follow from the same
rows. Only S2, which contains the residual g, needs J_i (n_features passes). Without it, A is Kaufman's
approximation.

For least squares C_i and Q_i do not depend on i up to a weight, and inv acts on features only, so S1 needs m
n_features rows instead of n_targets n_features.

Rows of the Jacobian are computed, used and freed by chunks of samples; only A and the couplings are kept.

Legend: R_i -> seeds, C_i Q_i -> left, S1 and S2 -> head_coupling and residual_coupling, B'B -> penalty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.head.sensitivity import HeadSensitivity
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.sums import ChunkedSum
from gnvpro.linalg.symmetric_products import add_square
from gnvpro.network.derivatives.blocks import Blocks
from gnvpro.network.derivatives.linearization import FeatureLinearization
from gnvpro.network.subspace import Subspace
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.misfit import Misfit

if TYPE_CHECKING:
    from gnvpro.objectives.problem import Problem


@dataclass(frozen=True)
class GaussNewtonMatrix:
    """The matrix in the coordinates of a subspace, the gradient in theta, and functions for a geodesic correction."""

    matrix: Tensor
    gradient: Tensor
    penalty: Tensor  # the penalty's share of the matrix
    subspace: Subspace
    pull_back: Callable[[Tensor, Tensor], Tensor]  # (d_outputs, dW) -> J' H d_outputs + a2 J_W' dW, in theta
    product: Callable[[Tensor], Tensor] | None = None  # with the matrix of all samples, if this is of a part


@dataclass(frozen=True)
class CommonRoot:
    """C_i' W = Q_i R_i for least squares: C_i = sqrt(w_i), one Q and one R; S1 stays in the coordinates of Q."""

    Q: Tensor
    R: Tensor
    root_weights: Tensor  # (rows, 1)

    @property
    def rank(self) -> int:
        """m."""
        return len(self.R)

    @property
    def seeds(self) -> Tensor:
        """Return sqrt(w) R, (m, rows, n_features)."""
        return self.root_weights * self.R[:, None]

    def transposed(self, y: Tensor) -> Tensor:
        """Return (C Q)' y = sqrt(w) Q' y, (rows, m) of (rows, n_targets)."""
        return self.root_weights * (y @ self.Q)

    @property
    def coupled_rows(self) -> int:
        """Rows of S1 for each direction and feature: m."""
        return self.R.shape[0]

    def couple(self, J: Blocks, Z: Tensor, rows: slice) -> Tensor:
        """Return these rows' share of S1, the sum of R J (x) sqrt(w) z: (directions, coupled_rows, n_features)."""
        return J.sum_with(self.root_weights[rows] * Z[rows])


@dataclass(frozen=True)
class RowRoot:
    """C Q and R row by row, for any loss."""

    left: Tensor  # (rows, n_targets, m)
    seeds: Tensor

    @property
    def rank(self) -> int:
        """m."""
        return len(self.seeds)

    def transposed(self, y: Tensor) -> Tensor:
        """Return (C Q)' y."""
        return (self.left.mT @ y[..., None])[..., 0]

    @property
    def coupled_rows(self) -> int:
        """Rows of S1: n_targets."""
        return self.left.shape[1]

    def couple(self, J: Blocks, Z: Tensor, rows: slice) -> Tensor:
        """Sum over the rows of (C Q R J) (x) z."""
        return J.sum_weighted_with(self.left[rows].permute(1, 2, 0).contiguous(), Z[rows].T)


Root = CommonRoot | RowRoot


def curvature_root(misfit: Misfit, outputs: Tensor, W: Tensor) -> Root:
    """Return the root of the curvature with the fewest rows."""
    if misfit.identity_hessian:
        Q, R = torch.linalg.qr(W) if W.shape[0] > W.shape[1] else (torch.eye(W.shape[0]).to(W), W)
        return CommonRoot(Q, R, misfit.sqrt_weights)
    C = misfit.hessian_root(outputs)
    R = C.mT @ W
    if R.shape[1] > R.shape[2]:
        Q, R = torch.linalg.qr(R)
        C = C @ Q
    return RowRoot(C, R.transpose(0, 1).contiguous())


@dataclass(frozen=True)
class MatrixBuilder:
    """Builds the Gauss-Newton matrix of a point, with the coupling S2 of the residual or without."""

    subspace: Subspace
    penalty: Tensor  # alpha B'B in the coordinates of the subspace
    residual_term: bool
    kept_bytes: float  # keep the Jacobian for the geodesic correction up to this size

    def passes(self, problem: Problem) -> int:
        """Number of backward passes for a matrix and its gradient."""
        network = problem.network
        if self.residual_term:
            return network.n_features
        return min(network.n_features, network.n_targets) + (not problem.misfit.identity_hessian)

    def build_of_part(self, point: ReducedPoint, part: Problem) -> GaussNewtonMatrix:
        """Return the matrix of a part of the samples with the head and gradient of all, without the residual's coupling."""
        at = part.reduced.start(point.x, WarmStart(point.W))
        assert at.fit is not None
        at = replace(at, fit=at.full.with_head(at.Z, point.W), few=at.problem.misfit)
        sums = _Accumulator(self.subspace, at.sensitivity)
        sums.add_samples(at, False, 0.0)
        pull = self._pull_back(point)
        matrix = sums.matrix_and_gradient()[0].add_(self.penalty)
        local, network, penalty = point.rotated, point.linearization, point.problem.theta_penalty

        def product(v: Tensor) -> Tensor:  # Kaufman's, which leaves out S2
            d_outputs = matmul_small(network.jvp(v), local.W.T)
            return pull(d_outputs, torch.zeros_like(local.fit.W)) + penalty.hessian_mv(v)

        return GaussNewtonMatrix(matrix, point.gradient(), self.penalty, self.subspace, pull, product)

    def build(self, point: ReducedPoint) -> GaussNewtonMatrix:
        """Return the matrix and the gradient at a point."""
        local, full = point.rotated, self.residual_term
        sums = _Accumulator(self.subspace, local)
        kept, root = sums.add_samples(point, full, self.kept_bytes)
        matrix, scaled = sums.matrix_and_gradient()
        if full or local.misfit.identity_hessian:
            gradient = self.subspace.expand(scaled)
        else:
            gradient = point.linearization.vjp(local.feature_gradient())
        gradient = gradient + point.problem.theta_penalty.hessian_mv(point.x)
        matrix.add_(self.penalty)
        return GaussNewtonMatrix(matrix, gradient, self.penalty, self.subspace, self._pull_back(point, kept, root))

    def _pull_back(
        self, point: ReducedPoint, kept: list[JacobianChunk] | None = None, root: Root | None = None
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return J' H d_outputs + a2 J_W' dW, from the kept rows or by a backward pass."""
        local, subspace, vjp = point.rotated, self.subspace, point.linearization.vjp

        def pull(d_outputs: Tensor, dW: Tensor) -> Tensor:
            hessian = local.misfit.hessian(local.fit.outputs)
            D = local.fit.inverse()[0].rmv(
                local.misfit.over.inner(hessian(d_outputs), local.Z) + local.head_penalty * dW
            )
            d_outputs = d_outputs - matmul_small(local.Z, D.T)
            residual = matmul_small(local.G, D[:, : local.n_features])
            if kept is None or root is None:
                return vjp(matmul_small(hessian(d_outputs), local.W) - (residual if self.residual_term else 0.0))
            c = root.transposed(d_outputs)
            y = local.Z.new_zeros(subspace.count)
            for chunk in kept:
                y += chunk.projected.times(c[chunk.rows])
                if chunk.whole is not None:
                    y -= chunk.whole.times(residual[chunk.rows])
            return subspace.expand(subspace.scale * local.misfit.over.total(y))

        return pull


def joint_parts(point: ReducedPoint, subspace: Subspace) -> tuple[Tensor, Tensor]:
    """Return the theta block of the joint Gauss-Newton matrix of (theta, W), without penalties, and its coupling S1."""
    local = point.sensitivity
    sums = _Accumulator(subspace, local)
    sums.add_samples(point, False, 0.0)
    assert isinstance(sums.head_coupling, Tensor)
    total = local.misfit.over.total
    return sums.whole(total(sums.square)), total(sums.head_coupling) * subspace.scale[:, None, None]


@dataclass(frozen=True)
class JacobianChunk:
    """Jacobian rows of some samples: R J (directions, m, rows), and J itself if S2 is needed."""

    rows: slice
    projected: Blocks
    whole: Blocks | None


class _Accumulator:
    """Sums over samples."""

    def __init__(self, subspace: Subspace, local: HeadSensitivity) -> None:
        self.subspace, self.local = subspace, local
        q = subspace.count
        self.square = local.Z.new_zeros((q, q))  # its lower triangle
        self.gradient = local.Z.new_zeros(q)
        self.head_coupling: Tensor | None = None
        self.residual_coupling: Tensor | None = None

    def add_samples(
        self, point: ReducedPoint, full: bool, kept_bytes: float
    ) -> tuple[list[JacobianChunk] | None, Root | None]:
        """Add all samples; return their Jacobian rows and the root if they fit into `kept_bytes`."""
        local, network, problem = self.local, point.linearization, point.problem
        if network.parts is None:
            root = curvature_root(local.misfit, local.fit.outputs, local.W)
            rows = local.misfit.over.largest(local.Z.shape[0])  # every process must keep them, or none
            bytes_kept = 8 * self.subspace.count * rows * root.rank * (2 if full else 1)
            kept: list[JacobianChunk] | None = [] if bytes_kept <= kept_bytes else None
            self._add(local, root, network, full, kept)
            return kept, root
        assert isinstance(local.misfit.over, ChunkedSum)
        seeds = 0
        for chunk in local.misfit.over.chunks():
            linear = network.parts.on(chunk)  # before the features, which are computed with it
            part = local.on(chunk)
            root = curvature_root(part.misfit, part.fit.outputs, part.W)
            self._add(part, root, linear, full, None)
            seeds = local.n_features if full else root.rank
            del chunk, linear, part, root  # free them before the next chunk is read
        problem.meter.count(problem.n_samples, seeds)
        return None, None

    def _add(
        self,
        local: HeadSensitivity,
        root: Root,
        network: FeatureLinearization,
        full: bool,
        kept: list[JacobianChunk] | None,
    ) -> None:
        """Add samples in memory, all of them or a chunk; append their Jacobian rows to the list, if any.

        The rows are R J from m seeds or, in full, J from a seed for every feature.
        """
        Z, G, f = local.Z, self._narrowed(local), local.n_features
        if self.head_coupling is None:
            self.head_coupling = Z.new_zeros((self.subspace.count, root.coupled_rows, Z.shape[1]))
        if full and self.residual_coupling is None:
            self.residual_coupling = Z.new_zeros((self.subspace.count, f, G.shape[1]))
        seeds, cotangent = root.seeds, None
        if full:
            seeds, cotangent = torch.eye(f).to(Z)[:, None].expand(f, Z.shape[0], f), local.feature_gradient()
        elif local.misfit.identity_hessian:
            cotangent = root.transposed(local.G / local.misfit.weights)
        for rows, jacobians in network.jacobian(seeds):
            J = self.subspace.gather(jacobians, self.square)
            if cotangent is not None:
                self.gradient += J.times(cotangent[rows])
            if self.residual_coupling is not None:
                self.residual_coupling += J.sum_with(G[rows])
            projected = J.reseed(root.seeds[:, rows]) if full else J
            projected.add_square(self.square)
            self.head_coupling += root.couple(projected, Z, rows)
            if kept is not None:
                kept.append(JacobianChunk(rows, projected, J if full else None))
            del jacobians, J, projected  # free them before the next ones are computed

    def _narrowed(self, local: HeadSensitivity) -> Tensor:
        """Return G with as many columns as rows: it enters S2' inv S2 through G G' if inv acts on features only.

        Other processes, and other chunks, use another Q.
        """
        G, alone = local.G, local is self.local and local.misfit.over.processes.alone
        narrow = local.misfit.identity_hessian and G.shape[1] > G.shape[0] and alone
        return torch.linalg.qr(G.T).R.T if narrow else G

    def matrix_and_gradient(self) -> tuple[Tensor, Tensor]:
        """Return the misfit's and the head penalty's share of the matrix, and the gradient in its coordinates."""
        assert self.head_coupling is not None
        parts = self.square, self.gradient, self.head_coupling
        S2 = None
        if self.residual_coupling is None:
            A, gradient, S1 = self.local.misfit.over.totals(parts)
        else:
            A, gradient, S1, coupling = self.local.misfit.over.totals((*parts, self.residual_coupling))
            S2 = torch.nn.functional.pad(coupling.mT, (0, S1.shape[2] - self.local.n_features))
        self._add_couplings(A, S1, S2)
        return self.whole(A), self.subspace.scale * gradient

    def whole(self, A: Tensor) -> Tensor:
        """Return the full matrix of a lower triangle whose rows and columns still lack their scale."""
        scale = self.subspace.scale
        if not bool((scale == 1.0).all()):
            A.mul_(scale[:, None]).mul_(scale)
        return A.tril_().add_(A.tril(-1).T)

    def _add_couplings(self, A: Tensor, S1: Tensor, S2: Tensor | None) -> None:
        """Add -S1' inv S1 + S2' inv S2 to the lower triangle."""
        fit, q = self.local.fit, self.subspace.count
        pairs = [(S1, -1.0)] if S2 is None else [(S1, -1.0), (S2, 1.0)]
        if self.local.misfit.identity_hessian:
            solve = fit.inverse()[0].mv
            for S, sign in pairs:
                solved = solve(S.reshape(-1, S.shape[2]))  # acts on any number of rows of features
                add_square(A, S.reshape(q, -1), solved.reshape(q, -1), sign)
        elif fit.inverse_is_exact and fit.hessian_factor is not None:
            for S, sign in pairs:
                half = torch.linalg.solve_triangular(fit.hessian_factor, S.reshape(q, -1).T, upper=False)
                add_square(A, half.T, None, sign)
        else:
            A += self._composed(S1, S2)

    def _composed(self, S1: Tensor, S2: Tensor | None) -> Tensor:
        """Add the couplings for an inexact inverse: dW = -inv(S1 + S2), and nothing cancels."""
        local = self.local
        dW = torch.stack([-local.fit.inverse_hessian.mv(D) for D in (S1 if S2 is None else S1 + S2)])

        def bend(Z: Tensor, misfit: Misfit, outputs: Tensor) -> Tensor:
            hessian = misfit.hessian(outputs)
            return torch.stack([hessian(matmul_small(Z, D.T)).T @ Z for D in dW])

        bent = local.misfit.over.sum(bend, local.Z, local.misfit.pieces, local.fit.outputs) + local.head_penalty * dW
        cross = S1.flatten(1) @ dW.flatten(1).T
        return cross + cross.T + dW.flatten(1) @ bent.flatten(1).T
