"""A training run: levels x sweeps x batches x iterations of a method; limited, watched and resumable.

    for level:  for sweep:  for batch:  a few iterations of the method; radius and head carry over

Without batches there is one batch, the whole training set, and no limit on its iterations.

The last elimination of the head (see `keeper`) adds a record; a run with a larger budget continues from before it.

The order of the samples is a function of seed, level and sweep, so a cursor determines the position of a run. A checkpoint
needs only the cursor and the method's own state.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Iterate, MethodState, Start, iterate_at
from gnvpro.methods.stochastic import seeded_permutation
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.stored import rounded_point
from gnvpro.state import loaded, saved
from gnvpro.training import checkpoint, convergence
from gnvpro.training.agreement import agreed
from gnvpro.training.history import History, Record
from gnvpro.training.journal import Journal
from gnvpro.training.judgement import Chosen, judged
from gnvpro.training.keeper import Best, Keeper
from gnvpro.training.levels import deeper, prolongated
from gnvpro.training.listeners import Listener
from gnvpro.training.penalty_search import PenaltySearch
from gnvpro.training.plan import Cursor, Plan
from gnvpro.training.scorer import Scorer
from gnvpro.training.scores import Improved, Rise, Scores

LAST = "head eliminated over the whole training set"  # note of the last record, if the head was eliminated
ROUNDED = "the model as it is stored, in fewer digits"  # note of a further record, if rounding changes the model
SPENT = (Status.WORK_SPENT, Status.SECONDS_SPENT, Status.ITERATIONS_SPENT)  # a larger budget continues the run


class Run:
    """A run, started from a plan or from its checkpoint."""

    def __init__(
        self,
        problem: Problem,
        scorer: Scorer,
        plan: Plan,
        listeners: Sequence[Listener],
        identity: dict[str, Any],
    ) -> None:
        self.problem, self.plan = problem, plan
        self.processes = problem.processes
        self.identity = identity
        self.journal = Journal(plan.checkpoint, listeners)
        self.meter, self.batches = problem.meter, plan.method.parts()
        self.search = PenaltySearch.of(problem)
        self.chosen: Chosen | None = None
        self.cursor = Cursor()
        self.keeper = Keeper(plan.judge, scorer, self.batches is not None)
        self.start: Start | None = None
        self._resumed: MethodState | None = None
        self.taking_up = False  # while errors may come from the checkpoint
        self.cache = Cache(problem.meter)
        self._begun = time.perf_counter()
        self._improved = Improved()
        self._first = 0  # first record of this objective; another level or other penalties change the objective

    # -- the loops

    @property
    def history(self) -> History:
        """The records so far."""
        return self.journal.history

    def run(self) -> Status:
        """Run to the end; record an interruption and raise it again."""
        journal = self.journal
        if journal.status is not Status.RUNNING:
            return journal.status
        try:
            with journal.watched(sum(self.plan.budgets)):
                while True:
                    status = self._train_level()
                    self._conclude_search()
                    if self.cursor.level + 1 == len(self.plan.budgets) or len(self.history) > self.plan.iterations:
                        break
                    self._next_level()
                journal.status = status
                self._finish()
        except BaseException:
            if self.processes.alone:  # other processes may have ended
                with suppress(Exception):  # for example because the group is already closed
                    self.keeper.leave(self.problem, self.cursor.level)
            raise
        return status

    def _train_level(self) -> Status:
        """Run the sweeps over the batches of one level."""
        cursor, status = self.cursor, Status.RUNNING
        self.start = self.start or Start(self.problem.theta(), seed=self.plan.method.seed)
        sweeps = 1 if self.batches is None else self.batches.sweeps or math.inf
        while cursor.sweep < sweeps:
            batches = self._batches()
            while cursor.batch < len(batches):
                status = self._train_batch(batches[cursor.batch])
                if status is not Status.RUNNING:
                    return status
                cursor.batch, cursor.done = cursor.batch + 1, 0
            cursor.sweep, cursor.batch = cursor.sweep + 1, 0
        return Status.SWEEPS_DONE

    def _train_batch(self, samples: Tensor | None) -> Status:
        """Run the iterations on one batch; return RUNNING when the next batch may follow."""
        assert self.start is not None
        budget = self._budget(1.0 if samples is None else samples.numel() / self.meter.total_samples)
        if self.history and self._resumed is None and samples is not None and budget.passes_left < 2:
            return Status.WORK_SPENT
        problem = self.problem if samples is None else self.problem.on_samples(samples)
        state = self._begin(problem, budget)
        while True:
            if (ended := self._ended(state)) is not None:
                return ended
            if self.search is not None and self._round_ends(state, budget):
                problem, budget, state = self._next_round(self.search, state)
                if self.search.ended:
                    return Status.SETTLED
                continue
            if self.problem.network.n_theta == 0:
                return Status.HEAD_ONLY
            if self.batches is not None and self.cursor.done >= self.batches.iterations:
                break
            if len(self.journal.history.records) > self.plan.iterations:
                return Status.ITERATIONS_SPENT
            if state.next_passes > budget.passes_left:
                return Status.WORK_SPENT
            if self.plan.seconds < math.inf and self._too_late(budget, state.next_passes):
                return Status.SECONDS_SPENT
            state, outcome = self.plan.method.step(problem, state, budget, self.cache)
            self.taking_up = False
            if isinstance(outcome, Status):
                if self.search is not None and self.search.settle() and self._round_ends(state, budget):
                    continue
                if self.batches is None:
                    return outcome
                break
            self.cursor.done += 1
            self.keeper.store(self.problem, state.iterate)
            record = self._record(problem, state.iterate, state.gradient_norm, outcome)
            if self.search is not None:
                self.search.note(state.iterate.value, outcome.solver)
            self._publish(record, state)
        self.start = self._start(state.iterate.theta, state.iterate.W, state.bound)
        return Status.RUNNING

    def _start(self, theta: Tensor, W: Tensor | None = None, bound: Bound | None = None) -> Start:
        """Return the start of a method that follows another batch or round at this level."""
        return Start(theta, W, bound, follows_batch=True, seed=self.plan.method.seed)

    def _begin(self, problem: Problem, budget: Budget, note: str | None = None) -> MethodState:
        """Begin the method on a batch, or restore it from a checkpoint."""
        assert self.start is not None
        self.cache.drop()
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self.keeper.store(self.problem, resumed.iterate)
            return resumed
        state: MethodState = self._first_state(problem, self.start, budget)
        if self.cursor.sweep == self.cursor.batch == 0:
            self.keeper.store(self.problem, state.iterate)
            self._publish(self._record(problem, state.iterate, state.gradient_norm, None, note), state)
        return state

    def _first_state(self, problem: Problem, start: Start, budget: Budget) -> Any:
        """Evaluate the first model, which must be finite."""
        try:
            state = self.plan.method.begin(problem, start, budget, self.cache)
            if not math.isfinite(state.iterate.value):
                raise ValueError("the objective is not finite at the initial parameters")
        except ValueError as error:
            level = self.cursor.level + 1
            if level == 1:
                raise
            raise ValueError(f"level {level} cannot begin (level {level - 1} is kept): {error}") from error
        return state

    def _budget(self, share: float = 1.0) -> Budget:
        """Return the budget to the end of this level, without the reserve for the last elimination or the last judgement."""
        plan, levels = self.plan, self.cursor.level + 1
        aside = 1 if self.batches is not None and levels == len(plan.budgets) else 0
        aside += 0 if self.search is None else self.search.passes
        seconds = plan.seconds * levels / len(plan.budgets)
        limit = plan.limit(self.cursor.level)
        return Budget(self.meter, limit - aside, share, seconds, self._seconds, self.processes.smallest)

    def _too_late(self, budget: Budget, passes: float) -> bool:
        """Return whether no seconds are left, or a step of so many passes would exceed them by too much."""
        late = budget.seconds_left <= 0 or self._would_overrun(budget, passes)
        return self.problem.processes.all(late)

    def _would_overrun(self, budget: Budget, passes: float) -> bool:
        """Return whether a step of this many passes is predicted to exceed the given seconds by too much."""
        expected = budget.share * self.meter.seconds_of(products=max(0.0, passes - 2) / 2, points=1)
        return expected > budget.seconds_left + self.problem.policy.stopping.overrun * self.plan.seconds

    def _ended(self, state: MethodState) -> Status | None:
        """Return why the records end the run, with the same result after a resume; None if they do not."""
        if self.journal.history.records[-1].iteration - self._improved.iteration >= self.plan.patience:
            return Status.NO_BETTER
        if self.search is not None and self.search.finished:
            return Status.SETTLED
        searching = self.search is not None and not self.search.over
        if searching or self.plan.method.usual_work() < math.inf:
            return None
        return self._settled(state.settles)

    def _settled(self, settles: bool) -> Status | None:
        """Return how the objective settled; None at a standstill if better steps are still to come."""
        rules, capped, history = self.problem.policy.stopping, self.plan.capped, self.journal.history.records
        if convergence.has_converged(rules, history, self._first):
            return Status.CONVERGED
        if not settles:
            return None
        if not capped and convergence.rests(rules, history, self._improved.iteration) and Rise.of(history) is not None:
            return Status.TURNED_UP
        return Status.SETTLED if convergence.has_settled(rules, history, self._first, capped) else None

    def _seconds(self) -> float:
        """Return the seconds of the run, including those before a resume."""
        return time.perf_counter() - self._begun

    # -- the search for penalties

    def _round_ends(self, state: MethodState, budget: Budget) -> bool:
        """Return whether the search should judge the current model, with enough work left to try other penalties."""
        assert self.search is not None
        due = self.search.due or (self.problem.network.n_theta == 0 and not self.search.over)
        room = budget.passes_left > self.search.passes + 1 + state.next_passes
        return due and room and len(self.history) <= self.plan.iterations

    def _next_round(self, search: PenaltySearch, state: MethodState) -> tuple[Problem, Budget, MethodState]:
        """Continue from the best model with the next penalties."""
        best = search.judge(self.problem, state.iterate.theta, state.iterate.W, state.bound)
        note = "the evidence fell" if search.penalties == best.penalties and not search.over else "penalties changed"
        self.problem = self.problem.with_penalties(search.penalties.theta, search.penalties.head)
        self.start = self._start(best.theta, best.W, best.bound)
        budget = self._budget()
        return self.problem, budget, self._begin(self.problem, budget, note)

    def _conclude_search(self) -> None:
        """Judge the last round too, and keep the model with the highest evidence."""
        search, problem = self.search, self.problem
        if search is not None and search.ended and search.best is not None:
            self.chosen = search.best.chosen  # an earlier model, already judged
            return
        if search is None or self.meter.work + search.passes > self.plan.limit(self.cursor.level):
            return
        last = judged(problem, problem.theta(), problem.W(), None)
        best, self.chosen = search.highest, last.chosen
        if best is None or last.chosen.log_evidence >= best.chosen.log_evidence:
            return
        self.chosen = best.chosen
        self.problem = problem.with_penalties(best.penalties.theta, best.penalties.head)
        point = self.problem.reduced.start(best.theta, WarmStart(best.W))
        self.problem.store(point.theta, point.W)
        self._publish(
            self._record(self.problem, iterate_at(point), None, None, "the model with the highest evidence"), None
        )

    def _next_level(self) -> None:
        """Refine the network; prolong theta and keep the head."""
        self._take_model(prolongated, self.problem.memory)
        self.search = PenaltySearch.of(self.problem)
        self.start = Start(self.problem.theta(), self.problem.W(), seed=self.plan.method.seed)
        self.cursor = Cursor(level=self.cursor.level + 1)

    def _take_model(self, refine: Callable[[nn.Module], nn.Module], memory: float) -> None:
        self.problem = self.problem.refined(refine, memory)
        self.keeper.scorer = self.keeper.scorer.within(self.problem.network, memory)

    def _finish(self) -> None:
        """Record which model is kept, and write the last checkpoint."""
        self.taking_up = False
        passes = self.meter.sample_passes
        if (point := self.keeper.leave(self.problem, self.cursor.level)) is not None:
            if self.batches is None:  # evaluating it counts no work, as for any method that draws batches
                self.meter.sample_passes = passes
            self._publish(self._record(self.problem, iterate_at(point), None, None, LAST), None)
        self._settle()
        # a larger budget continues from the method's last record, so all else must be unchanged
        names = ("theta", "W", "seconds", "budget")
        self.journal.close({name: value for name, value in self._standing().items() if name in names})

    def _settle(self) -> None:
        """Record the effect of rounding the model to its own dtype; this evaluation counts no work."""
        best = self.keeper.best
        passes = self.meter.sample_passes
        restored = best is not None and best.level == self.cursor.level
        point = rounded_point(self.problem, None if restored else self.history[-1].loss)
        self.meter.sample_passes = passes  # this evaluation counts no work
        if point is not None:
            self.problem.store(point.theta, point.W)
            self._publish(self._record(self.problem, iterate_at(point), None, None, ROUNDED), None)

    def _batches(self) -> list[Tensor | None]:
        if self.batches is None:
            return [None]
        order = seeded_permutation(
            self.meter.total_samples, self.plan.method.seed, self.cursor.level, self.cursor.sweep
        )
        return list(order.to(self.problem.inputs.device).split(self.batches.size))

    # -- the records

    def _record(
        self,
        problem: Problem,
        point: Iterate,
        gradient_norm: float | None,
        report: StepReport | None,
        note: str | None = None,
    ) -> Record:
        """Record the state of the run."""
        made = report or StepReport(accepted=True)
        if made.accepted:
            self.keeper.validate(self.problem, self.cursor.level, point)
        in_batches = self.batches is not None and note is None
        said, scores = self.search and self.search.last, self.keeper.scores
        record = Record(
            iteration=len(self.journal.history.records),
            loss=point.value,
            misfit=point.misfit,
            gradient_norm=gradient_norm,
            **vars(made),
            work=self.meter.work,
            seconds=self._seconds(),
            inner_seconds=self.meter.inner_seconds,
            accuracy=point.accuracy,
            validation_loss=scores.loss,
            validation_accuracy=scores.accuracy,
            level=self.cursor.level,
            sweep=self.cursor.sweep if in_batches else None,
            batch=self.cursor.batch if in_batches else None,
            note=note,
            theta_penalty=problem.theta_penalty.alpha,
            head_penalty=problem.head_penalty,
            noise=math.hypot(*said.noise) / math.sqrt(len(said.noise)) if said and said.noise else None,
            effective_parameters=said.effective_parameters if said else None,
            evidence=said.log_evidence if said else None,
            metrics=scores.metrics,
        )
        return agreed(self.processes, record, point.theta, point.W)

    def _publish(self, record: Record, method: MethodState | None) -> None:
        """Add a record to the history; a checkpoint is written only if the method can continue from it."""
        self._improved = self._improved.after(record, self.plan.judge)
        state = None if method is None else lambda: {**self._standing(), "method": saved(method)}
        self.journal.publish(record, state)
        records = self.journal.history.records
        self._first = convergence.first_record(records, self._first, len(records) - 1)

    # -- checkpoints

    def _standing(self) -> dict[str, Any]:
        """Return the position of the run, without the method's own state."""
        return {
            "identity": self.identity,
            "memory": self.problem.memory,
            "cursor": dataclasses.asdict(self.cursor),
            "start": saved(self.start),
            "theta": self.problem.theta(),
            "W": self.problem.W(),
            "best": self.keeper.best and vars(self.keeper.best),
            "search": self.search and self.search.plain(),
            "sample_passes": self.meter.sample_passes,
            "inner_seconds": self.meter.inner_seconds,
            "seconds": self._seconds(),
            "budget": self.plan.caps,
        }

    def resume(self, path: Path) -> None:
        """Restore a run from its checkpoint, which the first process reads."""
        self.taking_up = True
        content = self.processes.from_first(lambda: checkpoint.load(path))
        self.journal.resume(path, content, self.identity)
        self.cursor = Cursor(**content["cursor"])
        # default memory depends on how much was free, which would change the last bits
        self._take_model(partial(deeper, levels=self.cursor.level), content["memory"])
        self.problem.store(content["theta"], content["W"])
        if self.search is not None:
            self.search = self.search.resumed(content["search"])
            self.problem = self.problem.with_penalties(self.search.penalties.theta, self.search.penalties.head)
        self.start = of_kind(Start, loaded(content["start"]))
        self.keeper.best = Best(**content["best"]) if content["best"] else None
        self.meter.sample_passes, self.meter.inner_seconds = content["sample_passes"], content["inner_seconds"]
        self._begun = time.perf_counter() - content["seconds"]
        self._resumed = of_kind(MethodState, loaded(content["method"]))
        larger = any(now > then for now, then in zip(self.plan.caps, content["budget"], strict=True))
        if self.journal.status in SPENT and larger and self._resumed is not None:
            self.journal.go_on((LAST, ROUNDED))
        for record in self.history:
            self._improved = self._improved.after(record, self.plan.judge)
        self._first = convergence.first_record(self.history, 0, 0)
        self.keeper.scores = Scores.of(self.history[-1])


K = TypeVar("K")


def of_kind(kind: type[K], value: Any) -> K | None:
    """Return a value from a checkpoint; raise TypeError unless it is of this kind or None."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"a {kind.__name__} is expected, got {type(value).__name__}")
