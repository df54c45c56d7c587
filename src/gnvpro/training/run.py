"""One run of a method: steps within limits, recorded, watched, kept and resumable.

    state         = method.begin(problem, start, budget, cache)
    state, report = method.step(problem, state, budget, cache)       until a limit or a rule ends the run

`gnvpro.train` and `pde.solve` are both such runs. They differ in what follows a problem and in what they measure:

    training.train_run   levels, sweeps and batches; scores on a validation set; a search for penalties
    pde.solve_run        one system of equations, whose points and features may change between steps

A checkpoint is the method's state and a few numbers of the run. Every rule that ends a run reads the history and the state
alone, so a resumed run ends where the run never interrupted would have ended.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Iterate, MethodState
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.network.work import WorkMeter
from gnvpro.policy import Policy
from gnvpro.processes import Processes
from gnvpro.state import loaded, saved
from gnvpro.training import checkpoint
from gnvpro.training.agreement import agreed
from gnvpro.training.checkpoint import Checkpoint, taken_up
from gnvpro.training.history import History, Record
from gnvpro.training.journal import Journal
from gnvpro.training.listeners import Listener
from gnvpro.training.scores import Improved, Judge

SPENT = (Status.WORK_SPENT, Status.SECONDS_SPENT, Status.ITERATIONS_SPENT)  # a larger budget continues the run


class Trainable(Protocol):
    """A problem that a run can train."""

    meter: WorkMeter
    processes: Processes
    policy: Policy

    def theta(self) -> Tensor:
        """All variables except the head, as stored in the model."""

    def W(self) -> Tensor:
        """Head, as stored in the model."""

    def store(self, theta: Tensor, W: Tensor) -> None:
        """Write both into the model."""


@dataclass(frozen=True)
class Limits:
    """Budget of a run, and the file of its checkpoint."""

    budgets: tuple[float, ...] = (math.inf,)  # work units, one number per level
    seconds: float = math.inf
    iterations: float = math.inf
    patience: float = math.inf  # iterations without a better score
    judge: Judge = field(default_factory=Judge)
    checkpoint: Checkpoint | None = None

    @property
    def caps(self) -> list[float]:
        """Limits of work, seconds and iterations."""
        return [sum(self.budgets), self.seconds, self.iterations]

    @property
    def capped(self) -> bool:
        """True if the user limits the run."""
        return min(*self.budgets, self.seconds, self.iterations, self.patience) < math.inf

    def work(self, level: int) -> float:
        """Return the limit of work units until the end of a level."""
        return sum(self.budgets[: level + 1])


class Run(ABC):
    """One run, from its start or from a checkpoint of it."""

    notes_of_the_end: tuple[str, ...] = ()  # notes of records that a run with a larger budget does not keep

    def __init__(
        self,
        method: Any,
        problem: Any,
        limits: Limits,
        listeners: Sequence[Listener],
        identity: dict[str, Any],
        clock: Callable[[], float] | None = None,
    ) -> None:
        posed: Trainable = problem
        self.method, self.problem, self.limits, self.identity = method, problem, limits, identity
        self.meter, self.processes = posed.meter, posed.processes
        first = self.processes.is_first  # which alone writes files and has listeners
        self.journal = Journal(limits.checkpoint if first else None, listeners if first else [])
        self.cache = Cache(posed.meter)
        self.clock = clock or (lambda: time.perf_counter())
        self._begun = self.clock()
        self._resumed: MethodState | None = None
        self._taking_up = False  # while errors may come from the checkpoint
        self._improved = Improved()

    @property
    def history(self) -> History:
        """The records so far."""
        return self.journal.history

    # -- the loop

    def run(self) -> Status:
        """Run to the end; record an interruption and raise it again."""
        journal = self.journal
        if journal.status is Status.RUNNING:
            try:
                with journal.watched(sum(self.limits.budgets)):
                    journal.status = self._all()
                    self._taking_up = False
                    self._finish()
                    # a larger budget continues from the method's last record, so all else must be unchanged
                    names = ("theta", "W", "seconds", "budget")
                    journal.close({name: value for name, value in self._standing().items() if name in names})
            except BaseException:
                if self.processes.alone:  # other processes may have ended
                    with suppress(Exception):  # for example because the group is already closed
                        self._leave()
                raise
        return journal.status

    @abstractmethod
    def _all(self) -> Status:
        """Solve all problems of the run, one after the other."""

    @abstractmethod
    def _first_state(self, problem: Any, budget: Budget) -> MethodState:
        """Begin the method on a problem; its first model must be finite."""

    @abstractmethod
    def _finish(self) -> None:
        """Store the model that is kept, and add the last records."""

    def _leave(self) -> None:
        """Store the last accepted model after an error."""
        return

    def _iterate(self, problem: Any, budget: Budget) -> tuple[Status, MethodState]:
        """Take steps until something ends them; the status is RUNNING if another problem may follow."""
        state = self._begin(problem, budget)
        while True:
            if (ended := self._ended(state)) is not None:
                return ended, state
            if (turn := self._turn(state, budget)) is not None:
                problem, budget, state = turn
                continue
            if (ended := self._spent(state, budget)) is not None:
                return ended, state
            state, outcome = self.method.step(problem, state, budget, self.cache)
            self._taking_up = False
            if isinstance(outcome, Status):
                if (ended := self._stuck(outcome, state, budget)) is not None:
                    return ended, state
                continue
            self._stepped(state, outcome)
            self._publish(self._record(problem, state, outcome), state)

    def _begin(self, problem: Any, budget: Budget, note: str | None = None) -> MethodState:
        """Begin the method on a problem, or continue it from a checkpoint."""
        self.cache.drop()
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._store(resumed.iterate)
            return resumed
        state = self._first_state(problem, budget)
        if self._shows_start():
            self._store(state.iterate)
            self._publish(self._record(problem, state, None, note), state)
        return state

    def _shows_start(self) -> bool:
        """Return whether the first model of the current problem is recorded."""
        return True

    def _store(self, point: Iterate) -> None:
        """Write a point into the model."""
        self.problem.store(point.theta, point.W)

    def _stepped(self, state: MethodState, report: StepReport) -> None:
        """Update the state of the run after a step."""
        self._store(state.iterate)

    def _turn(self, state: MethodState, budget: Budget) -> tuple[Any, Budget, MethodState] | None:
        """Return the next problem, or None to continue with this one."""
        return None

    def _stuck(self, outcome: Status, state: MethodState, budget: Budget) -> Status | None:
        """Return the status of a run whose method finds no step; None to try again."""
        return outcome

    # -- its ends

    def _ended(self, state: MethodState) -> Status | None:
        """Return why the records end the run, with the same result after a resume; None if they do not."""
        late = self.journal.history.records[-1].iteration - self._improved.iteration >= self.limits.patience
        return Status.NO_BETTER if late else None

    def _spent(self, state: MethodState, budget: Budget) -> Status | None:
        """Return which limit forbids another step."""
        if not self._trains(state):
            return Status.HEAD_ONLY
        if len(self.journal.history.records) > self.limits.iterations:
            return Status.ITERATIONS_SPENT
        if state.next_passes > budget.passes_left:
            return Status.WORK_SPENT
        if self.limits.seconds < math.inf and self.processes.all(self._is_late(budget, state.next_passes)):
            return Status.SECONDS_SPENT
        return None

    def _trains(self, state: MethodState) -> bool:
        """Return whether anything except the head is trained."""
        return state.iterate.theta.numel() > 0

    def _is_late(self, budget: Budget, passes: float) -> bool:
        """Return whether a step of this many passes is predicted to exceed the given seconds by too much."""
        expected = budget.share * self.meter.seconds_of(products=max(0.0, passes - 2) / 2, points=1)
        left = budget.seconds_left
        return left <= 0 or expected > left + self.problem.policy.stopping.overrun * self.limits.seconds

    def _seconds(self) -> float:
        """Return the seconds of the run, including those before a resume."""
        return self.clock() - self._begun

    # -- the records

    def _record(self, problem: Any, state: MethodState, report: StepReport | None, note: str | None = None) -> Record:
        """Record the state of the run."""
        made, point = report or StepReport(accepted=True, note=note), state.iterate
        fields = {**vars(made), **self._measured(problem, state, made)}
        record = Record(
            iteration=len(self.journal.history.records),
            loss=point.value,
            misfit=point.misfit,
            gradient_norm=state.gradient_norm,
            work=self.meter.work,
            seconds=self._seconds(),
            inner_seconds=self.meter.inner_seconds,
            accuracy=point.accuracy,
            **fields,
        )
        return record if self.processes.alone else agreed(self.processes, record, point.theta, point.W)

    def _measured(self, problem: Any, state: MethodState, made: StepReport) -> dict[str, Any]:
        """Return further fields of a record."""
        return {}

    def _publish(self, record: Record, method: MethodState | None) -> None:
        """Add a record to the history; a checkpoint is written only if the method can continue from it."""
        self._improved = self._improved.after(record, self.limits.judge)
        state = None if method is None else lambda: {**self._standing(), "method": saved(method)}
        self.journal.publish(record, state)

    # -- checkpoints

    def _standing(self) -> dict[str, Any]:
        """Return the position of the run, without the method's own state."""
        return {
            "identity": self.identity,
            "theta": self.problem.theta(),
            "W": self.problem.W(),
            "sample_passes": self.meter.sample_passes,
            "inner_seconds": self.meter.inner_seconds,
            "seconds": self._seconds(),
            "budget": self.limits.caps,
        }

    def run_from(self, path: Path, model: nn.Module) -> Status:
        """Continue the run of a checkpoint; the first process reads the file."""
        with taken_up(path, model, lambda: self._taking_up):
            self._taking_up = True
            content = self.processes.from_first(lambda: checkpoint.load(path))
            self.journal.take_up(path, content, self.identity)
            self._resumed = of_kind(MethodState, loaded(content["method"]))
            self._take_up(content)
            return self.run()

    def _take_up(self, content: dict[str, Any]) -> None:
        """Restore the position of the run."""
        self.meter.sample_passes, self.meter.inner_seconds = content["sample_passes"], content["inner_seconds"]
        self._begun = self.clock() - content["seconds"]
        if self._goes_on(content["budget"]):
            self.journal.go_on(self.notes_of_the_end)
        for record in self.history:
            self._improved = self._improved.after(record, self.limits.judge)

    def _goes_on(self, budget: Sequence[float]) -> bool:
        """Return whether a finished run continues because a limit was raised."""
        larger = any(now > then for now, then in zip(self.limits.caps, budget, strict=True))
        return self.journal.status in SPENT and larger and self._resumed is not None


K = TypeVar("K")


def of_kind(kind: type[K], value: Any) -> K | None:
    """Return a value from a checkpoint; raise TypeError unless it is of this kind or None."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"a {kind.__name__} is expected, got {type(value).__name__}")
