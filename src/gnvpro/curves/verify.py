"""What it takes to claim a solution: checks that do not trust the search.

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

from gnvpro.curves.objective import EPS, CurvePoint

STATIONARY = 1e-6  # relative offset; parameters are then right to a millionth of their standard errors
STEP = 1e-4  # of differences, relative to the length of the residual
COLLINEAR = 1e10  # condition number of columns of length one above which nothing is determined
CURVED = 1e-6  # least curvature of a minimum, relative to Gauss-Newton's


@dataclass(frozen=True)
class Verdict:
    """Whether a point is a solution, and in sentences why not."""

    reasons: tuple[str, ...]
    condition: float  # of columns and Jacobian, each column of length one

    @property
    def solved(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons


def judge(point: CurvePoint) -> Verdict:
    """Check a point."""
    if point.pieces is None or not math.isfinite(point.rss):
        return Verdict(("the columns are not finite where the search ended",), math.inf)
    number, which = condition(point)
    reasons = []
    if not number < COLLINEAR:
        reasons.append(f"{which}: the condition number is {number:.1e}, and the data cannot tell them apart")
    if point.offset > max(STATIONARY, point.resolution):
        reasons.append(f"the gradient is not zero: relative offset {point.offset:.1e}")
    if not reasons and len(point.x) and point.offset > 0:
        H = curvature(point)
        least = float(torch.linalg.eigvalsh(H)[0]) if torch.isfinite(H).all() else math.nan
        if not least > CURVED:
            reasons.append(f"the end is no minimum: the least curvature is {least:.1e} of what it should be")
    return Verdict(tuple(reasons), number)


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
        least = float(torch.linalg.svdvals(joint)[-1]) if torch.isfinite(joint).all() else 0.0
        if not least * worst > 1.0:
            worst = 1.0 / least if least > 0 else math.inf
            which = "the parameters are not determined"
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
    return torch.linalg.solve_triangular(R, units, upper=True) / (norms * point.slope)[:, None]


def curvature(point: CurvePoint) -> Tensor:
    """The Hessian of the reduced objective in natural coordinates."""
    T = natural(point)
    length = max(STEP * math.sqrt(point.rss), math.sqrt(EPS) * point.objective.target_norm)
    columns = []
    for t in T.T:
        ahead, behind = (point.objective.at(point.x + sign * length * t) for sign in (1.0, -1.0))
        if ahead.pieces is None or behind.pieces is None:
            return T.new_full(T.shape, math.nan)
        columns.append(T.T @ (ahead.gradient() - behind.gradient()) / (2 * length))
    H = torch.stack(columns, 1)
    return (H + H.T) / 2
