"""March in time: solve short slabs one after another, each from the values at the end of the one before.

Over long times one network and one Gauss-Newton run rarely find the solution of an evolution equation. Over a short slab
they do. A slab [s, s + h] takes

    equations at drawn points     the points' times mapped from the whole interval to the slab
    conditions at the first time  at time s, with the values that they have for the field of the slab before
    given points                  those whose times lie in the slab

and features of the kind that short runs prefer on the first slab, starting from the least-squares fit of the last values.
A slab whose estimated error is above the tolerance is halved, unless that does not reduce the error, which then is one of
space. The estimate of
the next slab starts from the corrected field of this one, so that errors that grow in time are seen (`verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gnvpro.minimize.status import Status
from gnvpro.pde.equation import Equation
from gnvpro.pde.evaluate import values_of
from gnvpro.pde.expression_algebra import At, Known
from gnvpro.pde.expressions import Integral
from gnvpro.pde.features import Domain, Kind
from gnvpro.pde.field import Field
from gnvpro.pde.kinds import CandidateTrial
from gnvpro.pde.points import PointSet
from gnvpro.pde.residuals import Residual
from gnvpro.pde.verdict import Correction, correction
from gnvpro.policy import EquationPolicy
from gnvpro.training.history import History, Record
from gnvpro.training.journal import Journal
from gnvpro.training.listeners import Listener

STINT = 5  # steps between two looks at whether a slab still gains
SLAB = Kind(tanh=(30,))  # features of a slab if there is no space
GAIN = 4.0  # factor by which Phi falls in a stint that is worth another one


@dataclass(frozen=True)
class Slab:
    """A piece of time and the field there."""

    start: float
    end: float
    field: Field
    own: Correction  # if the last slab was exact
    corrected: Correction  # with the errors of the slabs before
    steps: int
    misfit: float
    residuals: dict[int, Residual]  # by the number of the equation


class SlabFeatures(nn.Module):
    """Features of several slabs. A point has the features of its slab, a one for its bias, and zeros for all other slabs."""

    edges: Tensor

    def __init__(self, parts: Sequence[nn.Module], edges: Sequence[float], time: int) -> None:
        super().__init__()
        self.parts, self.time = nn.ModuleList(parts), time
        self.register_buffer("edges", torch.tensor(edges, dtype=torch.float64))  # between slabs

    def forward(self, points: Tensor) -> Tensor:
        """All features, (points, sum of features + 1 over the slabs)."""
        own = torch.bucketize(points[:, self.time].contiguous(), self.edges, right=True)
        made = []
        for k, part in enumerate(self.parts):
            features = part(points)
            features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
            made.append(torch.where((own == k)[:, None], features, torch.zeros_like(features)))
        return torch.cat(made, 1)


def can_march(u: Field, equations: Sequence[Equation]) -> bool:
    """True if the equations can be restricted to a slab: none is tied to several times, and some hold at the first time."""
    domain = u.domain
    if domain is None or domain.time is None or any(equation.constants for equation in equations):
        return False
    tied = any(
        isinstance(node, At | Integral) or (isinstance(node, Known) and isinstance(node.value, Tensor))
        for equation in equations
        for node in equation.expression.walk()
    )
    return not tied and any(is_initial(equation, domain) for equation in equations)


def is_initial(equation: Equation, domain: Domain) -> bool:
    """True if an equation holds at the first time alone."""
    assert domain.time is not None
    return bool((equation.compiled.sites[0].points[:, domain.time] == domain.low[domain.time]).all())


def restricted(equation: Equation, domain: Domain, start: float, end: float, before: Field | None) -> Equation | None:
    """The equation on a slab; None if none of its points lie there."""
    assert domain.time is not None
    axis, low, high = domain.time, float(domain.low[domain.time]), float(domain.high[domain.time])
    points = equation.compiled.sites[0].points
    if is_initial(equation, domain):
        return equation if before is None else _continued(equation, points, axis, start, before)
    if equation.can_be_redrawn and equation.set is not None:
        whole = equation.set

        def mapped(given: Tensor) -> Tensor:
            moved = given.clone()
            moved[:, axis] = start + (given[:, axis] - low) * ((end - start) / (high - low))
            return moved

        return equation.at(PointSet(mapped(whole.points), lambda n, s: mapped(whole.fresh(n, s)), whole.seed))
    inside = (points[:, axis] >= start) & (points[:, axis] <= end)
    if not bool(inside.any()):
        return None
    return Equation(equation.expression, points[inside], equation.targets[inside], equation.weight, equation.name)


def _continued(equation: Equation, points: Tensor, axis: int, start: float, before: Field) -> Equation:
    """A first condition at a later time, with the values that it has for the field before."""
    moved = points.clone()
    moved[:, axis] = start
    values = values_of(equation.expression, before, moved)
    return Equation(equation.expression, moved, values, equation.weight, equation.name)


def solve_slab(
    kind: Kind, domain: Domain, equations: Sequence[Equation], before: Slab | None, end: float, most: int, seed: int
) -> Slab | None:
    """The field on the slab from the end of the last one; None if it is not finite."""
    assert domain.time is not None
    start = float(domain.low[domain.time]) if before is None else before.end
    low, high = domain.low.clone(), domain.high.clone()
    low[domain.time], high[domain.time] = start, end
    inside = replace(domain, low=low, high=high)
    last, corrected = (None, None) if before is None else (before.field, before.corrected.field)
    numbered = [(i, restricted(equation, domain, start, end, last)) for i, equation in enumerate(equations)]
    own = [e for _, e in numbered if e is not None]
    outputs = equations[0].field.outputs
    trial = CandidateTrial.begin(
        kind, inside, outputs, own, seed, start=None if last is None else _kept(last, domain, start)
    )
    steps, value = 0, math.inf
    while steps < most and trial.region is not None and not trial.stuck:
        trial.advance(trial.spent + STINT * trial.cost)
        steps += STINT
        if value < GAIN * trial.region.point.value:
            break
        value = trial.region.point.value
    if trial.region is None:
        return None
    trial.store()
    found = inherited = correction(trial.system, own, seed)
    if corrected is not None:
        checked = [e for each in equations if (e := restricted(each, domain, start, end, corrected)) is not None]
        inherited = correction(trial.system, checked, seed)
    if found is None or inherited is None:
        return None
    point = trial.region.point
    reported = iter(trial.check.report(point.theta, point.fitted))
    residuals = {i: next(reported) for i, e in numbered if e is not None}
    return Slab(start, end, trial.system.field, found, inherited, steps, trial.misfit, residuals)


def _kept(last: Field, domain: Domain, start: float) -> Callable[[Tensor], Tensor]:
    """The last values, as a function of points of a later slab."""
    assert domain.time is not None

    def values(points: Tensor) -> Tensor:
        then = points.clone()
        then[:, domain.time] = start
        return last(then).detach()

    return values


@dataclass(frozen=True)
class March:
    """The slabs that were solved, and how the march ended."""

    slabs: tuple[Slab, ...]
    status: Status
    kind: Kind
    history: History

    @property
    def error(self) -> float:
        """Estimated relative error over all slabs; infinite if the last time was not reached."""
        if self.status is not Status.CONVERGED:
            return math.inf
        parts = [(slab.end - slab.start, slab.corrected) for slab in self.slabs]
        size = sum(length * part.size for length, part in parts)
        if size == 0.0:
            return 0.0 if all(part.relative == 0.0 for _, part in parts) else math.inf
        return math.sqrt(sum(length * part.size * part.relative**2 for length, part in parts if part.size) / size)

    def residuals(self, equations: Sequence[Equation]) -> list[Residual]:
        """The residuals of each equation: root mean squares over all times."""
        made = []
        for i, equation in enumerate(equations):
            parts = [(slab.end - slab.start, slab.residuals[i]) for slab in self.slabs if i in slab.residuals]
            length, rows = sum(each for each, _ in parts), sum(part.rows for _, part in parts)
            checked = math.sqrt(sum(each * float(part) ** 2 for each, part in parts) / length) if parts else math.nan
            own = math.sqrt(sum(each * part.on_points**2 for each, part in parts) / length) if parts else math.nan
            how = parts[0][1].how if parts else "on fresh points"
            made.append(Residual(checked, own, equation.name or f"equation {i}", how, rows))
        return made

    def store(self, u: Field) -> None:
        """Give the field the pieces of all slabs."""
        assert u.domain is not None
        assert u.domain.time is not None
        if not self.slabs:
            return
        fields = [slab.field for slab in self.slabs]
        pieces = SlabFeatures(
            [field.features for field in fields], [slab.end for slab in self.slabs[:-1]], u.domain.time
        )
        W = torch.cat([field.W() for field in fields], 1)
        u.kind = self.kind
        u.take(pieces, torch.cat([W, W.new_zeros(len(W), 1)], 1))


def march(
    u: Field,
    equations: Sequence[Equation],
    seed: int,
    policy: EquationPolicy,
    seconds: Callable[[], float],
    most: float | None,
    listeners: Sequence[Listener],
) -> March:
    """Solve slab after slab up to the last time, or until the seconds are spent."""
    journal = Journal(None, listeners)
    with journal.watched(math.inf):
        made = _slabs(u, equations, seed, policy, lambda: most is not None and seconds() >= most, journal, seconds)
        journal.status = made.status
    return made


def _slabs(
    u: Field,
    equations: Sequence[Equation],
    seed: int,
    policy: EquationPolicy,
    is_late: Callable[[], bool],
    journal: Journal,
    seconds: Callable[[], float],
) -> March:
    domain = u.domain
    assert domain is not None
    assert domain.time is not None
    low, high = float(domain.low[domain.time]), float(domain.high[domain.time])
    length = (high - low) / policy.first_slabs
    shortest = (high - low) / (policy.most_slabs if domain.dimension == 1 else policy.first_slabs**4)
    slabs: list[Slab] = []
    longer: Slab | None = None  # the slab that was just halved, if its error may be one of space
    allowed = policy.slab_error
    kind, time = SLAB if domain.dimension == 1 else u.kind, low
    while time < high:
        if is_late():
            return March(tuple(slabs), Status.SECONDS_SPENT, kind, journal.history)
        end = high if high - time < (1 + policy.slab_growth) / 2 * length and slabs else min(high, time + length)
        slab = solve_slab(kind, domain, equations, slabs[-1] if slabs else None, end, policy.slab_steps, seed)
        short = end - time <= shortest
        if longer is not None and (slab is None or slab.own.relative > longer.own.relative / GAIN):
            slab, allowed = longer, GAIN * longer.own.relative  # space limits the error, so shorter slabs cannot help
        if slab is None or slab.own.relative > allowed:
            if short and (slab is None or slab.own.relative > policy.worst_slab):
                return March(tuple(slabs), Status.STEP_TOO_SMALL, kind, journal.history)
            if not short:
                length = max(shortest, (end - time) / 2)
                spatial = slab is not None and domain.dimension > 1 and slab.own.relative <= policy.worst_slab
                longer = slab if spatial else None
                continue
        assert slab is not None
        slabs.append(slab)
        longer, end = None, slab.end
        journal.publish(_record(slab, len(slabs), seconds()), None)
        time, length = end, (end - slab.start) * policy.slab_growth
    return March(tuple(slabs), Status.CONVERGED, kind, journal.history)


def _record(slab: Slab, count: int, seconds: float) -> Record:
    note = f"time {slab.start:.4g} to {slab.end:.4g}: estimated error {slab.corrected.relative:.1e}"
    return Record(
        count,
        slab.misfit,
        slab.misfit,
        None,
        None,
        None,
        None,
        True,
        slab.steps,
        seconds,
        0.0,
        solver="slab",
        note=note,
    )
