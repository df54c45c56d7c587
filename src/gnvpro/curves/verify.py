"""Verify a claimed solution: checks that do not trust the search.

    stationary      the relative offset is small, or as small as rounding of the residual lets it be
    a minimum       the Hessian of the reduced objective, by differences of the exact gradient, is positive definite
    determined      columns and Jacobian are not collinear

The Hessian is taken in natural coordinates s, in which the Gauss-Newton matrix is the identity: theta = T s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.curves.objective import AT_ROUNDING, EPS, CurvePoint

STATIONARY = 1e-6  # relative offset; parameters are then right to a millionth of their standard errors
STEP = 1e-4  # of differences, relative to the length of the residual
COLLINEAR = 1e7  # condition number of columns of length one above which rounding decides, even for exact data
DETERMINED = 1e-3  # relative error of a parameter that rounding of exact data may leave
SHARE = 0.2  # of a parameter in the direction that the data do not see, from which on it is named
CURVED = 1e-6  # least curvature of a minimum, relative to Gauss-Newton's


@dataclass(frozen=True)
class Verdict:
    """The reasons, as sentences, why a point is no solution; none if it is one."""

    reasons: tuple[str, ...]
    condition: float  # of columns and Jacobian, each column of length one

    @property
    def solved(self) -> bool:
        """True if there is no reason against it."""
        return not self.reasons


def judge(point: CurvePoint) -> Verdict:
    """Check a point."""
    if point.pieces is None or not math.isfinite(point.rss):
        return Verdict(("the columns are not finite where the search ended",), math.inf)
    number, which = condition(point)
    reasons = []
    if not number < COLLINEAR:
        reasons.append(f"{which}: the condition number is {number:.1e}")
    if point.offset > max(STATIONARY, point.resolution):
        reasons.append(f"the gradient is not zero: relative offset {point.offset:.1e}")
    reasons += undetermined(point)
    if not reasons and len(point.x) and point.offset > 0:
        H = curvature(point)
        least = float(torch.linalg.eigvalsh(H)[0]) if torch.isfinite(H).all() else math.nan
        if not least > CURVED:
            reasons.append(f"the end is no minimum: the least curvature is {least:.1e} of what it should be")
    return Verdict(tuple(reasons), number)


def undetermined(point: CurvePoint) -> list[str]:
    """Parameters of exact data that rounding alone decides, such as the rate of a column with no part in the curve."""
    if point.offset > 0 or not len(point.x):
        return []
    errors = (
        AT_ROUNDING * point.objective.target_norm * torch.linalg.vector_norm(natural(point), dim=1) * point.slope.abs()
    )
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
        norms = torch.linalg.vector_norm(piece.R, dim=-2, keepdim=True)
        if piece.R.shape[-1]:
            worst = max(worst, conditioning(piece.R / norms))
    if len(point.theta) and not worst > COLLINEAR:
        R, _, norms = point.triangle
        joint = R * (norms / torch.where(point.whole_norms > 0, point.whole_norms, 1.0))
        finite = bool(torch.isfinite(joint).all())
        _, s, Vt = torch.linalg.svd(joint if finite else torch.zeros_like(joint))
        least = float(s[-1])
        if not least * worst > 1.0:
            worst = 1.0 / least if least > 0 else math.inf
            names = point.objective.parameters.free
            moving = [name for name, part in zip(names, Vt[-1].abs().tolist(), strict=True) if part > SHARE]
            which = (
                f"{' and '.join(moving)} cannot be told apart" if len(moving) > 1 else f"{moving[0]} is not determined"
            )
    return worst, which


def conditioning(R: Tensor) -> float:
    """The largest of the condition numbers of some matrices."""
    if not torch.isfinite(R).all():
        return math.inf
    s = torch.linalg.svdvals(R)
    return float((s[..., 0] / s[..., -1].clamp(min=1e-300)).max())


def natural(point: CurvePoint) -> Tensor:
    """T with x = T s, in which the Gauss-Newton matrix is the identity."""
    R, _, norms = point.triangle
    units = torch.eye(len(R), dtype=R.dtype)
    T: Tensor = torch.linalg.solve_triangular(R, units, upper=True) / (norms * point.slope)[:, None]
    return T


def curvature(point: CurvePoint) -> Tensor:
    """The Hessian of the reduced objective in natural coordinates."""
    T = natural(point)
    length = max(STEP * math.sqrt(point.rss), math.sqrt(EPS) * point.objective.target_norm)
    columns = []
    for t in T.T:
        ahead = point.objective.at(point.x + length * t)
        if ahead.pieces is None:
            return T.new_full(T.shape, math.nan)
        columns.append(T.T @ (ahead.gradient() - point.gradient()) / length)
    H = torch.stack(columns, 1)
    return (H + H.T) / 2
