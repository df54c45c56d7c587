"""The default solver: cheap steps first, exact ones once they reduce the loss more for what they cost.

An exact step takes the whole Gauss-Newton matrix; a cheap one is a quasi-Newton step or, for losses other than least squares,
a step from a Krylov space.

    begin     with cheap steps if an exact step costs as much as six of them or more; else all steps are exact
    change    to exact steps when the cheap steps at the cost of two exact ones no longer halve Phi

All steps are the hybrid's if exact steps are impossible (memory, the eliminator, the model), or if one would take minutes.
Large sets of samples begin on random batches (`relay`); the same decisions follow at their end. Smaller ones try batches
beside hybrid steps, judged by samples held out, if exact steps cost too much and a pass in batches costs little (`trial`).

Costs are counted (`gnvpro.methods.costs`), so a call takes the same steps on a busy machine. A limit on work,
seconds or iterations ends a run, and shortens steps that would exceed it; it chooses no
algorithm, unless it is too short for a trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.methods import trial
from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.cache import Cache
from gnvpro.methods.costs import KINDS, Costs, prices_of, sizes_of
from gnvpro.methods.epochs import AdamVProState
from gnvpro.methods.protocol import Budget, MethodState, Start
from gnvpro.methods.race import CheapSteps, Race
from gnvpro.methods.relay import LEAST_TO_FOLLOW, part_for_batches
from gnvpro.methods.step_solvers import Dense, Hybrid, count_directions
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.policy import because
from gnvpro.samples.several import Streamed


@dataclass(frozen=True)
class FirstSteps:
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
        cost: the unit in which steps are compared: "operations", counted and converted to seconds by a fixed model; "work",
            passes over the samples; or measured "seconds", so that a busy machine may take other steps.
            Several processes count operations instead of seconds.

    >>> Auto(cost="work").max_rank
    20
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
        """Return None: every problem has steps that work."""
        return None

    def choose(self, problem: Problem, fresh: bool = True) -> FirstSteps:
        """Choose the kind of steps to begin with; a fresh start has seen none of the samples."""
        exact, why = self._exact_steps(problem)
        costs = Costs(self.cost, self.dense, problem) if exact else None
        if costs is None:
            kind = "hybrid"
        else:
            rule, ratio = (
                problem.policy.solver.cheap_first,
                costs.predicted.of_exact_step / costs.predicted.of_cheap_step,
            )
            kind, sign, then = (
                ("cheap", ">=", "cheap steps first") if costs.cheap_first else ("exact", "<", "all steps are exact")
            )
            why = because(f"an exact step costs {ratio:.3g} cheap ones", sign, "solver.cheap_first", rule, then)
        on_batches, samples = self._on_batches(problem, fresh)
        if not on_batches and fresh and kind == "hybrid" and (tried := self._worth_a_trial(problem)):
            return FirstSteps("trial", (*tried, why))
        return FirstSteps("batches" if on_batches and kind != "exact" else kind, (*samples, why))

    def _worth_a_trial(self, problem: Problem) -> tuple[str, ...]:
        """Return why steps on all samples and batches are tried, or nothing if they are not."""
        rules, few = problem.policy.batches, problem.n_samples < trial.LEAST_SAMPLES
        if rules.begin_from is None or few or isinstance(problem.inputs, Streamed) or not problem.processes.alone:
            return ()
        if problem.searched.theta or problem.searched.head or count_directions(problem) == 0:
            return ()
        price, most = trial.price_of_batches(problem, self._batch_size(problem)), rules.least_passes / 2
        if most / price < trial.LEAST_PASSES:
            return ()
        return (
            f"a pass in batches costs {price:.3g} passes: batches and steps on all samples are tried for up to {most:g} "
            "passes each (half of batches.least_passes) without a fifth of the samples, which judge them",
        )

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
        if not problem.processes.all(trouble is None):  # all processes need the same steps
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
        """Return whether exact steps are possible, and one costs less than about a minute."""
        return self._exact_steps(problem)[0]

    def first_solver(self, problem: Problem) -> str:
        """Return the name of the steps that it begins with on this problem."""
        cheap = "hybrid" if self._cheap_by_gradients(problem) else "krylov"
        return {"batches": AdamVPro.name, "trial": AdamVPro.name, "cheap": cheap, "exact": "dense", "hybrid": "hybrid"}[
            self.choose(problem).kind
        ]

    def _cheap_by_gradients(self, problem: Problem) -> bool:
        """Return whether cheap steps are quasi-Newton steps."""
        return self.cost == "work" or problem.misfit.identity_hessian

    def begin(self, problem: Problem, start: Start, budget: Budget, cache: Cache) -> AutoState:
        """Evaluate the first model, on random batches or on all samples."""
        fresh = start.W is None and budget.share == 1.0
        kind = self.choose(problem, fresh).kind
        if kind == "trial" and budget.passes_left >= problem.policy.batches.least_passes:
            first = AdamVPro().begin(problem, start, replace(budget, seconds=math.inf), cache)
            return AutoState.of("trial", first, seed=start.seed)
        if kind != "batches":
            return self._on_all_samples(problem, start, budget, cache, None)
        part = self._part_for_batches(problem, budget)
        begun = AdamVPro().begin(problem, start, part, cache)
        return AutoState.of("batches", begun, limit=part.limit, seed=start.seed)

    def step(
        self, problem: Problem, state: AutoState, budget: Budget, cache: Cache
    ) -> tuple[AutoState, StepReport | Status]:
        """Take a step of the present kind."""
        if state.kind == "trial":
            return self._tried(problem, state, budget, cache)
        if state.kind == "batches":
            return self._on_batches_or_after(problem, state, budget, cache)
        inner: Any = state.inner
        outcome: StepReport | Status
        if state.kind == "race":
            inner, outcome = self._race(problem, budget, cache).step(inner)
        else:
            solver = self.dense if state.kind == "dense" else Hybrid(self.max_rank, self.rtol)
            inner, outcome = solver.step(problem, inner, budget, cache)
        return state.after(inner), outcome

    def _tried(
        self, problem: Problem, state: AutoState, budget: Budget, cache: Cache
    ) -> tuple[AutoState, StepReport | Status]:
        """Try batches and steps on all samples; begin the better one where it ended."""
        first, method = state.iterate, AdamVPro()
        own, held = trial.split(problem, state.seed)
        passes = problem.policy.batches.least_passes / 2
        price = trial.price_of_batches(problem, self._batch_size(problem))
        part = trial.TrialPart(own, budget, state.seed)
        on_batches, cut = part.trained(method, passes / price, first.theta)
        if cut and not problem.misfit.identity_hessian:
            on_all, note = None, "the seconds do not last for a trial of steps on all samples"
        else:
            on_all, _ = part.trained(self, passes, first.theta)
            losses = trial.loss_of(held, on_batches), trial.loss_of(held, on_all)
            note = f"held-out loss {losses[0]:.4g} after batches, {losses[1]:.4g} after steps on all samples"
            on_all = None if losses[0] < losses[1] else on_all
        if on_all is None:
            start, rest = Start(on_batches.theta, seed=state.seed), self._part_for_batches(problem, budget)
            begun = AutoState.of(
                "batches", method.begin(problem, start, rest, cache), limit=rest.limit, seed=state.seed
            )
        else:
            start = Start(on_all.theta, on_all.W, seed=state.seed)
            begun = self._on_all_samples(problem, start, budget, cache, first.value)
        return begun, StepReport(True, note=note)

    def _on_batches_or_after(
        self, problem: Problem, state: AutoState, budget: Budget, cache: Cache
    ) -> tuple[AutoState, StepReport | Status]:
        """Epochs within their part of the budget; when that is spent, the first step on all samples."""
        inner = state.inner
        assert isinstance(inner, AdamVProState)
        part = replace(budget, limit=min(budget.limit, state.limit))
        epochs = AdamVPro().epochs(problem, part, state.seed, cache)
        if not epochs.is_spent(inner):
            after, outcome = epochs.step(inner)
            if isinstance(outcome, StepReport):
                return state.after(after), replace(outcome, solver=AdamVPro.name)
        late = problem.processes.all(budget.seconds_left <= inner.reserved)
        if budget.passes_left < LEAST_TO_FOLLOW or late:
            return state, Status.SECONDS_SPENT if late else Status.WORK_SPENT
        start = Start(inner.iterate.theta, inner.iterate.W, seed=state.seed)
        following = self._on_all_samples(problem, start, budget, cache, inner.first.value)
        return self.step(problem, following, budget, cache)

    def _part_for_batches(self, problem: Problem, budget: Budget) -> Budget:
        batch = self._batch_size(problem)
        exact = self.takes_exact_steps(problem)
        return part_for_batches(budget, problem.policy.batches, batch / problem.n_samples, exact)

    @staticmethod
    def _batch_size(problem: Problem) -> int:
        return AdamVPro().samples_per_batch(problem.n_samples, problem.misfit.identity_hessian)

    def _on_all_samples(
        self, problem: Problem, start: Start, budget: Budget, cache: Cache, first_value: float | None
    ) -> AutoState:
        """Begin steps on all samples; training may have begun with another value before."""
        if not self.takes_exact_steps(problem):
            hybrid = Hybrid(self.max_rank, self.rtol).begin(problem, start, budget, cache)
            return AutoState.of("hybrid", hybrid, seed=start.seed)
        # Later batches start from a good model; a refined network may start as badly as a new one (DCR's do).
        if start.follows_batch:
            return AutoState.of("dense", self.dense.begin(problem, start, budget, cache), seed=start.seed)
        race = self._race(problem, budget, cache)
        point = race.problem.reduced.start(start.theta, start.warm)
        return AutoState.of("race", race.begin(point, first_value), seed=start.seed)

    def _race(self, problem: Problem, budget: Budget, cache: Cache) -> Race:
        problem = self.dense.prepared(problem, cache)
        cheap, costs = cache.recall("kinds of steps", partial(self._kinds, problem), problem)
        return Race(cheap, costs, problem, budget, cache)

    def _kinds(self, problem: Problem) -> tuple[CheapSteps, Costs]:
        """Return the cheap steps, and what these and exact ones cost."""
        two_passes = self._cheap_by_gradients(problem)
        return CheapSteps(self.max_rank, self.rtol, two_passes), Costs(self.cost, self.dense, problem)


@dataclass(frozen=True, kw_only=True)
class AutoState(MethodState):
    """The current steps' state: on batches, cheap and exact steps, hybrid steps, or exact steps alone."""

    kind: str
    inner: MethodState
    limit: float = math.inf  # work units on the meter at which the batches end
    seed: int

    @staticmethod
    def of(kind: str, inner: MethodState, seed: int, limit: float = math.inf) -> AutoState:
        """The state around another one."""
        settles = inner.settles and kind != "batches"  # the objective of random batches never does
        return AutoState(
            iterate=inner.iterate,
            gradient_norm=inner.gradient_norm,
            next_passes=inner.next_passes,
            bound=inner.bound,
            settles=settles,
            kind=kind,
            inner=inner,
            limit=limit,
            seed=seed,
        )

    def after(self, inner: MethodState) -> AutoState:
        """The state after a step of the same kind."""
        return AutoState.of(self.kind, inner, self.seed, self.limit)
