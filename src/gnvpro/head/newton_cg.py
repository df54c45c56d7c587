"""Eliminating a large head: Newton's method without its Hessian, each step by preconditioned conjugate gradients.

    H D  =  sum_n h(n) D z(n) z(n)' + a2 D                two products of (rows, n_features) with (n_targets, n_features) each

The preconditioner is diagonal in a basis of features and one of outputs:

    Z' diag(w) Z = U s U',     sum_n h(n) = Q t Q',       (Q' H U)_kj  ~  c_kj  =  sum_n (q_k' h(n) q_k) (u_j' z(n))^2 + a2

c is the exact diagonal of H in these bases. U is computed once; conjugate gradients use its coordinates, Z U and D
U. Q and c belong to each W. One factor for all outputs would treat rare outputs like frequent ones (two to three
times the products). A factor for each output needs no fewer products, and 1000 x 4096 features leave no memory for
them.

From W = 0 Newton's steps overshoot the minimum to a region with a flat loss, and return slowly. So the penalty falls
in steps of ten, from the mean of c at W = 0 to a2, and each problem but the last is solved roughly, from the
solution of the previous one.

Directions need few digits. For large heads conjugate gradients therefore use single precision, and so does Newton's
method until its gradient has fallen to `COARSE`. Afterwards gradients, values and the residuals of the inverse are
in double precision, and decide when to stop. If the processor multiplies bfloat16, which halves the time again,
conjugate gradients use it, one or two digits at a time, with residuals in single precision in between (`refined`).
The inverse Hessian of the derivatives uses the same conjugate gradients with a separate tolerance.

Legend: h(n) -> Hessian of the misfit in row n of the outputs, a2 -> head_penalty, D -> step in W, w -> weights, U ->
basis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.head.eliminator import ForAnyLoss, HeadFit, WarmStart
from gnvpro.head.newton import HeadObjective, HeadPoint
from gnvpro.linalg.columns import by_columns, matmul_small
from gnvpro.linalg.conjugate_gradients import Map, conjugate_gradients
from gnvpro.linalg.once import Once
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.linalg.rows import rowwise
from gnvpro.minimize.damped_newton import damped_newton
from gnvpro.minimize.status import Status
from gnvpro.problem.misfit import Misfit

LEAST_SINGLE = 1e-4  # relative residual that single precision reaches with a digit to spare
LEAST_HALF = 0.05  # the same for bfloat16
COARSE = 1e-4  # gradient, relative to that at W = 0, down to which single precision suffices for everything
SINGLE_EPSILON = 1e-5  # relative error of a value in single precision, for large outputs
LOOSEST = 0.5  # relative residual of a Newton step: far from the minimum a more accurate step would be cut anyway
FALL = 10.0  # factor by which the penalty falls from one problem to the next, starting at W = 0
MOST_PENALTIES = 6  # limit for these problems: the sequence must end even without a penalty
ENOUGH = 0.3  # gradient at which these problems end, relative to their start


@dataclass(frozen=True)
class NewtonCG(ForAnyLoss):
    """Newton's method by conjugate gradients for large heads; stores nothing of the size of the Hessian.

    Args:
        atol, rtol: gradient at which it ends, absolute and relative to the gradient at W = 0.
        iterations: maximum number of Newton steps.
        inverse_rtol: relative residual of systems with the Hessian, for derivatives.
        single_from: entries of the head from which on directions are computed in single precision.

    >>> NewtonCG(rtol=1e-6).atol
    1e-10
    """

    atol: float = 1e-10
    rtol: float = 1e-8
    iterations: int = 100
    inverse_rtol: float = 1e-6
    single_from: int = 50_000

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """Return the head that minimises the penalised misfit."""
        objective = HeadObjective(Z, misfit, head_penalty)
        point, near, zero = objective.first(start and unshifted(objective, start))
        tolerance, done = max(self.atol, self.rtol * zero), 0
        if point.gradient_norm <= tolerance:
            return self._result(point, Once(lambda: Systems.of(objective, self.single_from)), Status.CONVERGED, 0)
        systems = Systems.of(objective, self.single_from)
        rough = COARSE * zero if systems.single else tolerance

        def first(at: HeadPoint) -> float:  # from nearby, Newton's first step already gains digits
            return min(LOOSEST, math.sqrt(at.gradient_norm / zero)) if near else LOOSEST

        if point.gradient_norm > 10 * rough:
            W = systems.into(point.W)
            for penalty in [head_penalty] if near else systems.penalties():
                stage = systems.with_penalty(penalty)
                turned = stage.turned.at_W(W)
                enough = rough if penalty == head_penalty else max(rough, ENOUGH * turned.gradient_norm)
                turned, _, more = descend(turned, stage.turned_direction, first(turned), enough, self.iterations - done)
                W, done = turned.W, done + more
            found = objective.at_W(systems.out_of(W))
            point = found if found.value < point.value else point
        point, status, more = descend(point, systems.direction, first(point), tolerance, self.iterations - done)
        return self._result(point, Once(lambda: systems), status, done + more)

    def _result(self, point: HeadPoint, systems: Once[Systems], status: Status, done: int) -> HeadFit:
        outputs, shape = point.outputs, point.objective.shape

        def build_inverse() -> tuple[LinearOperator, None]:
            made = systems()
            precondition = made.preconditioner(outputs)
            return symmetric(shape, lambda D: made.solve(outputs, D, precondition, self.inverse_rtol)), None

        return HeadFit(point.W, outputs, status, done, Once(build_inverse), inverse_is_exact=True)


def descend(
    first: HeadPoint, solve: Callable[[HeadPoint, float], Tensor], rtol: float, tolerance: float, trials: int
) -> tuple[HeadPoint, Status, int]:
    """Run Newton's method from a point; `solve` computes steps to a relative residual, `rtol` is for the first."""
    before: float | None = None

    def direction(point: HeadPoint) -> Tensor:
        nonlocal before
        norm = point.gradient_norm
        # demand as many digits as the last step gained, but not more than the tolerance needs
        digits = rtol if before is None else LOOSEST * min(1.0, norm / before)
        before = norm
        return solve(point, max(digits, 0.3 * tolerance / norm))

    return damped_newton(first.objective, first, direction, lambda p: p.gradient_norm <= tolerance, trials)


