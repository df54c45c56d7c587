"""The evidence of the penalties: the probability of the data with penalties as Gaussian priors (MacKay, 1992).

With n samples, noise of variance v (least squares; v = 1 for the other losses) and the priors

    theta ~ N(0, v / (n a1) (B'B)^-1),      W ~ N(0, v / (n a2) I),

Phi is -v/n times the logarithm of the joint density, up to constants. Laplace's approximation around a minimum of Phi, with the
joint Gauss-Newton matrix H of (theta, W) in place of the Hessian, gives

    log E  =  -n Phi / v  -  n K / 2 log(2 pi v)  +  r/2 log a1  +  p/2 log a2  -  1/2 log det H  (+ 1/2 log pdet B'B)
    v      =  2 Phi / K                                                    maximises it; K targets, least squares only

(without the second term for the other losses).

The reduced Gauss-Newton matrix S, in Kaufman's form, is the Schur complement of the head's block in H, so both determinants,
and the traces in the derivatives, are small dense algebra:

    H  =  | A + a1 B'B   T'         |      S  =  A + a1 B'B - T' (D + a2)^-1 T,       log det H = log det (D + a2) + log det S
          | T            D + a2 I   |

    d log E / d log a1  =  1/2 (gamma_1 - n a1 |B theta|^2 / v),           gamma_1 = r - a1 tr(S^-1 B'B)
    d log E / d log a2  =  1/2 (gamma_2 - n a2 |W|^2 / v),                 gamma_2 = p - a2 tr((D + a2)^-1 + U S^-1 U')

with U = (D + a2)^-1 T and fixed theta and W, at which Phi is stationary. gamma counts the parameters that the data determine.
If S is too large to be assembled, see `gnvpro.objectives.quadrature`.

Legend: a1 -> theta_penalty, a2 -> head_penalty, v -> noise, A -> theta_block, T -> coupling, D -> head_values, r -> prior_rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnvpro.head.hessian import assemble_hessian
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.network.subspace import Subspace
from gnvpro.objectives.gauss_newton_matrix import joint_parts
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.misfit import Misfit
from gnvpro.state import State


@dataclass(frozen=True)
class Penalties(State):
    """The factors of |B theta|^2 / 2 and |W|^2 / 2."""

    theta: float
    head: float


@dataclass(frozen=True)
class Spectrum:
    """Determinant and traces of H at a pair of penalties."""

    log_det: float
    theta_trace: float  # tr(B'B H^-1)
    head_trace: float  # tr(H^-1) over the head


class JointMatrix(Protocol):
    """The joint Gauss-Newton matrix of theta and W at a point."""

    @property
    def prior_rank(self) -> int:
        """The rank of B."""

    def spectrum(self, at: Penalties) -> Spectrum:
        """Determinant and traces."""


@dataclass(frozen=True)
class DenseJointMatrix:
    """The assembled matrix, for any pair of penalties; the head's block is diagonal in its eigenvectors."""

    theta_block: Tensor  # (q, q)
    prior: Tensor  # B'B, (q, q)
    coupling: Tensor  # (q, c, f), for c equal blocks of the head
    head_values: Tensor  # (f,) eigenvalues of each block
    head_vectors: Tensor  # (f, f) eigenvectors of each block
    copies: int  # number of blocks

    @property
    def prior_rank(self) -> int:
        """Rank of B; a diagonal B'B, such as the identity, needs no eigenvalues."""
        diagonal = self.prior.diagonal()
        if torch.equal(self.prior, diagonal.diag()):
            return int((diagonal > 0).sum())
        return int(torch.linalg.matrix_rank(self.prior, hermitian=True))

    def factor(self, at: Penalties) -> Tensor:
        """Return the Cholesky factor of S."""
        U = (self.coupling / (self.head_values + at.head)).flatten(1)
        return damped_cholesky(self.theta_block + at.theta * self.prior - U @ self.coupling.flatten(1).T)[0]

    def spectrum(self, at: Penalties) -> Spectrum:
        """Return determinant and traces, from one Cholesky factor of S."""
        shifted = self.head_values + at.head
        U = (self.coupling / shifted).flatten(1)
        factor = self.factor(at)
        whitened = torch.linalg.solve_triangular(factor, U, upper=False)
        return Spectrum(
            log_det=float(self.copies * shifted.log().sum() + 2 * factor.diagonal().log().sum()),
            theta_trace=float((torch.cholesky_inverse(factor) * self.prior).sum()) if len(factor) else 0.0,
            head_trace=float(self.copies * (1 / shifted).sum() + whitened.square().sum()),
        )


def dense_joint_matrix(point: ReducedPoint, subspace: Subspace, prior: Tensor) -> DenseJointMatrix:
    """Assemble the matrix: min(n_targets, n_features) backward passes; `prior` is B'B in the coordinates of the subspace."""
    values, vectors, copies = head_eigen(point)
    if subspace.count == 0:
        return DenseJointMatrix(prior, prior, values.new_zeros((0, 1, len(values))), values, vectors, copies)
    A, T = joint_parts(point, subspace)
    T = T if point.problem.misfit.identity_hessian else T.reshape(len(T), 1, -1)
    return DenseJointMatrix(A, prior, T @ vectors, values, vectors, copies)


