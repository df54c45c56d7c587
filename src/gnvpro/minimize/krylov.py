"""The step on a Krylov space: Arnoldi, the projected problem within a radius, and the pseudo-inverse.

At a point with gradient g and curvature A (symmetric, positive semi-definite), Arnoldi started at -g gives

    A Q_r = Q_{r+1} H_r        Q orthonormal, H_r an (r+1) x r upper Hessenberg matrix,       beta = |g|

and the step is s = Q_r z. If the radius does not bind, z is the solution of GMRES without restarts (paper, sec.
2.3),

    z = argmin_z |H_r z - beta e_1|.

If it does, z minimises the quadratic model within the radius: with T the symmetric part of H_r[:r],

    z(lambda) = argmin_z  -beta z_1 + 1/2 z' T z + lambda/2 |z|^2,      lambda >= 0 the root of |z(lambda)| = radius.

The paper adds lambda to the norm of the residual instead (`damped="residual"`), which weights a direction of
curvature e by e / (e^2 + lambda) and so almost ignores the flat directions:

    z(lambda) = argmin_z |H_r z - beta e_1|^2 + lambda |z|^2.

The GMRES step is never longer than the minimiser of the model, so the two cases meet. With one eigen-decomposition
of T every lambda costs a few multiplications of r-vectors. After a rejected trial the same factorisation gives a
shorter step, so only the trial itself costs work. The model predicts

    predicted reduction = beta z_1 - 1/2 z' T z.

Arnoldi breaks down when the space is invariant (always when r reaches the dimension of the problem). This is no
failure: the factorisation is then exact and simply ends.

Legend: Q_{r+1} -> basis (rows are the vectors), H_r -> hessenberg, r -> rank, beta -> beta, lambda -> damping,
Delta -> radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from gnvpro.linalg.operators import LinearOperator
from gnvpro.linalg.secular import Array, within_radius
from gnvpro.minimize.step_rules import Step
from gnvpro.minimize.trust_region import Point


@dataclass(frozen=True)
class Arnoldi:
    """The factorisation A Q_r = Q_{r+1} H_r, started at beta q_1."""

    basis: Tensor  # (rank + 1, n); the last row is zero after a breakdown
    hessenberg: Array  # (rank + 1, rank)
    beta: float
    residual: float  # |H_r z - beta e_1| / beta at its minimum, the remaining residual of GMRES

    @property
    def rank(self) -> int:
        """Dimension of the Krylov space."""
        return self.hessenberg.shape[1]

    @cached_property
    def gmres(self) -> Array:
        """Return the coordinates of the step with the smallest residual; singular values at rounding level are not
        divided by.
        """
        right = np.zeros(self.rank + 1)
        right[0] = self.beta
        return np.linalg.lstsq(self.hessenberg, right, rcond=1e-14)[0]

    @cached_property
    def projected(self) -> Array:
        """Symmetric part of Q_r' A Q_r."""
        square = self.hessenberg[:-1]
        return 0.5 * (square + square.T)

    @cached_property
    def ritz(self) -> tuple[Array, Array]:
        """Its eigenvalues, raised at least to rounding level, and eigenvectors."""
        values, vectors = np.linalg.eigh(self.projected)
        return np.maximum(values, 1e-14 * abs(values).max()), vectors

    @property
    def quadrature(self) -> tuple[Array, Array]:
        """Nodes t and weights w of v' f(A) v ~ sum_i w_i f(t_i), with v the start of the space."""
        nodes, vectors = self.ritz
        return nodes, self.beta**2 * vectors[0] ** 2

    @property
    def damped_model(self) -> tuple[Array, Array, Array]:
        """Return e, b and V such that z(lambda) = V [b / (e + lambda)] minimises the damped quadratic model."""
        values, vectors = self.ritz
        return values, self.beta * vectors[0], vectors

    @cached_property
    def damped_residual(self) -> tuple[Array, Array, Array]:
        """Return the same for the damped norm of the residual, from the singular values of H_r."""
        left, singular, right = np.linalg.svd(self.hessenberg, full_matrices=False)
        singular = np.maximum(singular, 1e-14 * singular.max())
        return singular[::-1] ** 2, (self.beta * singular * left[0])[::-1], right[::-1].T

    def pseudo_inverse(self, y: Tensor) -> Tensor:
        """Return Q_r H_r^+ Q_{r+1}' y."""
        small = self.basis @ y
        return self.basis[:-1].T @ small.new_tensor(self._pinv @ small.cpu().numpy())

    def pseudo_inverse_transposed(self, x: Tensor) -> Tensor:
        """Return the exact transpose: Q_{r+1} H_r^+' Q_r' x."""
        small = self.basis[:-1] @ x
        return self.basis.T @ small.new_tensor(self._pinv.T @ small.cpu().numpy())

    @cached_property
    def _pinv(self) -> Array:
        return np.asarray(np.linalg.pinv(self.hessenberg), dtype=np.float64)


