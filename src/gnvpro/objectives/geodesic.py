"""The exact step: the Gauss-Newton matrix A of the reduced problem as a matrix, and every radius or damping from it.

    solve_damped   (A + damping D) s = -g                          one Cholesky factorisation
    solve_within   argmin g's + 1/2 s'A s,   |s|_D <= radius       one eigen-decomposition A = V diag(e) V' for all radii:
                   s = -V (e + damping)^-1 V'g with damping the root of |s| = radius, or 0 where the step is inside
                   (written for D = I; else for D^(-1/2) A D^(-1/2))

The norm |s|_D = sqrt(s'D s) says what a step of length one is. D holds one number for each parameter tensor P,

    D_P = (mean of diag A over P / the largest such mean)^scaling      0: plain norm;  1: Marquardt's, tensor by tensor

In the plain norm the damping that the stiffest tensor needs holds back all others: where inputs are about 0.02, a bias has 1000
times the curvature of the weights beside it, and those hardly move. Fully scaled steps are long where the matrix knows
little and overfit.

A is positive semi-definite up to rounding. Directions in which its curvature is rounding error are not divided by. Where the
least eigenvalue is truly negative and g has no part along its eigenvector, no damping gives a step as long as the radius
(the hard case): the step at damping = -e_min is then lengthened along that eigenvector.

A geodesic correction bends the step s along the curve on which the outputs move straight. With x_ss the second
derivative of the outputs X and the head W along s, from one more forward pass at theta + h s,

    J' x_ss = 2/h^2 [ J'(X(theta + h s) - X(theta)) - h J'J s ],        a = -(A + damping D)^-1 J' x_ss

the step is s + a/2, unless 2 |a|_D > 0.75 |s|_D: then the curve bends too much for a parabola (Transtrum, Sethna, 2012).
J'J here is A without the penalty on theta, in the metric of the loss's Hessian.

Legend: Delta -> radius, lambda -> damping, D -> metric, h -> probe, alpha of Transtrum and Sethna -> limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy.optimize import brentq
from torch import Tensor

from gnvpro.objectives.gauss_newton_matrix import GaussNewton
from gnvpro.objectives.reduced import ReducedObjective, ReducedPoint
from gnvpro.minimize.step_rules import Step

ROUNDING = 1e-14  # curvature below this share of the largest is rounding error
LEAST_SHARE = 1e-8  # of the largest mean curvature: a tensor that moves nothing here must not be free to move anywhere


class DenseModel:
    """The local model with the whole matrix."""

    def __init__(self, gauss_newton: GaussNewton, scaling: float = 0.0) -> None:
        self.matrix, self.directions = gauss_newton.matrix, gauss_newton.directions
        self.gradient = self.directions.reduce(gauss_newton.gradient)
        self.metric = metric(gauss_newton, scaling)
        self._factor: tuple[float, Tensor] | None = None

    @property
    def rank(self) -> int:
        """The dimension of the space its steps come from: all directions that matter."""
        return self.directions.count

    @cached_property
    def scale(self) -> float:
        """The largest entry on the diagonal, in the units of the metric."""
        return float((self.matrix.diagonal() / self.metric).max())

    @property
    def first_radius(self) -> float:
        """The length of a safely damped step: the model's own minimum may be as far away as the matrix is singular."""
        return self.solve_damped(1e-3 * self.scale).norm

    def solve_damped(self, damping: float) -> Step:
        """The step for this damping, or for the least power of ten above that leaves the matrix positive definite."""
        damping = self._factorize(damping)
        return self._step(self.solve(-self.gradient, damping), damping)

    def solve(self, rhs: Tensor, damping: float) -> Tensor:
        """(A + damping D)^-1 rhs, with the factorisation at hand."""
        if self._factor is not None and self._factor[0] == damping:
            return torch.cholesky_solve(rhs[:, None], self._factor[1])[:, 0]
        e, V = self._eigen
        return V @ _divide(V.T @ rhs, e + damping, ROUNDING * float(e.abs().max()))

    def length(self, y: Tensor) -> float:
        """|y|_D."""
        return math.sqrt(float(self.metric @ y.square()))

    def solve_within(self, radius: float) -> Step:
        """The best step of length at most `radius`."""
        e, V = self._eigen
        b = -(V.T @ self.gradient)
        y, damping = _within(e, b, radius)
        return self._step(V @ y, damping)

    def _step(self, y: Tensor, damping: float) -> Step:
        predicted = -(self.gradient @ y + 0.5 * (y @ (self.matrix @ y)))
        return Step(self.directions.expand(y), self.length(y), float(predicted), damping)

    def _factorize(self, damping: float) -> float:
        damped = self.matrix.clone()
        diagonal = damped.diagonal()
        diagonal.add_(self.metric, alpha=damping)
        while True:
            factor, info = torch.linalg.cholesky_ex(damped)
            if not info.item() or not math.isfinite(damping):
                self._factor = (damping, factor)
                return damping
            more = max(10 * damping, ROUNDING * self.scale) or 1.0  # a zero matrix has no scale
            diagonal.add_(self.metric, alpha=more - damping)
            damping = more

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        """e and U = D^(-1/2) V of D^(-1/2) A D^(-1/2) = V diag(e) V': then (A + damping D)^-1 = U (e + damping)^-1 U'."""
        root = self.metric.sqrt()
        e, V = torch.linalg.eigh(self.matrix / root[:, None] / root)
        return e, V.div_(root[:, None])


