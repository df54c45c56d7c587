"""Eliminating the head for any convex loss, by the same trust-region Newton method that moves theta.

    gradient   (misfit gradient)' Z + a2 W
    Hessian    D -> (H (Z D'))' Z + a2 D                      H the Hessian of the misfit in the outputs

`NewtonKrylov` is the paper's method: a Krylov space for each step, and the pseudo-inverse of the last one as the
inverse Hessian. `Newton`, the default, assembles the Hessian and factorises it, H = L L'.

A small head takes plain Newton steps. Its factor is reused for the next step while the gradient falls to a fifth or
less, and the factor of the last accepted point for the first step (nine tables of three to nine classes: four fifths
of the time of a fit). Whole steps are tried first: for a convex objective a falling gradient is sufficient evidence,
so no value is computed. If the gradient does not fall, the trust region takes over.

A larger head keeps its factor. In the coordinates y = L' vec(W) a nearby Hessian is almost the identity, so Krylov
spaces of a few dimensions suffice; the warm start provides the factor of the last accepted point. The inverse is
exact.

Legend: a2 -> head_penalty, W_prev -> start.W, r_max -> max_rank, eps_rel and eps_abs -> rtol and atol.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gnvpro.head.eliminator import ForAnyLoss, HeadFit, WarmStart
from gnvpro.head.hessian import FEW_ENTRIES, approximate_hessian, assemble_hessian, has_few_entries, held_products
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.once import Once
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.minimize.damped_newton import damped_newton
from gnvpro.minimize.krylov import Arnoldi, KrylovModel, arnoldi, krylov_model
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import TrustRegion, minimize
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import ridge

KEEP_BELOW = 0.2  # reuse a factor if its step reduced the gradient to this fraction
FALLEN = 0.8  # accept a whole step if it reduced the gradient to this fraction


class Slope(NamedTuple):
    """The gradient of the inner objective at one head, without the value."""

    W: Tensor
    outputs: Tensor
    gradient: Tensor
    norm: float  # of the gradient


@dataclass(frozen=True)
class HeadPoint:
    """The inner objective at one head, in the coordinates y = factor' vec(W) (or vec(W) without a factor)."""

    objective: HeadObjective
    x: Tensor
    W: Tensor
    outputs: Tensor
    value: float
    gradient_W: Tensor  # in the original coordinates

    @property
    def gradient_norm(self) -> float:
        """Frobenius norm of the gradient, which the tolerances bound."""
        return float(torch.linalg.vector_norm(self.gradient_W))

    @property
    def slope(self) -> Slope:
        """Return its gradient alone."""
        return Slope(self.W, self.outputs, self.gradient_W, self.gradient_norm)

    def free(self) -> None:
        """Do nothing: the point holds nothing large."""

    def gradient(self) -> Tensor:
        """Return the gradient in the coordinates of x."""
        return self.objective.pull_back(self.gradient_W)

    def curvature(self) -> LinearOperator:
        """Return the Hessian in the coordinates of x."""
        inner = self.objective
        hessian_W = inner.hessian(self.outputs)
        return symmetric(tuple(self.x.shape), lambda d_x: inner.pull_back(hessian_W(inner.to_W(d_x))))


