"""The default solver: cheap steps first, exact ones once they reduce the loss more for what they cost.

An exact step takes the whole Gauss-Newton matrix; a cheap one is a quasi-Newton step or, for losses other than least squares,
a step from a Krylov space.

    begin     with cheap steps if an exact step costs as much as six of them or more; else all steps are exact
    change    to exact steps when the cheap steps at the cost of two exact ones no longer halve Phi

All steps are the hybrid's if exact steps cannot be had (memory, the eliminator, the model), or if one would take minutes.
Large sets of samples begin on random batches (`relay`); the same decisions follow from where they end.

Costs are counted (`gnvpro.methods.costs`), so a call takes the same steps whatever else runs on the machine. A limit on work,
seconds or iterations ends a run, and shortens what would not fit into what is left; it chooses no algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.cache import Cache
from gnvpro.methods.costs import KINDS, Costs, prices_of, sizes_of
from gnvpro.methods.live import LiveState, live_state, live_step
from gnvpro.methods.protocol import Budget, Running, Start, State, first_point
from gnvpro.methods.race import Cheap, Race
from gnvpro.methods.relay import Relay, part_for_batches
from gnvpro.methods.solvers import Dense, Hybrid, Krylov, count_directions
from gnvpro.methods.steps import KrylovWithinBudget, QuasiNewtonSteps, Steps
from gnvpro.minimize.krylov import KrylovModel
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound
from gnvpro.minimize.trust_region import Point, StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.policy import because


@dataclass(frozen=True)
class Choice:
    """The kind of steps to begin with, "batches", "cheap", "exact" or "hybrid", and the rules that chose it."""

    kind: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Auto:
    """The solver that GNvpro takes if none is named.

    Args:
        max_rank: largest dimension of Krylov spaces; each dimension costs two work units.
        rtol: relative residual at which a Krylov space is large enough.
        dense: settings of its exact steps.
        cost: what steps are compared by: "operations", counted and converted to seconds by a fixed model; "work", passes over
            the samples, if nothing else counts; or "seconds" by the clock, so that a busy machine may take other steps.
            Several processes count operations instead of seconds.
    """

    max_rank: int = 20
    rtol: float = 1e-2
    dense: Dense = field(default_factory=Dense)
    cost: str = "operations"
    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        check_count("Auto: max_rank", self.max_rank, 1)
        check_number("Auto: rtol", self.rtol, 0.0)
        check_choice("Auto: cost", self.cost, KINDS)

    def why_not(self, problem: Problem) -> str | None:
        """Nothing: it takes what can be used."""
        return None

    def choose(self, problem: Problem, fresh: bool = True) -> Choice:
        """Choose the kind of steps to begin with; a fresh start has seen none of the samples."""
        exact, why = self._exact_steps(problem)
        costs = Costs(self.cost, self.dense, problem, Budget(problem.meter, math.inf)) if exact else None
        if costs is None:
            kind = "hybrid"
        else:
            rule, ratio = problem.policy.solver.cheap_first, costs.exact_step / costs.cheap_step
            kind, sign, then = (
                ("cheap", ">=", "cheap steps first") if costs.cheap_first else ("exact", "<", "all steps are exact")
            )
            why = because(f"an exact step costs {ratio:.3g} cheap ones", sign, "solver.cheap_first", rule, then)
        on_batches, samples = self._on_batches(problem, fresh)
        return Choice("batches" if on_batches and kind != "exact" else kind, (*samples, why))

    def _exact_steps(self, problem: Problem) -> tuple[bool, str]:
        """Return whether exact steps can be had at an acceptable cost, and why not."""
        if count_directions(problem) == 0:
            return False, "no parameter moves the features: hybrid steps"
        if not problem.eliminator.supports_exact_steps:
            return False, f"{type(problem.eliminator).__name__} has no exact inverse Hessian: hybrid steps"
        most, cost = problem.policy.solver.exact_below, prices_of(self.dense, problem, sizes_of(problem)).of_exact_step
        if cost > most:
            return False, because(f"an exact step of {cost:.3g} s", ">", "solver.exact_below", most, "hybrid steps")
        trouble = self.dense.why_not(problem)
        if not problem.processes.all(trouble is None):  # what one cannot, none does
            return False, f"no exact steps, but hybrid ones: {trouble or 'another process cannot take them'}"
        return True, ""

    def _on_batches(self, problem: Problem, fresh: bool) -> tuple[bool, tuple[str, ...]]:
        """Return whether training may begin on random batches, and why."""
        least, count = problem.policy.batches.begin_from, f"{problem.n_samples:,} samples"
        if least is None or problem.n_samples < least:
            sentence = because(count, "<", "batches.begin_from", least, "all samples at every step")
            return False, () if least is None else (sentence,)
        if problem.searched.theta or problem.searched.head:
            return False, ("penalties are found from the data, on all samples at every step",)
        if not (fresh and problem.takes_fast):
            return False, ("single samples cannot be read fast: all samples at every step",) if fresh else ()
        return True, (because(count, ">=", "batches.begin_from", least, "starts on random batches"),)

    def takes_exact_steps(self, problem: Problem) -> bool:
        """Whether exact steps can be had, and one costs less than a minute or so."""
        return self._exact_steps(problem)[0]

    def first_solver(self, problem: Problem) -> str:
        """Return the name of the steps that it begins with on this problem."""
        cheap = "hybrid" if self._cheap_by_gradients(problem) else "krylov"
        return {"batches": AdamVPro.name, "cheap": cheap, "exact": "dense", "hybrid": "hybrid"}[
            self.choose(problem).kind
        ]

    def _cheap_by_gradients(self, problem: Problem) -> bool:
        """Whether cheap steps are quasi-Newton steps."""
        return self.cost == "work" or problem.misfit.identity_hessian

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> LiveState:
        """Evaluate the first model."""
        return live_state(problem, self.running(problem, start, budget, None, start.seed), cache, start.seed)

    def step(
        self, problem: Problem, state: LiveState, budget: Budget, cache: Cache
    ) -> tuple[LiveState, StepReport | Status]:
        """One step of either kind."""
        start = Start(state.iterate.theta, seed=state.seed)
        again = partial(self.running, problem, start, budget, state.content, state.seed)
        return live_step(problem, state, cache, again)

    def running(self, problem: Problem, start: Start, budget: Budget, state: State | None, seed: int = 0) -> Running:
        """Start on a problem, or go on from a state; the seed is of the order of batches."""
        fresh = start.W is None and budget.share == 1.0
        if state is None and self.choose(problem, fresh).kind == "batches":
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

    def _part_for_batches(self, problem: Problem, budget: Budget) -> Budget:
        batch = AdamVPro().samples_per_batch(problem.n_samples, problem.misfit.identity_hessian)
        exact = self.takes_exact_steps(problem)
        return part_for_batches(budget, problem.policy.batches, batch / problem.n_samples, exact)

    def on_all_samples(
        self, problem: Problem, start: Start, budget: Budget, state: State | None, first_value: float | None = None
    ) -> Running:
        """Begin steps on all samples; training may have begun with another value before."""
        if not self.takes_exact_steps(problem):
            return Hybrid(self.max_rank, self.rtol).running(problem, start, budget, state)
        # Later batches begin from what is good already; a refined network may begin as badly as a new one (DCR's do).
        if start.follows_batch:
            return self.dense.running(problem, start, budget, state)
        problem = problem.with_passes(self.dense.pass_plan(problem))
        costs = Costs(self.cost, self.dense, problem, budget)
        point = first_point(problem, start, state)
        race = Race(self.cheap(problem, budget), costs, point, budget, state, first_value)
        if state is not None:
            race.resume(state)
        return race

    def cheap(self, problem: Problem, budget: Budget) -> Cheap:
        """Return quasi-Newton steps, or Krylov steps if more than work counts and the loss is not least squares."""
        if not self._cheap_by_gradients(problem):
            krylov = Krylov(self.max_rank, self.rtol)
            return Cheap(lambda point, bound, _: krylov.steps(point, bound, budget, None), two_passes=False)

        def quasi_newton(
            point: ReducedPoint, bound: Bound | None, exact_in_steps: Callable[[], float]
        ) -> Steps[ReducedPoint]:
            spaces = LateSpaces(exact_in_steps, self.max_rank, self.rtol, budget, problem.policy.solver.spaces_after)
            return QuasiNewtonSteps("hybrid", point, spaces, spaces.pays, bound)

        return Cheap(quasi_newton, two_passes=True)


class LateSpaces(KrylovWithinBudget):
    """Builds spaces of one dimension, and larger ones after many quasi-Newton steps if an exact step costs more than one."""

    def __init__(
        self, exact_in_steps: Callable[[], float], max_rank: int, rtol: float, budget: Budget, after: int
    ) -> None:
        super().__init__(1, rtol, budget)
        self.exact_in_steps, self.largest, self.after = exact_in_steps, max_rank, after
        self.asked = 0

    def __call__(self, point: Point) -> KrylovModel:
        """The local model at a point."""
        self.max_rank = self.largest if self._cost_little() else 1
        return super().__call__(point)

    def _cost_little(self) -> bool:
        """Return whether a space, which costs a step per dimension, costs less than an exact step."""
        return self.exact_in_steps() > self.largest

    def pays(self) -> bool:
        """Return whether it is time for a space."""
        self.asked += 1
        return self.asked >= self.after and self._cost_little() and self.budget.passes_left > 4 * self.largest

    def state(self) -> State:
        """Return the state of the base class and how often `pays` was called."""
        return {**super().state(), "asked": self.asked}

    def resume(self, state: State) -> None:
        """Take up the counts."""
        super().resume(state)
        self.asked = state["asked"]