def metric(gauss_newton: GaussNewton, scaling: float) -> Tensor:
    """D, one number a direction."""
    means = gauss_newton.directions.parameter_means(gauss_newton.matrix.diagonal())
    largest = float(means.max()) if means.numel() else 0.0
    if scaling == 0.0 or not 0.0 < largest < math.inf:
        return torch.ones_like(means)
    return (means / largest).clamp(min=LEAST_SHARE) ** scaling


def _divide(b: Tensor, denominator: Tensor, least: float) -> Tensor:
    """b / denominator, and zero where the denominator is not above `least`."""
    return torch.where(denominator > least, b / denominator, 0.0)


def _within(e: Tensor, b: Tensor, radius: float) -> tuple[Tensor, float]:
    """The minimiser of y'diag(e)y/2 - b'y within the radius, for ascending e, and its damping."""
    cut = ROUNDING * float(e.abs().max())
    least = float(e[0])
    lower = -least if least < -cut else 0.0
    y = _divide(b, e + lower, cut)
    if float(torch.linalg.vector_norm(y)) <= radius:
        singular = e + lower <= cut
        if lower > 0.0 and float(torch.linalg.vector_norm(b[singular])) <= 1e-12 * float(torch.linalg.vector_norm(b)):
            y = y.clone()  # the hard case: go on to the boundary, where the curvature is negative
            y[0] = math.sqrt(max(radius**2 - float(y.square().sum()), 0.0))
            return y, lower
        if lower == 0.0:
            return y, 0.0
    kept = torch.where((e + lower > cut) | (lower > 0.0), b, 0.0)

    def gap(damping: float) -> float:
        return 1.0 / radius - 1.0 / float(torch.linalg.vector_norm(_divide(kept, e + damping, 0.0)))

    # |y| <= |b| / (least + damping), so here the step is inside for certain
    upper = max(float(torch.linalg.vector_norm(kept)) / radius - least, lower) * (1 + 1e-12) + 1e-300
    start = lower + 1e-15 * (upper - lower) if lower > 0.0 else 0.0
    damping = float(brentq(gap, start, upper, xtol=1e-300, rtol=1e-14, maxiter=500))
    y = _divide(kept, e + damping, 0.0)
    return y * (radius / float(torch.linalg.vector_norm(y))), damping


@dataclass(frozen=True)
class Geodesic:
    """A dense model whose steps are bent along the geodesic: one more forward pass for each."""

    objective: ReducedObjective
    point: ReducedPoint
    model: DenseModel
    probe: float = 0.1
    limit: float = 0.75

    @property
    def rank(self) -> int:
        """The rank of the model."""
        return self.model.rank

    @property
    def scale(self) -> float:
        """The scale of the model."""
        return self.model.scale

    @property
    def first_radius(self) -> float:
        """That of the model."""
        return self.model.first_radius

    def solve_within(self, radius: float) -> Step:
        """The step within the radius, bent; its length is told before bending."""
        return self.bend(self.model.solve_within(radius))

    def solve_damped(self, damping: float) -> Step:
        """The step for the damping, bent."""
        return self.bend(self.model.solve_damped(damping))

    def bend(self, step: Step) -> Step:
        """The step with half its acceleration added, where that is short enough to be trusted."""
        a = self.acceleration(step)
        if a is None or not 2 * self.model.length(a) <= self.limit * step.norm:
            return step
        return replace(step, d_x=step.d_x + 0.5 * self.model.directions.expand(a))

    def acceleration(self, step: Step) -> Tensor | None:
        """a, in the coordinates of the directions; None where the probe is not finite."""
        if step.norm == 0.0 or not math.isfinite(step.norm):
            return None
        point, h = self.point, self.probe
        probe = self.objective.probe(point.x + h * step.d_x, point)
        if not math.isfinite(probe.value):
            return None
        local, reduce = point.gauss_newton, self.model.directions.reduce
        with point.problem.network.meter.paused():  # passes only where the Jacobian, paid for before, did not fit
            change = reduce(local.pull_back(probe.outputs - point.outputs, probe.W - point.W))
        y = reduce(step.d_x)
        straight = local.matrix @ y - local.penalty @ y
        second = (2 / h**2) * (change - h * straight)
        return -self.model.solve(second, step.damping)


@dataclass(frozen=True)
class Dense:
    """Builds a `DenseModel` of the reduced objective at a point, with a geodesic correction or without."""

    objective: ReducedObjective
    geodesic: bool
    scaling: float = 0.0

    def __call__(self, point: ReducedPoint) -> DenseModel | Geodesic:
        """The model at a point."""
        model = DenseModel(point.gauss_newton, self.scaling)
        return Geodesic(self.objective, point, model) if self.geodesic else model