def unshifted(objective: HeadObjective, start: WarmStart) -> WarmStart:
    """Remove from the start what all outputs share, if the loss ignores it: only the penalty would remove it, slowly."""
    centred = start.W - start.W.mean(0)
    better = objective.at_W(centred).value <= objective.at_W(start.W).value
    return replace(start, W=centred) if better else start


@dataclass(frozen=True)
class Systems:
    """Linear systems with the Hessian of the inner problem."""

    objective: HeadObjective
    turned: HeadObjective  # the objective of Z U
    basis: Tensor  # U
    half: Tensor | None  # Z U in bfloat16, if products with it are fast

    @staticmethod
    def of(objective: HeadObjective, single_from: float = math.inf) -> Systems:
        """Return the systems of an objective, in single precision for this number of entries and more."""
        misfit, single = objective.misfit, objective.entries >= single_from
        dtype = torch.float32 if single else torch.float64
        Z, targets, weights = (
            rowwise(lambda A: by_columns(A.to(dtype)), each) for each in (objective.Z, misfit.targets, misfit.weights)
        )
        gram = misfit.over.sum(_gram, Z, weights)
        U = torch.linalg.eigh(gram)[1] if torch.isfinite(gram).all() else torch.eye(len(gram), dtype=dtype)
        misfit, epsilon = replace(misfit, targets=targets, weights=weights), objective.epsilon
        turned = HeadObjective(matmul_small(Z, U), misfit, objective.head_penalty)
        fast = single and misfit.over.processes.all(multiplies_bfloat16())  # used only if all processes support it
        half = rowwise(lambda A: A.to(torch.bfloat16), turned.Z) if fast else None
        return Systems(objective, replace(turned, epsilon=SINGLE_EPSILON if single else epsilon), U, half)

    @property
    def single(self) -> bool:
        """True if directions are computed in single precision."""
        return self.basis.dtype == torch.float32

    def into(self, W: Tensor) -> Tensor:
        """Convert heads and gradients to the coordinates of the basis."""
        return W.to(self.basis.dtype) @ self.basis

    def out_of(self, turned: Tensor) -> Tensor:
        """Convert back from the coordinates of the basis."""
        return (turned @ self.basis.T).to(torch.float64)

    def with_penalty(self, head_penalty: float) -> Systems:
        """Return the same systems with another penalty, in the coordinates of the basis."""
        return replace(self, turned=replace(self.turned, head_penalty=head_penalty))

    def penalties(self) -> list[float]:
        """Yield penalties that fall from the mean curvature at W = 0 to the problem's own."""
        zero = self.turned.at_W(self.basis.new_zeros(self.turned.shape))
        curvature, last = float(self._diagonal(zero.outputs)[1].mean()), self.turned.head_penalty
        return [p for i in range(MOST_PENALTIES) if (p := curvature / FALL**i) > math.sqrt(FALL) * last] + [last]

    def _diagonal(self, outputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return Q, and the diagonal of the misfit's Hessian in the bases."""
        turned, over = self.turned, self.turned.misfit.over
        outputs = rowwise(lambda X: X.to(self.basis.dtype), outputs)
        Q = _basis_of_outputs(turned.misfit, outputs)
        c = over.sum(lambda Z, misfit, X: _diagonal(Z, misfit, X, Q), turned.Z, turned.misfit.pieces, outputs)
        return Q, c.clamp(min=0)

    def preconditioner(self, outputs: Tensor) -> Map:
        """Return the inverse of the Hessian's diagonal in the bases, in the turned coordinates."""
        Q, c = self._diagonal(outputs)
        c = c + self.turned.head_penalty
        c = c.clamp(min=float(c.max()) * torch.finfo(c.dtype).eps or 1.0)  # avoids division by zero without a penalty
        return lambda R: R / c if Q is None else Q @ ((Q.T @ R) / c)

    def turned_direction(self, point: HeadPoint, rtol: float) -> Tensor:
        """Return Newton's step at a point of the turned problem, to a relative residual."""
        return self._turned(point.outputs, -point.gradient_W, self.preconditioner(point.outputs), rtol)

    def direction(self, point: HeadPoint, rtol: float) -> Tensor:
        """Return Newton's step, to a relative residual within reach of single precision."""
        return self._solve(point.outputs, -point.gradient_W, self.preconditioner(point.outputs), rtol)

    def solve(self, outputs: Tensor, right: Tensor, precondition: Map, rtol: float) -> Tensor:
        """Return D with |H D - right| <= rtol |right|, with the residual in double precision."""

        def turned(R: Tensor) -> Tensor:
            return self.out_of(precondition(self.into(R)))

        def correct(residual: Tensor, rtol: float) -> Tensor:
            return self._solve(outputs, residual, precondition, rtol)

        return refined(self.objective.hessian(outputs), correct, right, turned, rtol)

    def _solve(self, outputs: Tensor, right: Tensor, precondition: Map, rtol: float) -> Tensor:
        outputs = rowwise(lambda X: X.to(self.basis.dtype), outputs)
        return self.out_of(self._turned(outputs, self.into(right), precondition, rtol))

    def _turned(self, outputs: Tensor, right: Tensor, precondition: Map, rtol: float) -> Tensor:
        apply, rtol = self.turned.hessian(outputs), max(rtol, LEAST_SINGLE if self.single else 0.0)
        if self.half is None:
            return conjugate_gradients(apply, right, precondition, rtol)
        rough = self._rough_products(outputs, self.half)

        def correct(residual: Tensor, rtol: float) -> Tensor:
            return conjugate_gradients(rough, residual, precondition, max(rtol, LEAST_HALF))

        return refined(apply, correct, right, precondition, rtol)

    def _rough_products(self, outputs: Tensor, half: Tensor) -> Map:
        """Return the Hessian by products in bfloat16; sums over samples of other processes keep full precision."""
        misfit, penalty = self.turned.misfit, self.turned.head_penalty
        apply = misfit.hessian(outputs)

        def add(X: Tensor, Z: Tensor) -> Tensor:
            return (X.T.to(Z.dtype) @ Z).to(torch.float32)

        def product(D: Tensor) -> Tensor:
            tangents = rowwise(lambda Z: (D.to(Z.dtype) @ Z.T).to(D.dtype).T, half, columns=len(D))
            return misfit.over.sum(add, apply(tangents), half) + penalty * D

        return product


def refined(
    apply: Map, correct: Callable[[Tensor, float], Tensor], right: Tensor, precondition: Map, rtol: float
) -> Tensor:
    """Return D with |H D - right| <= rtol |right|, by corrections of lower precision from the residual."""
    D, residual, norm = torch.zeros_like(right), right, float(torch.linalg.vector_norm(right))
    wanted = rtol * norm
    while norm > wanted:
        D = D + correct(residual, 0.8 * wanted / norm)
        residual = right - apply(D)
        before, norm = norm, float(torch.linalg.vector_norm(residual))
        if norm > wanted and not norm < 0.5 * before:  # this precision cannot reduce the residual further
            return D + conjugate_gradients(apply, residual, precondition, wanted / norm)
    return D


def multiplies_bfloat16() -> bool:
    """True if the processor has instructions for bfloat16; without them it is slower than single precision."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # torch has no public name for it
    return known is not None and bool(known())


def _gram(Z: Tensor, weights: Tensor) -> Tensor:
    return (weights.mean(1, keepdim=True) * Z).T @ Z


def _basis_of_outputs(misfit: Misfit, outputs: Tensor) -> Tensor | None:
    """Return Q if the loss provides factors of its Hessian; else None, for the outputs themselves."""
    if not misfit.has_hessian_factors:
        return None

    def add(misfit: Misfit, X: Tensor) -> Tensor:
        factors = misfit.hessian_factors(X)
        assert factors is not None
        return torch.diag(factors[0].sum(0)) - factors[1].T @ factors[1]

    mean = misfit.over.sum(add, misfit.pieces, outputs)
    return torch.linalg.eigh(mean)[1] if torch.isfinite(mean).all() else None


def _diagonal(Z: Tensor, misfit: Misfit, outputs: Tensor, Q: Tensor | None) -> Tensor:
    """Return sum_n (q_k' h(n) q_k) z_j(n)^2."""
    factors = misfit.hessian_factors(outputs)
    if factors is None:
        curvature = misfit.hessian_diagonal(outputs)
    else:
        d, v = factors
        curvature = d - v.square() if Q is None else d @ Q.square() - (v @ Q).square()
    return curvature.T @ Z.square()