def head_eigen(point: ReducedPoint) -> tuple[Tensor, Tensor, int]:
    """Return eigenvalues and eigenvectors of the head's block without penalty, and the number of equal blocks."""
    misfit = point.problem.misfit
    if misfit.identity_hessian:
        X = misfit.sqrt_weights * point.Z
        block, copies = misfit.over.inner(X, X), point.W.shape[0]
    else:
        block, copies = assemble_hessian(point.Z, misfit, 0.0, point.outputs), 1
    values, vectors = torch.linalg.eigh(block)
    return values.clamp_min(0.0), vectors, copies


@dataclass(frozen=True)
class Evidence:
    """The evidence at a point for a pair of penalties, with theta and W fixed."""

    log: float  # its logarithm, up to constants of the data and the model
    noise: float  # variance, the mean over targets; one unless the loss is least squares
    theta_gamma: float  # parameters that the data determine, in theta
    head_gamma: float  # the same in the head
    slopes: tuple[float, float]  # d log E / d log of the penalties
    targets: tuple[float, float]  # penalties at which the slopes would vanish if nothing else changed (MacKay's)

    @property
    def gamma(self) -> float:
        """Number of parameters that the data determine."""
        return self.theta_gamma + self.head_gamma


def evidence(point: ReducedPoint, matrix: JointMatrix, at: Penalties, n_samples: float) -> Evidence:
    """Return the evidence around a point, which should be close to a minimum of Phi."""
    squares, (n_targets, entries) = point.problem.misfit.identity_hessian, (point.W.shape[0], point.W.numel())
    squared = (
        float(point.problem.theta_penalty.operator.mv(point.theta).square().sum()),
        float(point.W.square().sum()),
    )
    phi = point.misfit + 0.5 * (at.theta * squared[0] + at.head * squared[1])
    noise = max(2 * phi / n_targets, torch.finfo(torch.float64).tiny) if squares else 1.0
    of, rank = matrix.spectrum(at), matrix.prior_rank
    gammas = (rank - at.theta * of.theta_trace, entries - at.head * of.head_trace)
    fit = -0.5 * n_samples * n_targets * (math.log(2 * math.pi * noise) + 1) if squares else -n_samples * phi
    prior = 0.5 * ((rank * math.log(at.theta) if rank else 0.0) + entries * math.log(at.head))
    pulls = [n_samples * a * s / noise for a, s in zip((at.theta, at.head), squared, strict=True)]
    slopes = [0.5 * (gamma - pull) for gamma, pull in zip(gammas, pulls, strict=True)]
    least = LEAST_GAMMA * max(entries, 1)
    targets = [
        a * max(gamma, least) / pull if pull > 0 else a
        for a, gamma, pull in zip((at.theta, at.head), gammas, pulls, strict=True)
    ]
    return Evidence(fit + prior - 0.5 * of.log_det, noise, *gammas, (slopes[0], slopes[1]), (targets[0], targets[1]))


FIRST = 10.0  # first penalties times the number of samples


def effective_targets(misfit: Misfit) -> float:
    """Return tr(C)^2 / |C|^2 of the targets' covariance C, which counts the different ones."""
    mean = misfit.over.sum(lambda w, C: (w * C).sum(0), misfit.weights, misfit.targets)
    covariance = misfit.over.sum(lambda w, C: (w * (C - mean)).T @ (C - mean), misfit.weights, misfit.targets)
    square = float(covariance.square().sum())
    return float(covariance.trace()) ** 2 / square if square > 0 else float(len(mean))


def first_penalties(misfit: Misfit, n_samples: float, fan_in: int) -> Penalties:
    """Return the first penalties of a search: theta's in the units of the misfit, the head's without units.

    The prior gives a unit's sum of `fan_in` inputs a variance of at most one. For least squares the noise, and with it the
    prior's variance, falls as the model learns: FIRST is then the largest first penalty.
    """
    alpha = FIRST / n_samples
    if not misfit.identity_hessian:
        return Penalties(max(FIRST, fan_in) / n_samples, alpha)
    mean = misfit.over.sum(lambda w, C: (w * C).sum(0), misfit.weights, misfit.targets)
    variance = float(
        misfit.over.sum(lambda w, C: (w * (C - mean).square()).sum(0), misfit.weights, misfit.targets).mean()
    )
    return Penalties(alpha * variance or alpha, alpha)


LEAST_GAMMA = 1e-3  # per entry of the head; a smaller gamma is rounding error


def noise_by_target(point: ReducedPoint, found: Evidence, n_samples: float) -> Tensor:
    """Return the variance of each target's noise, from residuals and the number of parameters fitted to them."""
    misfit = point.problem.misfit
    rows = (misfit.weights, point.outputs, misfit.targets)
    squares = misfit.over.sum(lambda w, X, C: (w * (X - C).square()).sum(0), *rows)
    each = found.gamma / len(squares)
    return squares * n_samples / max(n_samples - each, 0.05 * n_samples)
