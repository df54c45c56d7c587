"""Eliminating a large head: Newton's method without its Hessian, each step by preconditioned conjugate gradients.

    H D  =  (h (Z D'))' Z + a2 D                      two products of (rows, n_features) with (n_targets, n_features) each
    M    =  Z' diag(c) Z + a2 I,   c_n = mean_k h_kk(n)          (n_features, n_features), one Cholesky factor

The Hessian of K outputs is close to K copies of M side by side, exactly so at W = 0 on the heads whose rows sum to zero. For
the multinomial loss those are all that matter: every gradient has rows that sum to zero, and M, the same for each output,
does not lead out of them. A block for each output would take K factors, of which 1000 x 4096 features have no room.

Directions need few digits, so the products inside of conjugate gradients are made in single precision where the head is
large; gradients, values and the residuals of the inverse are in double precision, and decide when it is over.

The inverse Hessian of the derivatives is the same conjugate gradients, to a tolerance of their own.

Legend: h -> Hessian of the misfit in the outputs, a2 -> head_penalty, D -> step in W, L L' = M.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gnvpro.head.eliminator import HeadFit, WarmStart
from gnvpro.head.newton import HeadObjective, HeadPoint
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.once import Once
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.linalg.rows import rowwise
from gnvpro.minimize.status import Status
from gnvpro.problem.losses import Loss
from gnvpro.problem.misfit import Misfit

Map = Callable[[Tensor], Tensor]

SINGLE_PRECISION_ENTRIES = 50_000  # of the head, from which on products are made in single precision
LEAST_SINGLE = 1e-4  # relative residual that single precision reaches with a digit to spare
LOOSEST = 0.5  # relative residual of a Newton step: far from the minimum a better one would only be cut short
HALVINGS = 40
MAX_PRODUCTS = 500  # of one system


@dataclass(frozen=True)
class NewtonCG:
    """Newton's method by conjugate gradients, for heads of many entries: nothing of the size of the Hessian is made.

    Args:
        atol, rtol: gradient at which it ends, absolute and relative to the gradient at W = 0.
        iterations: Newton steps at most.
        inverse_rtol: relative residual of systems with the Hessian, for derivatives.

    >>> NewtonCG(rtol=1e-6).atol
    1e-10
    """

    atol: float = 1e-10
    rtol: float = 1e-8
    iterations: int = 100
    inverse_rtol: float = 1e-6
    inverse_is_exact: ClassVar[bool] = False  # enough for products, too expensive for the columns that exact steps need
    inverse_acts_on_rows: ClassVar[bool] = False

    def why_not(self, loss: Loss) -> str | None:
        """Nothing: it minimises any convex loss."""
        return None

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """The head that minimises the penalised misfit."""
        objective = HeadObjective(Z, misfit, head_penalty)
        systems = Systems.of(objective)
        point, _ = objective.first(start and unshifted(objective, start))
        zero = objective.at_W(torch.zeros_like(point.W))
        tolerance = max(self.atol, self.rtol * zero.gradient_norm)
        first, status, done = point.gradient_norm, Status.ITERATIONS_SPENT, 0
        while done < self.iterations:
            norm = point.gradient_norm
            if norm <= tolerance:
                status = Status.CONVERGED
                break
            # as many digits as Newton's step has, none that the tolerance does not ask for
            rtol = max(min(LOOSEST, math.sqrt(norm / max(first, norm))), 0.3 * tolerance / norm)
            factor = systems.factor(point.outputs)
            step = systems.direction(point.outputs, -point.gradient_W, factor, rtol)
            trial = _further(point, step)
            done += 1
            if trial is None:
                status = Status.STEP_TOO_SMALL
                break
            point = trial
        return self._result(point, systems, status, done)

    def _result(self, point: HeadPoint, systems: Systems, status: Status, done: int) -> HeadFit:
        outputs, shape = point.outputs, systems.objective.shape

        def build_inverse() -> tuple[LinearOperator, None]:
            factor = systems.factor(outputs)
            return symmetric(shape, lambda D: systems.solve(outputs, D, factor, self.inverse_rtol)), None

        return HeadFit(point.W, outputs, status, done, Once(build_inverse), inverse_is_exact=True)


def unshifted(objective: HeadObjective, start: WarmStart) -> WarmStart:
    """The start without what all outputs share, where the loss does not see that: only the penalty would, and slowly."""
    centred = start.W - start.W.mean(0)
    better = objective.at_W(centred).value <= objective.at_W(start.W).value
    return replace(start, W=centred) if better else start


def _further(point: HeadPoint, step: Tensor) -> HeadPoint | None:
    """The point along the step that lowers the objective enough, or to rounding; None where there is none."""
    slope, length = float((point.gradient_W * step).sum()), 1.0
    noise = point.objective.epsilon * abs(point.value)
    for _ in range(HALVINGS):
        trial = point.objective.at_W(point.W + length * step)
        if trial.value <= point.value + 1e-4 * length * slope + noise:
            return trial
        length /= 2
    return None


@dataclass(frozen=True)
class Systems:
    """Systems with the Hessian of the inner problem."""

    objective: HeadObjective
    single: HeadObjective | None  # the same in single precision, where products are made in it

    @staticmethod
    def of(objective: HeadObjective) -> Systems:
        """In single precision where that pays."""
        if objective.entries < SINGLE_PRECISION_ENTRIES:
            return Systems(objective, None)
        misfit = objective.misfit
        targets, weights, Z = (rowwise(_single, each) for each in (misfit.targets, misfit.weights, objective.Z))
        return Systems(
            objective, HeadObjective(Z, replace(misfit, targets=targets, weights=weights), objective.head_penalty)
        )

    def factor(self, outputs: Tensor) -> Tensor:
        """L."""
        objective, over = self.objective, self.objective.misfit.over
        M = over.sum(_gram, self.objective.Z, objective.misfit.pieces, outputs)
        M.diagonal().add_(objective.head_penalty)
        return damped_cholesky(M)[0]

    def direction(self, outputs: Tensor, right: Tensor, factor: Tensor, rtol: float) -> Tensor:
        """D with |H D - right| <= rtol |right|, as far as single precision goes."""
        if self.single is None:
            return conjugate_gradients(self.objective.hessian(outputs), right, factor, rtol)
        apply = self.single.hessian(rowwise(_single, outputs))
        return conjugate_gradients(apply, _single(right), _single(factor), max(rtol, LEAST_SINGLE)).to(torch.float64)

    def solve(self, outputs: Tensor, right: Tensor, factor: Tensor, rtol: float) -> Tensor:
        """D with |H D - right| <= rtol |right|: directions until the residual, in double precision, is small enough."""
        exact, norm = self.objective.hessian(outputs), float(torch.linalg.vector_norm(right))
        wanted = rtol * norm
        D, residual = torch.zeros_like(right), right
        while norm > wanted:
            D = D + self.direction(outputs, residual, factor, 0.5 * wanted / norm)
            residual = right - exact(D)
            before, norm = norm, float(torch.linalg.vector_norm(residual))
            if not norm < 0.5 * before:  # single precision has no more to give
                return D + conjugate_gradients(exact, residual, factor, wanted / max(norm, wanted))
        return D


def _single(A: Tensor) -> Tensor:
    return A.to(torch.float32)


def _gram(Z: Tensor, misfit: Misfit, outputs: Tensor) -> Tensor:
    """Z' diag(c) Z, c the mean curvature of each row's outputs."""
    factors = misfit.hessian_factors(outputs)
    if factors is not None:
        d, v = factors
        curvature = (d - v.square()).mean(1)
    else:
        apply, K = misfit.hessian(outputs), outputs.shape[1]
        units = torch.eye(K, dtype=outputs.dtype, device=outputs.device)
        curvature = torch.stack([apply(unit.expand_as(outputs))[:, k] for k, unit in enumerate(units)]).mean(0)
    scaled = curvature.clamp(min=0).sqrt()[:, None] * Z
    return scaled.T @ scaled


def conjugate_gradients(apply: Map, right: Tensor, factor: Tensor, rtol: float, most: int = MAX_PRODUCTS) -> Tensor:
    """D with |H D - right| <= rtol |right|, preconditioned from the right by one Cholesky factor for all rows of W."""

    def precondition(R: Tensor) -> Tensor:
        return torch.cholesky_solve(R.T, factor).T

    D, residual = torch.zeros_like(right), right
    wanted = rtol * float(torch.linalg.vector_norm(right))
    direction = preconditioned = precondition(residual)
    weight = float((residual * preconditioned).sum())
    for _ in range(most if wanted > 0 else 0):
        image = apply(direction)
        curvature = float((direction * image).sum())
        if not curvature > 0:
            break
        D = D + (weight / curvature) * direction
        residual = residual - (weight / curvature) * image
        if float(torch.linalg.vector_norm(residual)) <= wanted:
            break
        preconditioned = precondition(residual)
        before, weight = weight, float((residual * preconditioned).sum())
        direction = preconditioned + (weight / before) * direction
    return D
