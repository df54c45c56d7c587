"""Verify a claimed solution: checks that do not trust the search.

    stationary      the relative offset is small, or as small as rounding of the residual lets it be
    a minimum       the Hessian of the reduced objective, by differences of the exact gradient, is positive definite
    true            values of the objective there are what gradient and Hessian predict: the derivatives are those of the basis
    determined      columns and Jacobian are not collinear

The Hessian is taken in natural coordinates s, in which the Gauss-Newton matrix is the identity: theta = T s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from gnvpro.curves.algebra import Array, back_substitute
from gnvpro.curves.curve_objective import AT_ROUNDING, EPS, CurvePoint

STATIONARY = 1e-6  # relative offset; parameters are then right to a millionth of their standard errors
STEP = 1e-4  # of differences, relative to the length of the residual
COLLINEAR = 1e7  # condition number of columns of length one above which rounding decides, even for exact data
DETERMINED = 1e-3  # relative error of a parameter that rounding of exact data may leave
SHARE = 0.2  # of a parameter in the direction that the data do not see, from which on it is named
CURVED = 1e-6  # least curvature of a minimum, relative to Gauss-Newton's
PREDICTED = 0.03  # relative difference of the objective from its prediction that third derivatives may make


@dataclass(frozen=True)
class Verdict:
    """The reasons, as sentences, why a point is no solution; none if it is one."""

    reasons: tuple[str, ...]
    condition: float  # of columns and Jacobian, each column of length one

    @property
    def solved(self) -> bool:
        """True if there is no reason against it."""
        return not self.reasons


@dataclass(frozen=True)
class Curvature:
    """The Hessian of the reduced objective in natural coordinates, and whether values of the objective agree with it."""

    H: Array
    true: bool

    @property
    def least(self) -> float:
        """Its least eigenvalue; NaN if it is not finite."""
        return float(np.linalg.eigvalsh(self.H)[0]) if np.isfinite(self.H).all() else math.nan


def judge(point: CurvePoint, known: Curvature | None = None) -> Verdict:
    """Check a point; the curvature may be known from close by."""
    if point.pieces is None or not math.isfinite(point.rss):
        return Verdict(("the columns are not finite where the search ended",), math.inf)
    number, which = condition(point)
    reasons = []
    if not number < COLLINEAR:
        reasons.append(f"{which}: the condition number is {number:.1e}")
    if point.offset > max(STATIONARY, point.resolution):
        reasons.append(f"the gradient is not zero: relative offset {point.offset:.1e}")
    reasons += undetermined(point)
    if len(point.theta) and point.offset > 0 and number < COLLINEAR:
        found = known or curvature(point)
        if not reasons and not found.least > CURVED:
            reasons.append(f"the end is no minimum: the least curvature is {found.least:.1e} of what it should be")
        if not found.true:
            reasons.append(
                "the objective differs from what the derivatives of the basis predict: keep parameters as tensors (no .item(), "
                "float() or detach()), and compute in float64 and without random numbers"
            )
    return Verdict(tuple(reasons), number)


def undetermined(point: CurvePoint) -> list[str]:
    """Parameters of exact data that rounding alone decides, such as the rate of a column with no part in the curve."""
    if point.offset > 0 or not len(point.theta):
        return []
    errors = AT_ROUNDING * point.objective.target_norm * np.sqrt(np.square(inverse_factor(point)).sum(1))
    names = [
        name
        for name, error, theta in zip(
            point.objective.parameters.free, errors.tolist(), point.theta.tolist(), strict=True
        )
        if not error <= DETERMINED * abs(theta)
    ]
    return [f"the data do not determine {', '.join(names)}: rounding errors decide"] if names else []


def condition(point: CurvePoint) -> tuple[float, str]:
    """The condition number of the joint Jacobian with columns of length one, and what is collinear."""
    assert point.pieces is not None
    worst, which = 1.0, "the columns of the basis are collinear"
    for piece in point.pieces:
        if piece.R.shape[-1]:
            worst = max(worst, conditioning(piece.R))
    if len(point.theta) and not worst > COLLINEAR:
        R, _, norms = point.triangle
        joint = R * (norms / np.where(point.whole_norms > 0, point.whole_norms, 1.0))
        finite = bool(np.isfinite(joint).all())
        _, s, Vt = np.linalg.svd(joint if finite else np.zeros_like(joint))
        least = float(s[-1])
        if not least * worst > 1.0:
            worst = 1.0 / least if least > 0 else math.inf
            names = point.objective.parameters.free
            moving = [name for name, part in zip(names, abs(Vt[-1]).tolist(), strict=True) if part > SHARE]
            which = (
                f"{' and '.join(moving)} cannot be told apart" if len(moving) > 1 else f"{moving[0]} is not determined"
            )
    return worst, which


def conditioning(R: Array) -> float:
    """The largest of the condition numbers of some matrices, their columns scaled to length one."""
    norms = np.sqrt(np.square(R).sum(-2, keepdims=True))
    if not (np.isfinite(R).all() and norms.all()):
        return math.inf
    s = np.linalg.svd(R / norms, compute_uv=False)
    return float((s[..., 0] / np.maximum(s[..., -1], 1e-300)).max())


def inverse_factor(point: CurvePoint) -> Array:
    """T with theta = T s, in which the Gauss-Newton matrix is the identity."""
    R, _, norms = point.triangle
    with np.errstate(divide="ignore", invalid="ignore"):
        T: Array = back_substitute(R[None], np.eye(len(R))[None])[0] / norms[:, None]
    return T


def natural(point: CurvePoint) -> Array:
    """The same for x."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return inverse_factor(point) / point.slope[:, None]


def curvature(point: CurvePoint) -> Curvature:
    """The Hessian of the reduced objective in natural coordinates, by one evaluation for each of them."""
    T = natural(point)
    length = max(STEP * math.sqrt(point.rss), math.sqrt(EPS) * point.objective.target_norm)
    here, columns, rises = point.slopes(), [], []
    for t in T.T:
        ahead = point.objective.at(point.x + torch.from_numpy(length * t))
        if ahead.pieces is None or not math.isfinite(ahead.value):
            return Curvature(np.full(T.shape, math.nan), True)
        columns.append(T.T @ (ahead.slopes() - here) / length)
        rises.append(ahead.value - point.value)
    H = np.stack(columns, 1)
    first, second = length * (T.T @ here), 0.5 * length**2 * np.diag(H)
    error = abs(np.array(rises) - first - second) - 10 * point.rounding
    true = bool((error <= PREDICTED * (abs(first) + 0.5 * length**2 * np.maximum(abs(np.diag(H)), 1.0))).all())
    return Curvature((H + H.T) / 2, true)