def arnoldi(mv: Callable[[Tensor], Tensor], start: Tensor, max_rank: int, rtol: float) -> Arnoldi:
    """Factorise the operator on the Krylov space of `start` until GMRES has a relative residual of `rtol`."""
    n = start.numel()
    beta = float(torch.linalg.vector_norm(start))
    max_rank = min(max_rank, n)
    if beta == 0.0 or not math.isfinite(beta) or max_rank == 0:
        return Arnoldi(start.new_zeros((1, n)), np.zeros((1, 0)), beta, 1.0)
    basis = start.new_zeros((max_rank + 1, n))
    basis[0] = start / beta
    hessenberg = np.zeros((max_rank + 1, max_rank))
    rotations: list[tuple[float, float]] = []  # Givens rotations that make the Hessenberg matrix triangular
    residual, rank = 1.0, 0
    while rank < max_rank and residual > rtol:
        product = mv(basis[rank])
        scale = float(torch.linalg.vector_norm(product))
        if not math.isfinite(scale):
            break
        known = basis[: rank + 1]
        coefficients = product.new_zeros(rank + 1)
        for _ in range(2):  # in floating point one orthogonalisation is not enough, two are
            correction = known @ product
            product = product - correction @ known
            coefficients += correction
        norm = float(torch.linalg.vector_norm(product))
        broke_down = norm <= 1e-14 * scale or rank + 1 == n
        norm = 0.0 if broke_down else norm
        column = np.append(coefficients.cpu().numpy(), norm)
        hessenberg[: rank + 2, rank] = column
        residual *= abs(_next_sine(rotations, column))
        rank += 1
        if broke_down:
            break
        basis[rank] = product / norm
    return Arnoldi(basis[: rank + 1], hessenberg[: rank + 1, :rank], beta, residual)


def _next_sine(rotations: list[tuple[float, float]], column: Array) -> float:
    """Rotate a new Hessenberg column by the earlier rotations; return the sine of the new one, which reduces the residual."""
    above = column[0]
    for (c, s), below in zip(rotations, column[1:-1], strict=True):
        above = c * below - s * above
    length = math.hypot(above, column[-1])
    c, s = (above / length, column[-1] / length) if length > 0 else (0.0, 1.0)
    rotations.append((c, s))
    return s


@dataclass(frozen=True)
class KrylovModel:
    """The local model on one Krylov space: a step for every radius from small dense algebra."""

    gradient: Tensor
    factors: Arnoldi
    damped: str = "model"  # what damping is added to: the quadratic "model", or the norm of the "residual"
    first_radius: ClassVar[float] = math.inf  # no bound: the first trial is the GMRES step

    @property
    def rank(self) -> int:
        """Dimension of the space of its steps."""
        return self.factors.rank

    def solve_within(self, radius: float) -> Step:
        """Return the step of length at most `radius`, and its predicted reduction."""
        factors = self.factors
        if factors.rank == 0:
            return Step(torch.zeros_like(factors.basis[0]), 0.0, 0.0, 0.0)
        z, damping = factors.gmres, 0.0
        if np.linalg.norm(z) > radius:
            values, right, vectors = factors.damped_residual if self.damped == "residual" else factors.damped_model
            y, damping = within_radius(values, right, radius, rounding=0.0)  # all values are above rounding level
            z = vectors @ y
        predicted = factors.beta * z[0] - 0.5 * z @ factors.projected @ z
        d_x = factors.basis.new_tensor(z) @ factors.basis[:-1]
        return Step(d_x, float(np.linalg.norm(z)), float(predicted), damping)


def random_signs(like: Tensor, probe: int) -> Tensor:
    """Return the same random signs at every call."""
    generator = torch.Generator().manual_seed(probe)
    return (torch.randint(0, 2, tuple(like.shape), generator=generator) * 2 - 1).to(like)


class CurvedPoint(Point, Protocol):
    """A point that knows products with its curvature."""

    def curvature(self) -> LinearOperator:
        """A symmetric positive semi-definite model of its Hessian."""


def krylov_model(point: CurvedPoint, max_rank: int, rtol: float, damped: str = "model") -> KrylovModel:
    """Build the local model at a point from the curvature there, with two passes through the network per dimension."""
    gradient = point.gradient()
    return KrylovModel(gradient, arnoldi(point.curvature().mv, -gradient, max_rank, rtol), damped)
