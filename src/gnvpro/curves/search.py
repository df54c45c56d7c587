"""Search from a start to a minimum: the library's trust region on the rows of a curve fit.

    trust region     damped Gauss-Newton steps, undamped near the end            until the offset is 1e-10 or falls slowly
    Newton           H from differences of the exact gradient, a few steps       if large residuals make Gauss-Newton slow
    bounds           a parameter that is pushed onto a bound is held there, and the others are searched again

If the search does not end in a minimum, it is repeated from starts around the first (`rescued`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from gnvpro.curves.curve_objective import CurveObjective, CurvePoint
from gnvpro.curves.parameters import Interval
from gnvpro.curves.step import TriangleModel
from gnvpro.curves.verify import Curvature, Verdict, curvature, judge, natural
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Damping, NielsenRule, Step
from gnvpro.minimize.trust_region import TrustRegion, minimize

ITERATIONS = 500
EXACT = 1e-10  # relative offset at which a further step would change nothing that data can tell
NEAR = 1e-3  # relative offset from which on steps are not damped
SLOW = 0.2  # factor per step by which the offset must fall there
ON_BOUND = 1e-4  # distance from a bound, in units of the parameter, at which the gradient decides
MOST_NEWTON_STEPS = 5
RESCUES = 20
AROUND = (
    (0.0, 0.3),
    (1.0, 0.3),
    (2.0, 0.3),
    (0.0, 1.0),
)  # decades that all parameters and each are drawn from, in turn


@dataclass(frozen=True)
class NearlyUndamped(NielsenRule):
    """Nielsen's rule, without damping once the model's own minimum is close."""

    least: float = 1e-15  # damping left, relative to the model's scale

    def propose(self, model: TriangleModel, bound: Damping | None) -> tuple[Step, Damping]:  # type: ignore[override]
        """Return the step for the damping, or for almost none."""
        if bound is not None and bound.growth == 2.0 and model.offset <= NEAR:
            bound = Damping(min(bound.damping, self.least * model.scale), bound.growth)
        return super().propose(model, bound)


@dataclass(frozen=True)
class SearchEnd:
    """The end of a search."""

    point: CurvePoint
    status: Status
    iterations: int
    verdict: Verdict
    on_bounds: Mapping[str, str] = field(default_factory=dict)  # parameters held on a bound: "lower" or "upper"
    rescued: int = 0  # other starts that were tried because the first led nowhere

    @property
    def solved(self) -> bool:
        """True if this is a minimum, as far as checks can tell."""
        return self.verdict.solved


def search(start: CurvePoint, iterations: int = ITERATIONS) -> SearchEnd:
    """The minimum that steps from a point lead to, with every bound that is active there."""
    point, known, status, done = descend(start, iterations)
    held: dict[str, str] = {}
    while pushed := pushed_out(point):
        held |= {name: side for name, (side, _) in pushed.items()}
        theta = point.objective.parameters.named(point.theta)
        parameters = point.objective.parameters.holding({name: value for name, (_, value) in pushed.items()})
        objective = point.objective.with_parameters(parameters)
        point, known, status, more = descend(objective.at(parameters.inner(theta)), iterations)
        done += more
    verdict = judge(point, known)
    if verdict.solved:
        status = Status.CONVERGED
    elif status is Status.CONVERGED:
        status = Status.STEP_TOO_SMALL
    return SearchEnd(point, status, done, verdict, held)


def descend(point: CurvePoint, iterations: int) -> tuple[CurvePoint, Curvature | None, Status, int]:
    """Steps of the trust region, then of Newton's method if the residual is large; its curvature is returned, too."""
    objective = point.objective
    if not len(point.x):
        return point, None, Status.HEAD_ONLY, 0
    offsets: list[float] = []

    def ended(here: CurvePoint) -> bool:
        if not offsets or here.offset != offsets[-1]:
            offsets.append(here.offset)
        slow = len(offsets) > 1 and SLOW * offsets[-2] < offsets[-1] <= NEAR
        return here.offset <= EXACT or slow or bool(pushed_out(here))

    region = TrustRegion(objective, CurvePoint.model, point, rule=NearlyUndamped(), rounding=lambda here: here.rounding)
    point, status, done = minimize(region, ended, iterations)
    known = None
    if EXACT < point.offset <= NEAR and point.offset > point.resolution and not pushed_out(point):
        known = curvature(point)
        point = newton(point, known)
    return point, known, status, done


