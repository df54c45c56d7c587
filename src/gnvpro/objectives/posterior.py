"""Uncertainty of the head: its Gaussian posterior, whose precision is the inner Hessian of the training.

Least squares, n samples (or weights that sum to n), Z the features with the column of ones, r the residuals:

    H        = Z' diag(w) Z + a2 I                           the inner Hessian, w = weights / n
    var_k    = n sum_i w_i r_ik^2 / (n - dof)                noise of output k
    cov(W_k) = var_k (n H)^-1                                Bayesian linear regression on the features
    var(y_k) = var_k (1 + z' (n H)^-1 z)                     a new observation at features z

dof counts the parameters that the data determine: tr(H^-1 Z' diag(w) Z) in the head, plus the share of each output
in those of the features, tr(A (A + a1 I)^-1) / n_targets with A the reduced Gauss-Newton matrix. The latter is
estimated from a few Krylov spaces, on a part of the samples if there are many. The features themselves count as
known.

Classification: precision of W_k is n H_kk, the k-th diagonal block. Blocks between classes are omitted: they
describe a common shift of all outputs, which changes no probability. Outputs shrink with the uncertainty:

    x_k -> x_k / sqrt(1 + pi/8 z' (n H_kk)^-1 z)             MacKay (1992), the probit approximation

Legend: Z -> features, n -> n_samples, a1 -> theta_penalty, a2 -> head_penalty, var_k -> noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.columns import weighted_squares
from gnvpro.linalg.rows import rowwise
from gnvpro.minimize.krylov import arnoldi, random_signs
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.misfit import Misfit


@dataclass(frozen=True)
class HeadPosterior:
    """Cholesky factors of the precision n H of the head: one for all outputs (least squares), or one per output."""

    factors: tuple[Tensor, ...]

    def spread(self, Z: Tensor) -> Tensor:
        """Return z' (n H)^-1 z for each row and factor."""
        return torch.stack(
            [torch.linalg.solve_triangular(L, Z.T, upper=False).square().sum(0) for L in self.factors], dim=1
        )


def head_posterior(Z: Tensor, misfit: Misfit, outputs: Tensor, head_penalty: float, n_samples: float) -> HeadPosterior:
    """Return the posterior of a head at the minimum of the inner problem."""
    blocks = 1 if misfit.identity_hessian else outputs.shape[1]
    curved = rowwise(lambda h: h[:, :blocks], misfit.hessian_diagonal(outputs), columns=blocks)
    H = misfit.over.sum(weighted_squares, Z, curved)
    H.diagonal(dim1=1, dim2=2).add_(head_penalty)
    return HeadPosterior(tuple(damped_cholesky(n_samples * block)[0] for block in H))


def noise_variance(point: ReducedPoint, posterior: HeadPosterior, n_samples: float) -> Tensor:
    """Return the noise variance of each output, from residuals to which parameters have been fitted."""
    misfit = point.problem.misfit
    residuals = misfit.sqrt_weights * (point.outputs - misfit.targets)
    covariance = misfit.over.inner(residuals, residuals)
    mean_square = covariance.diagonal()
    # Correlated outputs count less: tr(C)^2 / |C|^2 is their effective number.
    count = float(mean_square.sum() ** 2 / covariance.square().sum().clamp_min(torch.finfo(torch.float64).tiny))
    dof = head_dof(point.Z, misfit, posterior, n_samples) + feature_dof(point) / max(count, 1.0)
    return mean_square * n_samples / max(n_samples - dof, 0.05 * n_samples)


def held_out_variance(misfit: Misfit, outputs: Tensor, spread: Tensor) -> Tensor:
    """Return the noise variance from held-out samples; their residuals contain noise plus the uncertainty of W."""

    def add(w: Tensor, X: Tensor, C: Tensor, s: Tensor) -> Tensor:
        return (w * (X - C).square() / (1 + s)).sum(0)

    return misfit.over.sum(add, misfit.weights, outputs, misfit.targets, spread)


def covering(variance: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """Return the noise variances, changed until 94 to 96% of the scores lie within 1.96 standard deviations.

    A score is the leave-one-out error of a sample in units of the standard deviation predicted for it. The variance
    determines the level of the scores: only their shape counts, because tails may be heavy.
    """
    sizes, order = scores.abs().sort(0)
    level = ((weights * scores.square()).sum(0) / weights.sum()).sqrt()
    share = weights.expand_as(scores).gather(0, order).cumsum(0) / weights.sum()
    low, high = (
        sizes.gather(0, (share < quantile).sum(0, keepdim=True).clamp_max(len(sizes) - 1))[0] for quantile in COVERED
    )
    factor = torch.ones_like(level).clamp(low / (1.96 * level), high / (1.96 * level))
    return torch.where(level > 0, variance * factor.square(), variance)


COVERED = (0.94, 0.96)  # of the samples, by intervals of 95%


def head_dof(Z: Tensor, misfit: Misfit, posterior: HeadPosterior, n_samples: float) -> float:
    """Return tr(H^-1 Z' diag(w) Z): the effective number of parameters per output of the head."""
    return float(n_samples * misfit.over.sum(lambda w, z: (w * posterior.spread(z)).sum(), misfit.weights, Z))


def feature_dof(point: ReducedPoint, probes: int = 1, rank: int = 15) -> float:
    """Return tr(A (A + a1 I)^-1) by quadrature on Krylov spaces of random vectors, two passes per dimension."""
    problem = point.problem
    if point.x.numel() == 0:
        return 0.0
    most = problem.policy.memory.looked_at
    if problem.n_samples > most:  # A is a mean over samples
        some = torch.randperm(problem.n_samples, generator=torch.Generator().manual_seed(0))[:most]
        point = problem.on_samples(some.to(point.x.device)).reduced.start(point.theta, WarmStart(point.W))
    A, alpha = point.curvature().mv, problem.theta_penalty.alpha
    # f(t) = (t - a1) / t on the spectrum of A + a1 I; values below a1 come from rounding and count as undetermined
    spaces = (arnoldi(A, random_signs(point.x, probe), rank, 1e-6).quadrature for probe in range(probes))
    return sum(float(weights @ np.clip(1 - alpha / nodes, 0, 1)) for nodes, weights in spaces) / probes


def probit_scaled(outputs: Tensor, spread: Tensor) -> Tensor:
    """Shrink outputs of a classifier by their uncertainty; with several outputs, their distance from the mean is shrunk."""
    centred = outputs - outputs.mean(1, keepdim=True) if outputs.shape[1] > 1 else outputs
    return centred / torch.sqrt(1 + math.pi / 8 * spread)
