"""The step on a Krylov space: Arnoldi, the projected problem within a radius, and the pseudo-inverse.

At a point with gradient g and curvature A (symmetric, positive semi-definite), Arnoldi started at -g gives

    A Q_r = Q_{r+1} H_r        Q orthonormal, H_r an (r+1) x r upper Hessenberg matrix,       beta = |g|

and the step is s = Q_r z with

    z(lambda) = argmin_z  1/2 |H_r z - beta e_1|^2 + lambda/2 |z|^2                           (paper, sec. 2.3)

lambda = 0 is GMRES without restarts; where that step is longer than the radius, lambda is the root of
|z(lambda)| = radius. With the SVD H_r = U S V' every lambda costs a few multiplications of r-vectors, so a rejected
trial asks the same factorisation for a shorter step and pays for nothing but the trial itself.
The quadratic model promises

    predicted reduction = beta z_1 - 1/2 z' H_r[:r] z.

Arnoldi breaks down when the space is invariant (always when r reaches the dimension of the problem). That is luck, not
failure: the factorisation is then exact and simply stops there.

Legend: Q_{r+1} -> basis (rows are the vectors), H_r -> hessenberg, r -> rank, beta -> beta, lambda -> damping,
Delta -> radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from gnvpro.step_rules import Step
from gnvpro.trust_region import Point

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Arnoldi:
    """A Q_r = Q_{r+1} H_r, from the starting vector beta q_1."""

    basis: Tensor  # (rank + 1, n); the last row is zero after a breakdown
    hessenberg: Array  # (rank + 1, rank)
    beta: float
    residual: float  # |H_r z - beta e_1| / beta at its minimum: what GMRES has left

    @property
    def rank(self) -> int:
        """The dimension of the Krylov space."""
        return self.hessenberg.shape[1]

    @cached_property
    def svd(self) -> tuple[Array, Array, Array]:
        """The thin SVD of the Hessenberg matrix."""
        U, s, Vt = np.linalg.svd(self.hessenberg, full_matrices=False)
        return U, np.asarray(s, dtype=np.float64), Vt

    def pseudo_inverse(self, y: Tensor) -> Tensor:
        """Q_r H_r^+ Q_{r+1}' y."""
        small = self.basis @ y
        return self.basis[:-1].T @ small.new_tensor(self._pinv @ small.cpu().numpy())

    def pseudo_inverse_transposed(self, x: Tensor) -> Tensor:
        """The exact transpose: Q_{r+1} H_r^+' Q_r' x."""
        small = self.basis[:-1] @ x
        return self.basis.T @ small.new_tensor(self._pinv.T @ small.cpu().numpy())

    @cached_property
    def _pinv(self) -> Array:
        return np.asarray(np.linalg.pinv(self.hessenberg), dtype=np.float64)


def arnoldi(mv: Callable[[Tensor], Tensor], start: Tensor, max_rank: int, rtol: float) -> Arnoldi:
    """Factor the operator on the Krylov space of `start` until GMRES would have a relative residual of `rtol`."""
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
        if not torch.isfinite(product).all():
            break
        scale = float(torch.linalg.vector_norm(product))
        known = basis[: rank + 1]
        coefficients = product.new_zeros(rank + 1)
        for _ in range(2):  # once is not enough in floating point, twice is
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
    """Rotate a new Hessenberg column like the ones before it; the sine of its own rotation shrinks the residual."""
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

    factors: Arnoldi

    @property
    def rank(self) -> int:
        """The dimension of the space the step is taken from."""
        return self.factors.rank

    @property
    def first_radius(self) -> float:
        """No bound: GMRES's own step is the first to try."""
        return math.inf

    def solve_within(self, radius: float) -> Step:
        """The step of length at most `radius`, and the reduction the model promises for it."""
        factors = self.factors
        if factors.rank == 0:
            return Step(torch.zeros_like(factors.basis[0]), 0.0, 0.0, 0.0)
        U, s, Vt = factors.svd
        rhs = factors.beta * U[0]
        # A direction in which the curvature is rounding error is not one to divide by.
        rhs = np.where(s > 1e-14 * s[0], rhs, 0.0)

        def coordinates(damping: float) -> Array:
            return np.divide(s * rhs, s**2 + damping, out=np.zeros_like(s), where=rhs != 0)

        y, damping = coordinates(0.0), 0.0
        if np.linalg.norm(y) > radius:
            damping = secular_root(lambda damp: float(np.linalg.norm(coordinates(damp))), radius, factors.beta)
            y = coordinates(damping)
            y *= radius / np.linalg.norm(y)  # the root is good to rounding; the promise "on the sphere" should be too
        z = Vt.T @ y
        predicted = factors.beta * z[0] - 0.5 * z @ (factors.hessenberg[:-1] @ z)
        d_x = factors.basis.new_tensor(z) @ factors.basis[:-1]
        return Step(d_x, float(np.linalg.norm(z)), float(predicted), damping)


def secular_root(norm: Callable[[float], float], radius: float, beta: float) -> float:
    """The damping at which |z(damping)| = radius, for a norm that falls from above the radius as damping grows."""
    # s / (s^2 + damping) <= 1 / (2 sqrt(damping)) for every s, so at this damping the step is inside for certain.
    upper = (0.5 * beta / radius) ** 2
    return float(
        brentq(lambda damping: 1.0 / radius - 1.0 / norm(damping), 0.0, upper, xtol=1e-300, rtol=1e-14, maxiter=500)
    )


@dataclass(frozen=True)
class Krylov:
    """Builds a `KrylovModel` of an objective at a point."""

    max_rank: int
    rtol: float

    def __call__(self, point: Point) -> KrylovModel:
        """Factor the curvature at the point: two passes through the network for each dimension."""
        return KrylovModel(arnoldi(point.curvature().mv, -point.gradient(), self.max_rank, self.rtol))