def newton(point: CurvePoint, known: Curvature) -> CurvePoint:
    """Steps with one Hessian, as long as they bring the gradient down."""
    if not known.least > 0:
        return point
    T = natural(point)
    for _ in range(MOST_NEWTON_STEPS):
        step = -T @ np.linalg.solve(known.H, T.T @ point.slopes())
        trial = point.objective.at(point.x + torch.from_numpy(step))
        if not trial.offset < point.offset or not trial.value <= point.value + 10 * point.rounding:
            break
        point = trial
    return point


def pushed_out(point: CurvePoint) -> dict[str, tuple[str, float]]:
    """Parameters so near to a bound that the gradient pushes over it: the side, and the bound."""
    bounds = point.objective.parameters.bounds
    if point.pieces is None or not any(bound.sides for bound in bounds.values()):
        return {}
    found = {}
    for name, bound, theta, g in zip(
        bounds, bounds.values(), point.theta.tolist(), (-point.descent).tolist(), strict=True
    ):
        for side, edge in bound.sides:
            whole = bound.high - bound.low if bound.low is not None and bound.high is not None else bound.unit
            outward = g > 0 if side == "lower" else g < 0
            if abs(theta - edge) <= ON_BOUND * whole and outward:
                found[name] = (side, edge)
    return found


def rescued(objective: CurveObjective, start: Mapping[str, float], seed: int, first: SearchEnd) -> SearchEnd:
    """The best of searches from starts around one that led nowhere; of equally good ones, one in the order of the start."""
    best = first
    for i, each in enumerate(draws(objective, start, RESCUES, seed, AROUND)):
        found = tried(objective, each)
        if found is not None and rank(found, start, best.point.rss) > rank(best, start, best.point.rss):
            best = found
        if best.solved and i + 1 >= RESCUES // 2:
            return replace(best, rescued=i + 1)
    return replace(best, rescued=RESCUES)


def rank(found: SearchEnd, start: Mapping[str, float], around: float) -> tuple[bool, float, bool]:
    """Order searches from worse to better; sums of squares of one minimum count as equal."""
    rss = found.point.rss
    theta = found.point.objective.parameters.named(found.point.theta)
    order = sorted(theta, key=lambda name: theta[name]) == sorted(theta, key=lambda name: start[name])
    return found.solved, -around if same(rss, around) else -rss, order


def same(a: float, b: float) -> bool:
    """Return whether two sums of squares belong to one minimum."""
    return abs(a - b) <= 1e-6 * max(a, b) + 1e-300


def tried(objective: CurveObjective, start: Mapping[str, float]) -> SearchEnd | None:
    """A search from a start that may not be usable."""
    point = objective.at(objective.parameters.inner(start))
    return search(point) if np.isfinite(point.value) else None


def draws(
    objective: CurveObjective,
    start: Mapping[str, float],
    count: int,
    seed: int,
    spreads: tuple[tuple[float, float], ...] = ((0.0, 0.5),),
) -> list[dict[str, float]]:
    """Starts drawn within bounds, or around a start: a common factor times an individual one, in decades."""
    draw, bounds = np.random.default_rng(seed), objective.parameters.bounds
    made = []
    for i in range(count):
        common, own = spreads[i % len(spreads)]
        together = common * draw.standard_normal()
        factors = 10 ** (together + own * draw.standard_normal(len(bounds)))
        shares = draw.uniform(size=len(bounds))
        made.append(
            {
                name: drawn(bound, start[name], factor, share)
                for (name, bound), factor, share in zip(bounds.items(), factors.tolist(), shares.tolist(), strict=True)
            }
        )
    return made


def drawn(bound: Interval, start: float, factor: float, share: float) -> float:
    """One parameter: its share of the range between two bounds, or a multiple of its distance from its one bound or zero."""
    low, high = bound.low, bound.high
    if low is not None and high is not None:
        wide = low > 0 and high > 100 * low
        return low * (high / low) ** share if wide else low + share * (high - low)
    edge = low if low is not None else high if high is not None else 0.0
    return edge + ((start - edge) * factor if start != edge else bound.unit * (factor - 1))
