"""The run of `gnvpro.train`: levels x sweeps x batches x iterations of a method.

    for level:  for sweep:  for batch:  a few iterations of the method; radius and head carry over

Without batches there is one batch, the whole training set, and no limit on its iterations.

The last elimination of the head (see `keeper`) adds a record; a run with a larger budget continues from before it.

The order of the samples is a function of seed, level and sweep, so a cursor determines the position of a run. A checkpoint
needs only the cursor and the method's own state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.protocol import Budget, Iterate, Method, MethodState, Start, iterate_at
from gnvpro.methods.stochastic import seeded_permutation
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.objectives.stored import rounded_point
from gnvpro.state import loaded, saved
from gnvpro.training import convergence
from gnvpro.training.judgement import Chosen, judged
from gnvpro.training.keeper import Best, Keeper
from gnvpro.training.levels import deeper, prolongated
from gnvpro.training.listeners import Listener
from gnvpro.training.penalty_search import PenaltySearch
from gnvpro.training.run import Limits, Run, of_kind
from gnvpro.training.scorer import Scorer
from gnvpro.training.scores import Rise, Scores

LAST = "head eliminated over the whole training set"  # note of the last record, if the head was eliminated
HIGHEST = "the model with the highest evidence"  # note of the record of a model that was gone back to
ROUNDED = "the model as it is stored, in fewer digits"  # note of a further record, if rounding changes the model


@dataclass
class Cursor:
    """Progress of a run."""

    level: int = 0
    sweep: int = 0
    batch: int = 0
    done: int = 0  # iterations on this batch


class TrainRun(Run):
    """A run on samples."""

    notes_of_the_end = (LAST, ROUNDED)

    def __init__(
        self,
        method: Method,
        problem: Problem,
        scorer: Scorer,
        limits: Limits,
        listeners: Sequence[Listener],
        identity: dict[str, Any],
    ) -> None:
        super().__init__(method, problem, limits, listeners, identity)
        self.batches, self._endless = method.parts(), method.usual_work() == math.inf
        self._capped = limits.capped
        self.search = PenaltySearch.of(problem)
        self.chosen: Chosen | None = None
        self.cursor = Cursor()
        self.keeper = Keeper(limits.judge, scorer, self.batches is not None)
        self.start: Start | None = None
        self._read = 0  # records read so far
        self._first = 0  # first record of this objective; another level or other penalties change the objective

    # -- the loops

    def _all(self) -> Status:
        """Train level after level."""
        while True:
            status = self._train_level()
            self._conclude_search()
            if self.cursor.level + 1 == len(self.limits.budgets) or len(self.history) > self.limits.iterations:
                return status
            self._next_level()

    def _leave(self) -> None:
        """Eliminate the head over all samples if a batch determined it."""
        self.keeper.leave(self.problem, self.cursor.level)

    def _train_level(self) -> Status:
        """Run the sweeps over the batches of one level."""
        cursor, status = self.cursor, Status.RUNNING
        self.start = self.start or Start(self.problem.theta(), seed=self.method.seed)
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
        budget = self._budget(1.0 if samples is None else samples.numel() / self.meter.total_samples)
        if self.history and self._resumed is None and samples is not None and budget.passes_left < 2:
            return Status.WORK_SPENT
        status, state = self._iterate(self.problem if samples is None else self.problem.on_samples(samples), budget)
        self.start = self._start(state.iterate.theta, state.iterate.W, state.bound)
        return status

    def _start(self, theta: Tensor, W: Tensor | None = None, bound: Bound | None = None) -> Start:
        """Return the start of a method that follows another batch or round at this level."""
        return Start(theta, W, bound, follows_batch=True, seed=self.method.seed)

    def _first_state(self, problem: Problem, budget: Budget) -> MethodState:
        """Evaluate the first model, which must be finite."""
        try:
            state: MethodState = self.method.begin(problem, self.start, budget, self.cache)
            if not math.isfinite(state.iterate.value):
                raise ValueError("the objective is not finite at the initial parameters")
        except ValueError as error:
            level = self.cursor.level + 1
            if level == 1:
                raise
            raise ValueError(f"level {level} cannot begin (level {level - 1} is kept): {error}") from error
        return state

    def _shows_start(self) -> bool:
        """Return whether this is the first batch of a level."""
        return self.cursor.sweep == self.cursor.batch == 0

    def _store(self, point: Iterate) -> None:
        """Write a point into the model."""
        self.keeper.store(self.problem, point)

    def _stepped(self, state: MethodState, report: StepReport) -> None:
        """Count the iterations of the batch and of the search."""
        self.cursor.done += 1
        self.keeper.store(self.problem, state.iterate)
        if self.search is not None:
            self.search.note(state.iterate.value, report.solver)

    def _budget(self, share: float = 1.0) -> Budget:
        """Return the budget to the end of this level, without the reserve for the last elimination or the last judgement."""
        limits, levels = self.limits, self.cursor.level + 1
        aside = 1 if self.batches is not None and levels == len(limits.budgets) else 0
        aside += 0 if self.search is None else self.search.passes
        seconds = limits.seconds * levels / len(limits.budgets)
        limit = limits.work(self.cursor.level)
        return Budget(self.meter, limit - aside, share, seconds, self._seconds, self.processes.smallest)

    def _spent(self, state: MethodState, budget: Budget) -> Status | None:
        """Return which limit forbids another step; RUNNING at the end of a batch."""
        if self.batches is not None and self.cursor.done >= self.batches.iterations:
            return Status.RUNNING
        return super()._spent(state, budget)

    def _stuck(self, outcome: Status, state: MethodState, budget: Budget) -> Status | None:
        """Continue with other penalties or another batch, if there are any."""
        if self.search is not None and self.search.settle() and self._round_ends(state, budget):
            return None
        return outcome if self.batches is None else Status.RUNNING

    def _ended(self, state: MethodState) -> Status | None:
        """Return why the records end the run, with the same result after a resume; None if they do not."""
        if self.search is not None and self.search.ended:
            return Status.SETTLED
        if self.limits.patience < math.inf and (ended := super()._ended(state)) is not None:
            return ended
        if self.search is not None and self.search.finished:
            return Status.SETTLED
        searching = self.search is not None and not self.search.over
        if searching or not self._endless:
            return None
        rules, capped, history = self.problem.policy.stopping, self._capped, self.journal.history.records
        self._first, self._read = convergence.first_record(history, self._first, self._read), len(history)
        ended = convergence.end(rules, history, self._first, state.settles, capped)
        if ended is Status.CONVERGED or capped or not state.settles:
            return ended
        turned = convergence.rests(rules, history, self._improved.iteration) and Rise.of(history) is not None
        return Status.TURNED_UP if turned else ended

    # -- the search for penalties

    def _round_ends(self, state: MethodState, budget: Budget) -> bool:
        """Return whether the search should judge the current model, with enough work left to try other penalties."""
        assert self.search is not None
        due = self.search.due or (self.problem.network.n_theta == 0 and not self.search.over)
        room = budget.passes_left > self.search.passes + 1 + state.next_passes
        return due and room and len(self.history) <= self.limits.iterations

    def _turn(self, state: MethodState, budget: Budget) -> tuple[Problem, Budget, MethodState] | None:
        """Continue from the best model with the next penalties, if the round is over."""
        search = self.search
        if search is None or not self._round_ends(state, budget):
            return None
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
        if search is None or self.meter.work + search.passes > self.limits.work(self.cursor.level):
            return
        last = judged(problem, problem.theta(), problem.W(), None)
        best, self.chosen = search.highest, last.chosen
        if best is None or last.chosen.log_evidence >= best.chosen.log_evidence:
            return
        self.chosen = best.chosen
        self.problem = problem.with_penalties(best.penalties.theta, best.penalties.head)
        point = self.problem.reduced.start(best.theta, WarmStart(best.W))
        self.problem.store(point.theta, point.W)
        self._publish_reading(point, HIGHEST)

    def _next_level(self) -> None:
        """Refine the network; prolong theta and keep the head."""
        self._take_model(prolongated, self.problem.memory)
        self.search = PenaltySearch.of(self.problem)
        self.start = Start(self.problem.theta(), self.problem.W(), seed=self.method.seed)
        self.cursor = Cursor(level=self.cursor.level + 1)

    def _take_model(self, refine: Callable[[nn.Module], nn.Module], memory: float) -> None:
        self.problem = self.problem.refined(refine, memory)
        self.keeper.scorer = self.keeper.scorer.within(self.problem.network, memory)

    def _finish(self) -> None:
        """Leave the model that is kept, its head the best for all samples."""
        passes = self.meter.sample_passes
        if (point := self.keeper.leave(self.problem, self.cursor.level)) is not None:
            if self.batches is None:  # evaluating it counts no work, as for any method that draws batches
                self.meter.sample_passes = passes
            self._publish_reading(point, LAST)
        self._settle()

    def _settle(self) -> None:
        """Record the effect of rounding the model to its own dtype; this evaluation counts no work."""
        best = self.keeper.best
        passes = self.meter.sample_passes
        restored = best is not None and best.level == self.cursor.level
        point = rounded_point(self.problem, None if restored else self.history[-1].loss)
        self.meter.sample_passes = passes  # this evaluation counts no work
        if point is not None:
            self.problem.store(point.theta, point.W)
            self._publish_reading(point, ROUNDED)

    def _publish_reading(self, point: ReducedPoint, note: str) -> None:
        """Record a model that no step led to."""
        self._publish(self._record(self.problem, MethodState(iterate=iterate_at(point)), None, note), None)

    def _batches(self) -> list[Tensor | None]:
        if self.batches is None:
            return [None]
        order = seeded_permutation(self.meter.total_samples, self.method.seed, self.cursor.level, self.cursor.sweep)
        return list(order.to(self.problem.inputs.device).split(self.batches.size))

    # -- the records

    def _measured(self, problem: Problem, state: MethodState, made: StepReport) -> dict[str, Any]:
        """Score an accepted model, and return where it stands."""
        if made.accepted and self.keeper.watches:
            self.keeper.validate(self.problem, self.cursor.level, state.iterate)
        in_batches = self.batches is not None and made.note is None
        said, scores = self.search and self.search.last, self.keeper.scores
        return {
            "validation_loss": scores.loss,
            "validation_accuracy": scores.accuracy,
            "level": self.cursor.level,
            "sweep": self.cursor.sweep if in_batches else None,
            "batch": self.cursor.batch if in_batches else None,
            "theta_penalty": problem.theta_penalty.alpha,
            "head_penalty": problem.head_penalty,
            "noise": math.hypot(*said.noise) / math.sqrt(len(said.noise)) if said and said.noise else None,
            "effective_parameters": said.effective_parameters if said else None,
            "evidence": said.log_evidence if said else None,
            "metrics": scores.metrics,
        }

    # -- checkpoints

    def _standing(self) -> dict[str, Any]:
        """Return the position of the run, without the method's own state."""
        return {
            **super()._standing(),
            "memory": self.problem.memory,
            "cursor": dataclasses.asdict(self.cursor),
            "start": saved(self.start),
            "best": self.keeper.best and vars(self.keeper.best),
            "search": self.search and self.search.plain(),
        }

    def _take_up(self, content: dict[str, Any]) -> None:
        """Restore the position of the run."""
        self.cursor = Cursor(**content["cursor"])
        # default memory depends on how much was free, which would change the last bits
        self._take_model(partial(deeper, levels=self.cursor.level), content["memory"])
        self.problem.store(content["theta"], content["W"])
        if self.search is not None:
            self.search = self.search.taken_up(content["search"])
            self.problem = self.problem.with_penalties(self.search.penalties.theta, self.search.penalties.head)
        self.start = of_kind(Start, loaded(content["start"]))
        self.keeper.best = Best(**content["best"]) if content["best"] else None
        super()._take_up(content)
        self.keeper.scores = Scores.of(self.history[-1])