@dataclass(frozen=True)
class HeadObjective:
    """The function W -> misfit(Z W') + head_penalty/2 |W|^2."""

    Z: Tensor
    misfit: Misfit
    head_penalty: float
    factor: Tensor | None = None
    few: float = FEW_ENTRIES  # see `assemble_hessian`
    epsilon: float = 10 * torch.finfo(torch.float64).eps  # a sum of many terms loses a digit

    @property
    def shape(self) -> tuple[int, int]:
        """(n_targets, n_features)."""
        return self.misfit.targets.shape[1], self.Z.shape[1]

    @property
    def entries(self) -> int:
        """Number of entries of W."""
        return self.shape[0] * self.shape[1]

    def to_W(self, x: Tensor) -> Tensor:
        """Return W from its coordinates: L^-T y."""
        if self.factor is not None:
            x = torch.linalg.solve_triangular(self.factor.T, x[:, None], upper=True)[:, 0]
        return x.reshape(self.shape)

    def from_W(self, W: Tensor) -> Tensor:
        """Return the coordinates of W: L' vec(W)."""
        return W.reshape(-1) if self.factor is None else self.factor.T @ W.reshape(-1)

    def pull_back(self, gradient_W: Tensor) -> Tensor:
        """Convert a gradient in W to the coordinates: L^-1 vec(gradient)."""
        if self.factor is None:
            return gradient_W.reshape(-1)
        return torch.linalg.solve_triangular(self.factor, gradient_W.reshape(-1, 1), upper=False)[:, 0]

    def hessian(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the Hessian in W as a map of dW."""
        apply, inner = self.misfit.hessian(outputs), self.misfit.over.inner
        return lambda dW: inner(apply(matmul_small(self.Z, dW.T)), self.Z) + self.head_penalty * dW

    def hessian_matrix(self, outputs: Tensor) -> Tensor:
        """Return the Hessian in vec(W) as a matrix."""
        return assemble_hessian(self.Z, self.misfit, self.head_penalty, outputs, self._products, self.few)

    @cached_property
    def _products(self) -> Tensor | None:
        K = self.shape[0]
        return None if K == 1 or has_few_entries(self.Z, self.misfit, K, self.few) else held_products(self.Z)

    def at(self, x: Tensor, near: HeadPoint | None) -> HeadPoint:
        """Evaluate the objective; `near` is not needed."""
        W = self.to_W(x)
        outputs = matmul_small(self.Z, W.T)
        # one pass over samples that are not held in memory, and one message between processes
        value, gradient = self.misfit.over.sums(_value_and_gradient, self.Z, self.misfit.pieces, outputs)
        penalty = self.head_penalty
        return HeadPoint(self, x, W, outputs, float(value) + ridge(penalty, W), gradient + penalty * W)

    def at_W(self, W: Tensor) -> HeadPoint:
        """Evaluate at a head given as a matrix."""
        return self.at(self.from_W(W), None)

    def slope_at(self, W: Tensor) -> Slope:
        """Return the gradient at a head, without the value."""
        outputs = matmul_small(self.Z, W.T)
        gradient = torch.add(self.misfit.over.inner(self.misfit.gradient(outputs), self.Z), W, alpha=self.head_penalty)
        return Slope(W, outputs, gradient, float(torch.linalg.vector_norm(gradient)))

    def seen_from(self, point: HeadPoint) -> HeadPoint:
        """Convert a point in other coordinates to these."""
        return replace(point, objective=self, x=self.from_W(point.W))

    def first(self, start: WarmStart | None) -> tuple[HeadPoint, WarmStart | None, float]:
        """Return the better of the warm start and W = 0, and the gradient norm at W = 0.

        If classes are nearly separable, W is large. At a distant theta its outputs may be large and wrong, the loss
        flat around them, and Newton's method slow to recover; from zero it is never slow.
        """
        zero = self.at_W(self.Z.new_zeros(self.shape))
        if start is None:
            return zero, None, zero.gradient_norm
        warm = self.at_W(start.W)
        return (warm, start, zero.gradient_norm) if warm.value < zero.value else (zero, None, zero.gradient_norm)


def _value_and_gradient(Z: Tensor, misfit: Misfit, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the local rows' part of the misfit and of its derivative in W."""
    return misfit.mean_loss(outputs), misfit.gradient(outputs).T @ Z


@dataclass(frozen=True)
class NewtonKrylov(ForAnyLoss):
    """The paper's elimination: Newton steps on Krylov spaces, whose last pseudo-inverse serves as inverse Hessian.

    Given to a method, as in `gnvpro.methods.GNvpro(eliminator=gnvpro.heads.NewtonKrylov(max_rank=15))`.

    Args:
        max_rank: largest dimension of a Krylov space.
        krylov_rtol: relative residual at which a space is large enough.
        atol: gradient norm at which the elimination ends.
        rtol: the same, relative to the gradient at W = 0.
        iterations: maximum number of steps.

    >>> NewtonKrylov(max_rank=15).atol
    1e-10
    """

    max_rank: int = 100
    krylov_rtol: float = 1e-3
    atol: float = 1e-10
    rtol: float = 1e-10
    iterations: int = 400

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """Return the head that minimises the penalised misfit."""
        objective = HeadObjective(Z, misfit, head_penalty)
        first, _, zero = objective.first(start)
        last: list[Arnoldi] = []

        def build_model(point: HeadPoint) -> KrylovModel:
            model = krylov_model(point, self.max_rank, self.krylov_rtol)
            last[:] = [model.factors]  # the returned inverse belongs to the last point with a model
            return model

        tolerance = gradient_tolerance(first.gradient_norm, zero, self.atol, self.rtol)
        region = TrustRegion(objective, build_model, first)
        point, status, done = minimize(region, lambda p: p.gradient_norm <= tolerance, self.iterations)

        def build_inverse() -> tuple[LinearOperator, None]:
            factors = (
                last[0] if last else arnoldi(point.curvature().mv, -point.gradient(), self.max_rank, self.krylov_rtol)
            )
            shape = objective.shape
            return LinearOperator(
                shape,
                shape,
                lambda D: factors.pseudo_inverse(D.reshape(-1)).reshape(shape),
                lambda D: factors.pseudo_inverse_transposed(D.reshape(-1)).reshape(shape),
            ), None

        return HeadFit(point.W, point.outputs, status, done, Once(build_inverse), inverse_is_exact=False)


@dataclass(frozen=True)
class Newton(ForAnyLoss):
    """Newton's method, preconditioned by a Cholesky factor of a nearby Hessian; the inverse Hessian is exact.

    Args:
        atol: gradient norm at which the elimination ends.
        rtol: the same, relative to the gradient at W = 0.
        iterations: maximum number of steps.
        refactor_after: number of trials after which a factor that has not led to convergence is renewed.
        small_head: largest number of entries of a head whose Hessian is assembled at every step.
        few: number of entries up to which the Hessian is assembled by products (see `gnvpro.head.hessian.assemble_hessian`).

    >>> from gnvpro.problem.loss import Logistic
    >>> Z = torch.tensor([[1.0], [1.0], [1.0], [1.0]], dtype=torch.float64)  # a bias alone
    >>> C = torch.tensor([[1.0], [1.0], [1.0], [0.0]], dtype=torch.float64)
    >>> fit = Newton().fit(Z, Misfit.mean(Logistic(), C), 0.0, None)
    >>> round(float(torch.sigmoid(fit.W)), 6)  # the share of ones
    0.75
    """

    atol: float = 1e-10
    rtol: float = 1e-10
    iterations: int = 400
    refactor_after: int = 3  # trials after which a factor that has not led to convergence is renewed
    small_head: int = (
        200  # largest head whose Hessian is assembled at every step (105 entries: two thirds of the time of a fit)
    )
    few: int = FEW_ENTRIES  # see `gnvpro.head.hessian.assemble_hessian`
    supports_exact_steps: ClassVar[bool] = True

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """Return the head that minimises the penalised misfit."""
        plain, point = HeadObjective(Z, misfit, head_penalty, few=self.few), None
        if start is None or start.factor is None:
            point, start, zero = plain.first(start)
            slope = point.slope
        else:  # use the factor of the last accepted point, whose result is near
            slope, zero = plain.slope_at(start.W), math.inf
            if self.rtol * slope.norm > self.atol:  # otherwise the tolerance does not depend on it
                zero = plain.slope_at(torch.zeros_like(start.W)).norm
        tolerance = gradient_tolerance(slope.norm, zero, self.atol, self.rtol)
        small, factor = plain.entries <= self.small_head, start.factor if start else None
        slope, factor, done = whole_steps(plain, slope, factor, tolerance, self.iterations, small)
        W, outputs, status = slope.W, slope.outputs, Status.CONVERGED
        if not slope.norm <= tolerance:
            if point is None or done:
                point, start, _ = plain.first(WarmStart(W, factor))
                factor = factor if start else None
            point, status, used, factor = self._search(plain, point, factor, tolerance, self.iterations - done)
            W, outputs, done = point.W, point.outputs, done + used

        def build_inverse() -> tuple[LinearOperator, Tensor]:
            exact, _ = damped_cholesky(plain.hessian_matrix(outputs))
            return symmetric(
                plain.shape, lambda D: torch.cholesky_solve(D.reshape(-1, 1), exact).reshape(plain.shape)
            ), exact

        return HeadFit(W, outputs, status, done, Once(build_inverse), inverse_is_exact=True, stale_factor=factor)

    def _search(
        self, plain: HeadObjective, point: HeadPoint, factor: Tensor | None, tolerance: float, iterations: int
    ) -> tuple[HeadPoint, Status, int, Tensor | None]:
        """Run the trust region from a point; return the last factor too."""

        def converged(point: HeadPoint) -> bool:
            return point.gradient_norm <= tolerance

        if plain.entries > self.small_head:
            return self._precondition(plain, point, factor, converged, iterations)
        directions = NewtonDirections(factor)
        return *damped_newton(plain, point, directions, converged, iterations), directions.factor

    def _precondition(
        self,
        plain: HeadObjective,
        point: HeadPoint,
        factor: Tensor | None,
        converged: Callable[[HeadPoint], bool],
        iterations: int,
    ) -> tuple[HeadPoint, Status, int, Tensor | None]:
        """Take Krylov steps in the coordinates of a factor, which is renewed after a few."""
        status, done = Status.ITERATIONS_SPENT, 0
        while done < iterations and status is Status.ITERATIONS_SPENT:
            if factor is None or done:
                nearby = approximate_hessian(plain.Z, plain.misfit, plain.head_penalty, point.outputs)
                factor, _ = damped_cholesky(nearby)
            objective = replace(plain, factor=factor)
            begin = objective.seen_from(point)
            region = TrustRegion(objective, lambda p: krylov_model(p, 30, 0.1), begin)
            # Until a step is accepted a new factor cannot help: the radius must shrink first.
            while done < iterations and status is Status.ITERATIONS_SPENT and region.point is begin:
                budget = min(self.refactor_after, iterations - done)
                point, status, used = minimize(region, converged, budget)
                done += max(used, 1)
        return point, status, done, factor


def whole_steps(
    objective: HeadObjective, at: Slope, factor: Tensor | None, tolerance: float, iterations: int, renew: bool
) -> tuple[Slope, Tensor | None, int]:
    """Take Newton steps while the gradient falls fast; return the last point, the last factor and the number of trials.

    Without `renew` the steps end when the given factor is no longer good.
    """
    done, fresh = 0, False
    while done < iterations and tolerance < at.norm < math.inf and (renew or factor is not None):
        if factor is None:
            factor, fresh = damped_cholesky(objective.hessian_matrix(at.outputs))[0], True
        step = torch.cholesky_solve(at.gradient.reshape(-1, 1), factor).view(at.W.shape)
        trial, done = objective.slope_at(at.W - step), done + 1
        fallen, fast = trial.norm <= FALLEN * at.norm, trial.norm <= KEEP_BELOW * at.norm
        if fresh and not fallen:
            break
        at = trial if fallen else at
        if not (fast or renew):
            break
        factor, fresh = factor if fast else None, False
    return at, factor, done


@dataclass
class NewtonDirections:
    """Newton steps that reuse a factor while its steps reduce the gradient fast."""

    factor: Tensor | None  # factor of a nearby Hessian
    before: float = math.inf  # norm of the gradient before the last step

    def __call__(self, point: HeadPoint) -> Tensor:
        """Return the step from the point that the last step reached."""
        norm = point.gradient_norm
        if self.factor is None or norm > KEEP_BELOW * self.before:
            self.factor, _ = damped_cholesky(point.objective.hessian_matrix(point.outputs))
        self.before = norm
        return -torch.cholesky_solve(point.gradient()[:, None], self.factor)


def gradient_tolerance(first: float, zero: float, atol: float, rtol: float) -> float:
    """Return the tolerance: absolute, or relative to the gradient at the start or at W = 0, so that a bad start does
    not loosen it.
    """
    return max(atol, rtol * min(first, zero))
