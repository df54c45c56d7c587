"""The exact step: the Gauss-Newton matrix A as a matrix, and the step for every radius or damping from it.

    solve_damped   (A + damping D) s = -g                          one Cholesky factorisation
    solve_within   argmin g's + 1/2 s'A s,   |s|_D <= radius       the damping at which |s|_D is the radius, or none

That damping is found by Newton's method on 1/|s|_D, which approaches it from below (More and Sorensen, 1983):

    A + damping D = L L',     L w = D s,     damping += |s|_D^2 / |w|^2 (|s|_D - radius) / radius

It takes one Cholesky factor if the radius does not bind and four to six if it does. Twenty of these cost as much as
the eigenvalues of D^(-1/2) A D^(-1/2) (300 directions), which are used if A is singular up to rounding.

The norm |s|_D = sqrt(s'D s) defines the length of a step. D has one number for each parameter tensor P,

    D_P = (mean of diag A over P / the largest such mean)^scaling      0: plain norm;  1: Marquardt's, tensor by tensor

In the plain norm the damping that the stiffest tensor needs restrains all others: for inputs of about 0.02, a bias
has 1000 times the curvature of the weights next to it, which then barely move. Fully scaled steps are long in
directions that the matrix barely determines, and overfit.

A is positive semi-definite up to rounding; `gnvpro.linalg.secular` handles the directions in which it is not.

Legend: Delta -> radius, lambda -> damping, D -> metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.secular import ROUNDING, within_radius
from gnvpro.minimize.step_rules import Step

MAX_FACTORS = 30  # limit for one radius
ON_THE_SPHERE = 1e-11  # accepted relative difference from the radius
LEAST_CURVATURE = 1e-8  # relative to the largest mean; bounds steps of a tensor without influence here


def straight(model: DenseModel, step: Step) -> Step:
    """Return the step unchanged."""
    return step


class DenseModel:
    """The local model with the whole matrix, in coordinates y of the step; `expand` converts the step to x.

    `bend` may change a step in the end; its norm and prediction stay the same.
    """

    def __init__(
        self,
        matrix: Tensor,
        gradient: Tensor,
        metric: Tensor,
        expand: Callable[[Tensor], Tensor],
        bend: Callable[[DenseModel, Step], Step] = straight,
    ) -> None:
        self.matrix, self.gradient, self.metric, self.expand, self.bend = matrix, gradient, metric, expand, bend
        self._factor: tuple[float, Tensor] | None = None

    @cached_property
    def rank(self) -> int:
        """Dimension of the space of its steps; zero if the matrix is not finite."""
        return len(self.gradient) if torch.isfinite(self.matrix).all() else 0

    @cached_property
    def scale(self) -> float:
        """Largest entry on the diagonal, in the units of the metric."""
        return float((self.matrix.diagonal() / self.metric).max())

    @property
    def first_radius(self) -> float:
        """Length of a safely damped step; the model's own minimum may be very far away if the matrix is nearly singular."""
        return self.straight_step(1e-3 * self.scale).norm

    def solve_damped(self, damping: float) -> Step:
        """Return the step for this damping, multiplied by powers of ten until the matrix is positive definite."""
        return self.bend(self, self.straight_step(damping))

    def straight_step(self, damping: float) -> Step:
        """Return the damped step before it is bent."""
        factor, damping = damped_cholesky(self.matrix, damping, self.metric)
        self._factor = (damping, factor)
        return self._step(self.solve(-self.gradient, damping), damping)

    def solve(self, rhs: Tensor, damping: float) -> Tensor:
        """Return (A + damping D)^-1 rhs from the current factorisation."""
        if self._factor is not None and self._factor[0] == damping:
            return torch.cholesky_solve(rhs[:, None], self._factor[1])[:, 0]
        e, U = self._eigen
        denominator = e + damping
        return U @ torch.where(denominator > ROUNDING * float(e.abs().max()), (U.T @ rhs) / denominator, 0.0)

    def times(self, y: Tensor) -> Tensor:
        """Return A y."""
        return self.matrix @ y

    def length(self, y: Tensor) -> float:
        """Return |y|_D."""
        return math.sqrt(float(self.metric @ y.square()))

    def solve_within(self, radius: float) -> Step:
        """Return the best step of length at most `radius`."""
        found = self._found_by_factors(radius)
        if found is not None:
            return self.bend(self, self._step(*found))
        e, U = self._eigen
        b = -(U.T @ self.gradient)
        y, damping = within_radius(e.cpu().numpy(), b.cpu().numpy(), radius)
        return self.bend(self, self._step(U @ b.new_tensor(y), damping))

    def _found_by_factors(self, radius: float) -> tuple[Tensor, float] | None:
        """Return the step and its damping by Newton's method; None unless the matrix is safely positive definite."""
        damping = 0.0
        for _ in range(MAX_FACTORS):
            factor, info = torch.linalg.cholesky_ex(self.matrix + torch.diag(damping * self.metric))
            pivots = factor.diagonal()
            if info.item() or not float(pivots.min()) > math.sqrt(ROUNDING) * float(pivots.max()):
                return None
            self._factor = (damping, factor)
            y = self.solve(-self.gradient, damping)
            length = self.length(y)
            if damping == 0.0 and length <= radius:
                return y, damping
            if abs(length - radius) <= ON_THE_SPHERE * radius:
                return y * (radius / length), damping
            w = torch.linalg.solve_triangular(factor, (self.metric * y)[:, None], upper=False)
            damping += length**2 / float(w.square().sum()) * (length - radius) / radius
        return None

    def _step(self, y: Tensor, damping: float) -> Step:
        predicted = -(self.gradient @ y + 0.5 * (y @ (self.matrix @ y)))
        return Step(self.expand(y), self.length(y), float(predicted), damping)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        """Return e and U = D^(-1/2) V of D^(-1/2) A D^(-1/2) = V diag(e) V': then (A + damping D)^-1 = U (e +
        damping)^-1 U'.
        """
        root = self.metric.sqrt()
        e, V = torch.linalg.eigh(self.matrix / root[:, None] / root)
        return e, V.div_(root[:, None])


def scaled_metric(curvatures: Tensor, scaling: float, least: float = LEAST_CURVATURE) -> Tensor:
    """Return D, from the curvature in each direction, or the mean over the tensor that it belongs to."""
    largest = float(curvatures.max()) if curvatures.numel() else 0.0
    if scaling == 0.0 or not 0.0 < largest < math.inf:
        return torch.ones_like(curvatures)
    return (curvatures / largest).clamp(min=least) ** scaling
