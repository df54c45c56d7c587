"""What GNvpro does when no solver is named: whichever of cheap and exact steps gains more for what is scarce.

An exact step takes the whole Gauss-Newton matrix; a cheap one is a quasi-Newton step or, for losses other than least squares
where time is scarce, a step from a Krylov space. Which is better depends on the problem, the machine and how far training is,
so nothing is assumed: both kinds are tried, and judged by the gain that is seen,

    gain  =  log(Phi before / Phi after) / cost           cost: work units where work is limited, else seconds

    begin     with cheap steps where an exact step costs as much as six of them or more; else all steps are exact
    cheap  -> exact   when the cheap steps in the time of two exact ones no longer halve Phi; later, when they gain less than
                      exact steps last did
    exact  -> cheap   when a stint of exact steps gained less than cheap steps last did

A stint of the kind that gains less is short, and the next one waits until it is a small share of the cost since: trying what
does not pay costs a tenth or so. What an exact step costs is known before the first one is taken: by the passes, and the
seconds of the same products with a few rows.

Large sets of samples begin on random batches (`relay`); the same decisions follow from where they end.

What the clock decided is part of the state, so that a resumed run goes on the same way. `Auto(reproducible=True)` counts
operations instead of seconds: the same steps on every machine. Where exact steps cannot be had (memory, the eliminator, the
model), or one would take minutes, all steps are the hybrid's.

Legend: q -> directions, m -> rows of the Jacobian per sample (`Dense.seeds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from gnvpro.arguments import check_count, check_number
from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.costs import Costs, exact_flops
from gnvpro.methods.protocol import Budget, Running, Start, State, first_point
from gnvpro.methods.race import Cheap, Race
from gnvpro.methods.relay import Relay, part_for_batches
from gnvpro.methods.solvers import Dense, Hybrid, Krylov, count_directions
from gnvpro.methods.steps import KrylovWithinBudget, QuasiNewtonSteps, Steps
from gnvpro.minimize.krylov import KrylovModel
from gnvpro.minimize.step_rules import Bound
from gnvpro.minimize.trust_region import Point
from gnvpro.network.work import WorkMeter
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint

LARGE = 10_000  # samples
TIMED = 2000  # samples, to know how long a pass takes
FEW_DIRECTIONS = 100  # whose matrix costs less to make than a few cheap steps: all steps are exact
MAX_EXACT_FLOPS = 2e12  # of an exact step; beyond, none is tried
SPACES_AFTER = 60  # quasi-Newton steps before the first Krylov space of more than one dimension


@dataclass(frozen=True)
class Auto:
    """The solver that GNvpro takes when none is named.

    Args:
        max_rank: largest dimension of Krylov spaces; each costs two work units.
        rtol: relative residual at which a Krylov space is large enough.
        dense: settings of its exact steps.
        large: samples from which training begins on random batches; None: it never does.
        reproducible: whether decisions follow from counts of operations, the same on every machine, rather than from seconds.
            Where the work is limited, or in several processes, they always do.
    """

    max_rank: int = 20
    rtol: float = 1e-2
    dense: Dense = field(default_factory=Dense)
    large: int | None = LARGE
    reproducible: bool = False
    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        check_count("Auto: max_rank", self.max_rank, 1)
        check_number("Auto: rtol", self.rtol, 0.0)
        if self.large is not None:
            check_count("Auto: large", self.large, 1)
        if not isinstance(self.reproducible, bool):
            raise TypeError(f"Auto: reproducible must be True or False, got {self.reproducible!r}")

    def why_not(self, problem: Problem) -> str | None:
        """Nothing: it takes what can be used."""
        return None

    def takes_exact_steps(self, problem: Problem) -> bool:
        """Whether exact steps can be had, and one takes less than a minute or so."""
        if count_directions(problem) == 0 or not problem.eliminator.supports_exact_steps:
            return False
        if exact_flops(self.dense, problem) > MAX_EXACT_FLOPS:
            return False
        return problem.processes.all(self.dense.why_not(problem) is None)  # what one cannot, none does

    def first_solver(self, problem: Problem) -> str:
        """The kind of steps that it begins with on this problem where time is scarce; takes a pass or two to say."""
        meter = WorkMeter(len(problem.inputs))
        running = self.begin(problem.with_meter(meter), Start(problem.theta()), Budget(meter, math.inf), None)
        if isinstance(running, Relay):
            return AdamVPro.name
        steps = running.current if isinstance(running, Race) else running
        assert isinstance(steps, Steps)
        return steps.name

    def begin(self, problem: Problem, start: Start, budget: Budget, state: State | None, seed: int = 0) -> Running:
        """Start on a problem, or go on from a state; the seed is of the order of batches."""
        if state is None and self.begins_on_batches(problem, start, budget):
            part = self._part_for_batches(problem, budget)
        elif state is not None and "batches" in state:
            limit, seconds = state["part"]
            part = replace(budget, limit=limit, seconds=seconds)
        elif state is not None and "after" in state:
            part = None
        else:
            return self.on_all_samples(problem, start, budget, state)
        saved = state and state.get("batches")
        batches = None if part is None else AdamVPro().running(problem, start, part, seed, saved)

        def follow(start: Start, first_value: float, state: State | None) -> Running:
            return self.on_all_samples(problem, start, budget, state, first_value)

        return Relay(batches, follow, budget, state)

    def begins_on_batches(self, problem: Problem, start: Start, budget: Budget) -> bool:
        """Whether the samples are many, can be drawn by number, and nothing was trained on them before."""
        many = self.large is not None and problem.n_samples >= self.large
        fresh = start.W is None and budget.share == 1.0
        fixed = not (problem.searched.theta or problem.searched.head)  # the evidence judges minima
        return many and fresh and problem.takes_fast and fixed and count_directions(problem) >= FEW_DIRECTIONS

    def _part_for_batches(self, problem: Problem, budget: Budget) -> Budget:
        costs = Costs(self.dense, self.reproducible, problem, budget)
        of_pass = 1.0
        if costs.kind == "seconds" and math.isfinite(budget.seconds):
            few = problem.on_samples(torch.arange(min(TIMED, problem.n_samples), device=problem.inputs.device))
            before = costs.spent()
            few.network.features(few.theta(), few.inputs, few.passes)
            of_pass = (costs.spent() - before) * problem.n_samples / few.n_samples
        exact = math.inf
        if self.takes_exact_steps(problem):
            costs.thrifty(self.dense, of_pass)
            exact = costs.of_exact_step(of_pass)
        batch = AdamVPro().samples_per_batch(problem.n_samples, problem.misfit.identity_hessian)
        return part_for_batches(budget, costs.kind, exact, batch / problem.n_samples)

    def on_all_samples(
        self, problem: Problem, start: Start, budget: Budget, state: State | None, first_value: float | None = None
    ) -> Running:
        """Steps on all samples; training began with this value, where not here."""
        if not self.takes_exact_steps(problem):
            return Hybrid(self.max_rank, self.rtol).begin(problem, start, budget, state)
        # Later batches begin from what is good already; a refined network may begin as badly as a new one (DCR's do).
        if start.follows_batch or count_directions(problem) < FEW_DIRECTIONS:
            return self.dense.begin(problem, start, budget, state)
        problem = problem.with_passes(self.dense.pass_plan(problem))
        costs = Costs(self.dense, self.reproducible, problem, budget)
        point = first_point(problem, start, state)
        race = Race(self.dense, self.cheap(problem, budget), costs, point, budget, state, first_value)
        if state is not None:
            race.resume(state)
        return race

    def cheap(self, problem: Problem, budget: Budget) -> Cheap:
        """Quasi-Newton steps; Krylov steps where seconds count and the loss is not least squares."""
        if not (budget.work_is_scarce or problem.misfit.identity_hessian):
            krylov = Krylov(self.max_rank, self.rtol)
            return Cheap(lambda point, bound, _: krylov.steps(point, bound, budget, None), two_passes=False)

        def quasi_newton(
            point: ReducedPoint, bound: Bound | None, exact_in_steps: Callable[[], float]
        ) -> Steps[ReducedPoint]:
            spaces = LateSpaces(exact_in_steps, self.max_rank, self.rtol, budget)
            return QuasiNewtonSteps("hybrid", point, spaces, spaces.pays, bound)

        return Cheap(quasi_newton, two_passes=True)


class LateSpaces(KrylovWithinBudget):
    """One dimension to begin with; larger spaces after many quasi-Newton steps, where an exact step costs more than one."""

    def __init__(self, exact_in_steps: Callable[[], float], max_rank: int, rtol: float, budget: Budget) -> None:
        super().__init__(1, rtol, budget)
        self.exact_in_steps, self.largest = exact_in_steps, max_rank
        self.asked = 0

    def __call__(self, point: Point) -> KrylovModel:
        """The local model at a point."""
        self.max_rank = self.largest if self._cost_little() else 1
        return super().__call__(point)

    def _cost_little(self) -> bool:
        """A space costs about as much as a step for each of its dimensions."""
        return self.exact_in_steps() > self.largest

    def pays(self) -> bool:
        """Whether it is time for a space."""
        self.asked += 1
        return self.asked >= SPACES_AFTER and self._cost_little() and self.budget.passes_left > 4 * self.largest

    def state(self) -> State:
        """And how often it was asked."""
        return {**super().state(), "asked": self.asked}

    def resume(self, state: State) -> None:
        """Take up the counts."""
        super().resume(state)
        self.asked = state["asked"]
