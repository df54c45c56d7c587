"""Choosing the features of a field by short runs.

A field given by a domain has no network yet. Candidates of several kinds - sines of one scale or several, tanh, sines then
tanh, deep tanh - take damped Gauss-Newton steps, each for the same number of operations. A candidate whose misfit on fresh
points is within a factor of the best continues for several times as many operations, until one candidate is left or the
trials' share of the budget is spent. Candidates are judged by the misfit that two more rounds like the last would lead to:
deep networks gain late, while shallow ones stop early. The run then continues the best. Operations are counted, not timed,
so that the same call chooses the same kind on a busy machine too:

    operations of a step  =  rows n (n + 1000),     n = n_x + n_W
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import NielsenRule
from gnvpro.minimize.trust_region import TrustRegion
from gnvpro.network.work import WorkMeter
from gnvpro.pde.equation import Equation
from gnvpro.pde.features import Domain, Kind
from gnvpro.pde.field import Field
from gnvpro.pde.field_objective import EquationPoint, local_model
from gnvpro.pde.points import PointSet
from gnvpro.pde.residuals import Check
from gnvpro.pde.start import leave_zero
from gnvpro.pde.system import System, zero_value
from gnvpro.pde.ways import Ways
from gnvpro.policy import EquationPolicy
from gnvpro.processes import Processes

WIDTH = 60
CANDIDATES = (
    *(Kind(sines=WIDTH, scales=(scale,)) for scale in (2.0, 5.0, 12.0)),
    Kind(sines=WIDTH, scales=(1.0, 2.0, 4.0, 8.0, 16.0)),
    Kind(sines=100, scales=(8.0, 16.0)),
    Kind(tanh=(WIDTH,)),
    Kind(sines=30, scales=(1.0,), tanh=(30,)),
    Kind(tanh=(20, 20, 20, 20)),
)
FIRST_PENALTY = 1e-15  # on the head
SOLVED = 1e-24  # misfit relative to the zero field, below which nothing is left to compare


@dataclass
class CandidateTrial:
    """A candidate under way."""

    kind: Kind
    features: nn.Module
    system: System
    ways: Ways
    of_zero: float  # the misfit of the field zero
    region: TrustRegion[EquationPoint] | None
    check: Check
    spent: float = 0.0  # operations
    misfit: float = math.inf  # on fresh points
    before: float = math.inf  # the same one round earlier
    stuck: bool = False  # no step is left

    @staticmethod
    def begin(
        kind: Kind,
        domain: Domain,
        outputs: int,
        equations: Sequence[Equation],
        seed: int,
        start: Callable[[Tensor], Tensor] | None = None,
    ) -> CandidateTrial:
        """A candidate whose field begins at zero, or near a function of the points."""
        features = kind.build(domain, seed)
        own = Field(features, outputs, domain.dimension)
        system = System(own, equations)
        if start is not None:
            own.store_head(_fit(own, system.groups[0][1], start))
        near = leave_zero(system) or start is not None
        ways = Ways.choose(system.linear, "auto", near)
        made = CandidateTrial(kind, features, system, ways, zero_value(system), None, Check(system, seed))
        made._enter(system.x(), own.W())
        return made

    def _enter(self, theta: Tensor, W: Tensor) -> None:
        """Begin the loop at a point."""
        point = self.ways.objective(self.system, FIRST_PENALTY, WorkMeter(1)).start(theta, W)
        self.region = None
        if point.fit is not None:
            self.region = TrustRegion(
                self.ways.objective(self.system, FIRST_PENALTY, WorkMeter(1)), local_model, point, None, NielsenRule()
            )

    @property
    def cost(self) -> float:
        """Operations of a step."""
        return self.system.operations

    @property
    def promise(self) -> float:
        """The misfit after two more rounds that gain as much as the last one did."""
        gain = min(1.0, self.misfit / self.before) if self.before < math.inf else 1.0
        return self.misfit * gain**2

    def ahead(self, allowance: float) -> float:
        """Operations that `advance` is about to spend."""
        return 0.0 if self.region is None or self.stuck else max(0.0, allowance - self.spent)

    def advance(self, allowance: float) -> None:
        """Take steps until the operations are spent, and look at fresh points."""
        if self.region is None:
            return
        while self.spent < allowance and not self.stuck:
            none, value = self.region.iterate() is None, self.region.point.value
            other = self.ways.other(value) if none else None
            self.stuck, self.ways = none and other is None, other or self.ways
            self.spent += self.cost
            closer = self.ways.closer(value, self.of_zero)
            self.ways = closer or self.ways
            if closer is not None or self.region.status is not Status.RUNNING:
                self._enter(self.region.point.theta, self.region.point.W)
                if self.region is None:
                    return
        point = self.region.point
        misfit = self.check.misfit(self.check.seen(point.theta, point.fitted))
        self.before, self.misfit = self.misfit, misfit if math.isfinite(misfit) else math.inf

    def store(self) -> None:
        """Write the parameters that were found into the features."""
        if self.region is not None:
            self.system.store(self.region.point.theta, self.region.point.W)


@torch.no_grad()
def _fit(field: Field, points: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
    """The head with which the field is closest to these values."""
    features = field.features(points)
    Z = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    return torch.linalg.lstsq(Z, values(points), rcond=1e-10, driver="gelsd").solution.T


def thinned(equations: Sequence[Equation], most: int) -> list[Equation]:
    """The equations on fewer drawn points, if all together have more rows than this."""
    share = most / sum(equation.rows for equation in equations)
    if share >= 1:
        return list(equations)
    return [_thinner(equation, math.ceil(share * equation.rows)) for equation in equations]


def _thinner(equation: Equation, count: int) -> Equation:
    points = equation.set
    if points is None or not equation.can_be_redrawn:
        return equation
    return equation.at(PointSet(points.fresh(count, points.seed), points.draw, points.seed))


def best_kind(
    domain: Domain,
    outputs: int,
    equations: Sequence[Equation],
    seed: int,
    seconds: float | None,
    policy: EquationPolicy,
) -> CandidateTrial:
    """The candidate that short runs prefer, trained as far as they went."""
    equations = thinned(equations, policy.trial_rows)
    trials = [CandidateTrial.begin(kind, domain, outputs, equations, seed) for kind in CANDIDATES]
    limit = policy.trial_operations if seconds is None else policy.operations_in(seconds)
    mean = sum(trial.cost for trial in trials) / len(trials)
    spent, allowance = 0.0, min(policy.first_steps * mean, limit / len(trials))
    while len(trials) > 1 and (asked := sum(trial.ahead(allowance) for trial in trials)) > 0.0:
        if spent and spent + asked > limit:  # a last round with what is left
            if spent >= limit:
                break
            allowance = allowance / policy.longer + (limit - spent) / len(trials)
            asked = limit - spent
        spent += asked
        for trial in trials:
            trial.advance(allowance)
        trials.sort(key=lambda trial: trial.promise)
        if trials[0].misfit <= SOLVED * trials[0].of_zero:
            break
        trials = [trial for trial in trials if trial.promise <= policy.keep_within * trials[0].promise]
        allowance *= policy.longer
    trials[0].store()
    return trials[0]


def better_kind(
    u: Field, equations: Sequence[Equation], seed: int, misfit: float, operations: float, policy: EquationPolicy
) -> str | None:
    """Name another kind of features if short runs of it end far below a run's misfit; None if none does.

    The trials take at most as many operations as the run did, and leave field and constants as they are.
    """
    points = torch.cat([site.points for equation in equations for site in equation.compiled.sites])
    low, high = points.min(0).values, points.max(0).values
    if not bool((low < high).all()):
        return None
    constants = {id(c): c for equation in equations for c in equation.constants}.values()
    before = [constant.value for constant in constants]
    limit = min(operations, policy.trial_operations)
    best = best_kind(Domain(low, high), u.outputs, equations, seed, None, replace(policy, trial_operations=limit))
    for constant, value in zip(constants, before, strict=True):
        constant.value = value
    if best.misfit * policy.keep_within > misfit:
        return None
    corners = ", ".join(str([round(float(each), 6) for each in corner]) for corner in (low, high))
    return (
        f"another network would be better: {best.kind} reach a misfit of {best.misfit:.1e} in a short run, this one is at "
        f"{misfit:.1e}; u = pde.Field(pde.points.Box({corners})) chooses by itself"
    )


def choose_features(
    u: Field,
    equations: Sequence[Equation],
    seed: int,
    seconds: float | None,
    policy: EquationPolicy,
    processes: Processes,
) -> tuple[str, float]:
    """Give a field the features that short runs prefer; the first process decides.

    Returns a sentence about it, and the misfit on fresh points relative to the field zero.
    """
    domain = u.domain
    assert domain is not None

    def found() -> tuple[int, float, float]:
        trial = best_kind(domain, u.outputs, equations, seed, seconds, policy)
        u.take(trial.features, trial.system.field.W())
        return CANDIDATES.index(trial.kind), trial.misfit, trial.misfit / (trial.of_zero or 1.0)

    index, misfit, relative = processes.from_first(found)
    u.kind = CANDIDATES[index]
    if not processes.is_first:  # the run hands on the parameters
        features = u.kind.build(domain, seed)
        width = features(torch.zeros(1, domain.dimension, dtype=torch.float64)).shape[1]
        u.take(features, torch.zeros(u.outputs, width + 1, dtype=torch.float64))
    kinds = f"features: {u.kind}, the best of {len(CANDIDATES)} kinds by the misfit on fresh points ({misfit:.1e})"
    return kinds, relative


def wider(domain: Domain, kind: Kind, seed: int) -> Callable[[Field, int], str]:
    """Return a function that adds features of the same kind to a field."""

    def widen(u: Field, count: int) -> str:
        u.widen(kind.build(domain, seed + 7919 * count))
        return f"features: {u.head.in_features}"

    return widen
