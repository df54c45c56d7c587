"""GNvpro and full Gauss-Newton, put together: an objective, what builds the local models, and the rule for their steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gnvpro.objectives.geodesic import Dense
from gnvpro.head.eliminator import WarmStart
from gnvpro.minimize.quasi_newton import Hybrid
from gnvpro.methods.protocol import Settings, Start, State, warm_start_of
from gnvpro.objectives.reduced import FullObjective, FullPoint, Problem, ReducedObjective, ReducedPoint
from gnvpro.methods.auto import CheapSteps, QuickStart
from gnvpro.minimize.line_model import SearchRule
from gnvpro.methods.choose_solver import DenseSettings, exact_passes, make_assembler, pick_solver, squaring_price
from gnvpro.minimize.step_rules import Bound, NielsenRule, RadiusRule
from gnvpro.minimize.trust_region import TrustRegion
from gnvpro.methods.trust_region import DenseMethod, HybridMethod, KrylovWithinBudget, TrustRegionMethod

FEWEST = 6  # quasi-Newton steps for the price of an exact one; where there are fewer, they are not worth beginning
KRYLOV_STEPS = 10  # that should halve the objective where the matrix is dear


def gnvpro(problem: Problem, start: Start, settings: Settings, state: State | None) -> TrustRegionMethod | QuickStart:
    """The trust region on the reduced objective: exact steps, steps from Krylov spaces, or quasi-Newton steps between these."""
    theta, warm = start.theta, None if start.W is None else WarmStart(start.W)
    if state is not None:
        theta, warm = state["x"], warm_start_of(state)
    objective = ReducedObjective(problem, settings.eliminator)
    first = objective.start(theta, warm)
    dense = pick_solver(settings.solver, problem, settings.eliminator, settings.dense)
    method: TrustRegionMethod | QuickStart
    cheap = None
    # Later batches begin from what is good already; a refined network may begin as badly as a new one (DCR's do).
    if dense is not None and settings.solver == "auto" and not start.later:
        cheap = cheap_steps(objective, settings, dense)
    if dense is not None and cheap is not None:
        method = QuickStart(cheap, partial(dense_method, settings, dense, None), first)
    elif dense is not None:
        method = dense_method(settings, dense, start.bound, first, None if state is None else state["begun_at"])
    elif settings.solver == "krylov":
        method = krylov_method(objective, settings, start.bound, first)
    else:
        builder = KrylovWithinBudget(settings)
        method = hybrid_method(objective, settings, builder, lambda: builder.pays, start.bound, first)
    if state is not None:
        method.resume(state)
    return method


def cheap_steps(objective: ReducedObjective, settings: Settings, dense: DenseSettings) -> CheapSteps | None:
    """What `auto` takes before exact steps: steps from Krylov spaces where the matrix is dear, else quasi-Newton steps.

    Nothing where an exact step costs little more than these: in time, or in work where that is scarce.
    """
    passes, squaring = exact_passes(objective.problem, dense), squaring_price(objective.problem, dense)
    if dense.full and squaring > passes:
        return CheapSteps(partial(krylov_method, objective, settings, None), KRYLOV_STEPS, KRYLOV_STEPS)
    window = math.ceil((passes if settings.by_work else passes + squaring) / 2)  # a step is two passes
    if window < FEWEST:
        return None
    builder = KrylovWithinBudget(replace(settings, max_rank=1))
    begin = partial(hybrid_method, objective, settings, builder, lambda: False, None)
    return CheapSteps(begin, window)


def hybrid_method(
    objective: ReducedObjective,
    settings: Settings,
    builder: KrylovWithinBudget,
    may_build: Callable[[], bool],
    bound: Bound | None,
    point: ReducedPoint,
) -> HybridMethod:
    """Quasi-Newton steps from a point, and Krylov spaces where they may be built."""
    return HybridMethod(TrustRegion(objective, Hybrid(builder, may_build), point, bound, SearchRule()), settings)


def krylov_method(
    objective: ReducedObjective, settings: Settings, bound: Bound | None, point: ReducedPoint
) -> TrustRegionMethod:
    """Steps from Krylov spaces."""
    return TrustRegionMethod(TrustRegion(objective, KrylovWithinBudget(settings), point, bound), settings)


def dense_method(
    settings: Settings,
    dense: DenseSettings,
    bound: Bound | None,
    point: ReducedPoint,
    begun_at: Tensor | None = None,
) -> DenseMethod:
    """Exact steps from a point; a run that is taken up tells where its first matrix was."""
    begun_at = point.theta if begun_at is None else begun_at
    assembler = make_assembler(point.problem, begun_at, dense)
    objective = ReducedObjective(point.problem, settings.eliminator, assembler)
    build = Dense(objective, bool(dense.geodesic), dense.scaling or 0.0)
    rule = NielsenRule() if dense.damping else RadiusRule()
    region = TrustRegion(objective, build, replace(point, assembler=assembler), bound, rule)
    return DenseMethod(region, settings, bool(dense.geodesic), begun_at)


def gauss_newton(problem: Problem, start: Start, settings: Settings, state: State | None) -> TrustRegionMethod:
    """The trust region on the full objective; the head is a variable, and eliminated only to have a first value."""
    objective = FullObjective(problem)
    if state is not None:
        point = objective.at(state["x"], None)
    elif start.W is None:
        point = full_point(ReducedObjective(problem, settings.eliminator).start(start.theta, None))
    else:
        point = objective.at(torch.cat([start.theta, start.W.reshape(-1)]), None)
    method = TrustRegionMethod(TrustRegion(objective, KrylovWithinBudget(settings), point, start.bound), settings)
    if state is not None:
        method.resume(state)
    return method


def full_point(point: ReducedPoint) -> FullPoint:
    """The same theta and W as a point of the full objective, which shares the forward pass."""
    x = torch.cat([point.theta, point.W.reshape(-1)])
    return FullPoint(point.problem, x, point.theta, point.W, point.linearization, point.Z)
