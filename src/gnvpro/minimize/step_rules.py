"""Rules that set the radius or the damping of the next trial in the loop of `trust_region`.

A rule is a pure function of the result of a trial, ratio = actual / predicted reduction:

    RadiusRule    |step| <= radius.     Shrink to a quarter of the step below 0.25; double it above 0.75 at the boundary.
    NielsenRule   (A + damping I) step = -gradient.
                  ratio > 0    damping <- damping max(1/3, 1 - (2 ratio - 1)^3),    growth <- 2
                  else         damping <- damping growth,                           growth <- 2 growth
                  from damping = 1e-3 max diag A    (H. B. Nielsen, Damping parameter in Marquardt's method, 1999)

Legend: Delta -> radius, lambda -> damping, nu -> growth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gnvpro.state import State

GROW_ABOVE = 0.75  # ratio above which the radius may grow
AT_BOUNDARY = 0.8  # fraction of the radius from which a step counts as limited by it


@dataclass(frozen=True)
class Step:
    """A step, its length, its predicted reduction and the damping behind it.

    A `LocalModel` returns it.

    Args:
        d_x: the step, of the shape of the point.
        norm: its length, in the norm that the radius bounds.
        predicted_reduction: decrease of the model along the step, positive.
        damping: the damping behind the step; NaN if there is none.

    >>> import torch
    >>> Step(torch.tensor([-0.6, 0.8]), norm=1.0, predicted_reduction=0.5, damping=0.0).norm
    1.0
    """

    d_x: Tensor
    norm: float
    predicted_reduction: float
    damping: float


class LocalModel(Protocol):
    """A model of the objective around a point.

    >>> import math, torch
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sphere:  # gradient . s + |s|^2 / 2
    ...     gradient: Tensor
    ...     rank: int = 1
    ...     first_radius: float = math.inf
    ...     def solve_within(self, radius):
    ...         slope = float(self.gradient.norm())
    ...         length = min(slope, radius)
    ...         gain = length * slope - length**2 / 2
    ...         return Step(-length / slope * self.gradient, length, gain, damping=0.0)
    >>> model: LocalModel = Sphere(torch.tensor([3.0, 4.0]))
    >>> model.solve_within(1.0).predicted_reduction
    4.5
    """

    @property
    def gradient(self) -> Tensor:
        """Gradient at the point, in the model's own coordinates."""

    @property
    def rank(self) -> int:
        """Dimension of the space of its steps."""

    @property
    def first_radius(self) -> float:
        """First radius if none is known; infinite for the model's own minimum."""

    def solve_within(self, radius: float) -> Step:
        """Return the best step of length at most `radius`."""


class DampedModel(LocalModel, Protocol):
    """A model that also solves for a given damping."""

    @property
    def scale(self) -> float:
        """Largest entry on the diagonal of its matrix."""

    def solve_damped(self, damping: float) -> Step:
        """Return the step for this damping, or for the least larger one that makes the matrix positive definite."""


class StepRule(Protocol):
    """Bounds the steps of the loop; a bound is the complete state of its rule."""

    @property
    def accept_above(self) -> float:
        """Ratio above which a trial is accepted."""

    def propose(self, model: Any, bound: Any) -> tuple[Step, Any]:
        """Return the step that the bound allows, and the bound in use; at the start `bound` is None."""

    def update(self, bound: Any, step_norm: float, ratio: float) -> Any:
        """Return the next bound; the ratio is NaN if the trial was not finite."""


@dataclass(frozen=True)
class RadiusRule:
    """Accepts, shrinks and grows a radius."""

    accept_above: float = 1e-4
    shrink_below: float = 0.25
    grow_above: float = GROW_ABOVE
    shrink: float = 0.25
    grow: float = 2.0

    def propose(self, model: LocalModel, bound: float | None) -> tuple[Step, float]:
        """Return the step within the radius; the first step defines the radius."""
        step = model.solve_within(model.first_radius if bound is None else bound)
        return step, step.norm if bound is None else bound

    def update(self, bound: float, step_norm: float, ratio: float) -> float:
        """Return the next radius. It shrinks from the step, not from the radius, because a longer step was never tried."""
        if not ratio >= self.shrink_below:  # also if the ratio is NaN
            return self.shrink * step_norm
        if ratio > self.grow_above and step_norm > AT_BOUNDARY * bound:
            return self.grow * step_norm
        return bound


@dataclass(frozen=True)
class Damping(State):
    """The bound of `NielsenRule`."""

    damping: float
    growth: float = 2.0


@dataclass(frozen=True)
class LineSearchBound(State):
    """The bound of `SearchRule`: the radius of Krylov steps, and the fraction of a quasi-Newton step."""

    radius: float | None = None
    fraction: float = 1.0
    searching: bool = False  # True if the trial was along a quasi-Newton direction


Bound = float | Damping | LineSearchBound  # a plain number is a radius


def radius_of(bound: Bound) -> float | None:
    """Return the radius of a bound, if it has one."""
    radius = bound.radius if isinstance(bound, LineSearchBound) else bound
    return radius if isinstance(radius, float) else None


@dataclass(frozen=True)
class NielsenRule:
    """Adapts the damping by the gain ratio."""

    accept_above: float = 1e-4
    first: float = 1e-3  # first damping, relative to the model's scale

    def propose(self, model: DampedModel, bound: Damping | None) -> tuple[Step, Damping]:
        """Return the step for the damping."""
        bound = bound or Damping(self.first * model.scale)
        step = model.solve_damped(bound.damping)
        return step, Damping(step.damping, bound.growth)

    def update(self, bound: Damping, step_norm: float, ratio: float) -> Damping:
        """Return the next damping."""
        if ratio > self.accept_above:
            return Damping(bound.damping * max(1 / 3, 1 - (2 * min(ratio, 1.0) - 1) ** 3))
        return Damping(bound.damping * bound.growth, 2 * bound.growth)
