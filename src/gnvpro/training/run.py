"""A training run: levels x sweeps x batches x iterations of a method, within a budget, watched, kept and resumable.

    for level:  for sweep:  for batch:  a few iterations of the method, radius and head carried over

Without batches there is one batch, the whole training set, and no limit on its iterations. With batches the head was only
ever eliminated on the last of them, so it is eliminated once more over the whole training set at the end.

The order of the samples is a function of seed, level and sweep, so where a run stands is told by its cursor; together
with the method's own state it is all that a checkpoint needs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gnvpro.training import checkpoint
from gnvpro.network.find_head import find_head
from gnvpro.methods.stochastic import LBFGSvpro, adam, nesterov, shuffled
from gnvpro.methods.gnvpro import gauss_newton, gnvpro
from gnvpro.head.eliminator import WarmStart, with_ones
from gnvpro.training.history import History, Record
from gnvpro.training.levels import prolongated
from gnvpro.training.listeners import Listener
from gnvpro.methods.protocol import Iterate, Method, Settings, Start, State, Trial
from gnvpro.network.separable import SeparableNetwork, WorkMeter, cached_chunk
from gnvpro.objectives.reduced import Problem, ReducedObjective
from gnvpro.training.plan import Best, Cursor, Data, Plan, score
from gnvpro.minimize.status import Status

MakeMethod = Callable[[Problem, Start, Settings, "State | None"], Method]

METHODS: dict[str, MakeMethod] = {
    "gnvpro": gnvpro,
    "gauss-newton": gauss_newton,
    "lbfgs-vpro": LBFGSvpro,
    "adam": adam,
    "nesterov": nesterov,
}


class Run:
    """One run, from a plan or from a checkpoint of it."""

    def __init__(
        self,
        model: nn.Module,
        head: str | None,
        train: Data,
        validation: Data | None,
        plan: Plan,
        settings: Settings,
        listeners: Sequence[Listener],
        on_iteration: Callable[[Record], object] | None,
        identity: dict[str, Any],
        memory: float,
    ) -> None:
        self.model, self.head, self.train, self.validation = model, head, train, validation
        self.plan, self.settings = plan, settings
        self.listeners, self.on_iteration, self.identity = listeners, on_iteration, identity
        self.memory = memory
        self.meter = WorkMeter(train.inputs.shape[0])
        self.history = History()
        self.cursor = Cursor()
        self.best: Best | None = None
        self.status = Status.RUNNING
        self.start: Start | None = None
        self._resumed: State | None = None
        self._clock = time.perf_counter()
        self._snapshot: dict[str, Any] | None = None
        self._written = (0, time.perf_counter())
        self._scores: tuple[float | None, float | None] = (None, None)
        self.network = self._see(model)

    def _see(self, model: nn.Module) -> SeparableNetwork:
        anatomy = find_head(model, self.train.inputs[:2], self.head)
        return SeparableNetwork(model, anatomy, self.meter, cached_chunk(self.train.inputs), self.memory)

    # -- the loops

    def run(self) -> Status:
        """Go on until the run is over; an interruption is written down and handed on."""
        if self.status is not Status.RUNNING:
            return self.status
        for listener in self.listeners:
            listener.begin(self.history, sum(self.plan.budgets))
        try:
            while True:
                self.status = self._train_level()
                if self.cursor.level + 1 == len(self.plan.budgets) or len(self.history) > self.plan.iterations:
                    break
                self._next_level()
            self._finish()
        except BaseException:
            if self._snapshot is not None:
                self._write(self._snapshot)
            self.status = Status.RUNNING
            raise
        finally:
            for listener in self.listeners:
                listener.end(self.status)
        return self.status

    def _train_level(self) -> Status:
        """Sweeps over the batches of one level."""
        cursor, status = self.cursor, Status.RUNNING
        self.start = self.start or Start(self.network.theta())
        while cursor.sweep < (self.plan.sweeps if self.plan.in_batches else 1):
            batches = self._batches()
            while cursor.batch < len(batches):
                status = self._train_batch(batches[cursor.batch])
                if status is not Status.RUNNING:
                    return status
                cursor.batch, cursor.done = cursor.batch + 1, 0
            cursor.sweep, cursor.batch = cursor.sweep + 1, 0
        return Status.SWEEPS_DONE

    def _train_batch(self, samples: Tensor | None) -> Status:
        """Iterations on one batch; RUNNING when the next batch may follow."""
        assert self.start is not None
        share = 1.0 if samples is None else samples.numel() / self.meter.total_samples
        limit = self._limit()
        if self.history and self._resumed is None and self.meter.work + 2 * share > limit and samples is not None:
            return Status.WORK_SPENT
        problem = self._problem(samples)
        settings = dataclasses.replace(self.settings, passes_left=lambda: (limit - self.meter.work) / share)
        method = self._make_method(problem, settings)
        while True:
            if self.network.n_theta == 0:
                return Status.HEAD_ONLY
            if self.plan.in_batches and self.cursor.done >= self.plan.iterations_per_batch:
                break
            if len(self.history) > self.plan.iterations:
                return Status.ITERATIONS_SPENT
            if self.meter.work + method.next_passes * share > limit:
                return Status.WORK_SPENT
            trial = method.iterate()
            if trial is None:
                if not self.plan.in_batches:
                    return method.status
                break
            self.cursor.done += 1
            self._keep(method)
            record = self._record(problem, method.point, method.gradient_norm(), trial)
            self._tell(record, method)
            if self.on_iteration is not None:
                self.on_iteration(record)
            if self._stalled():
                return Status.NO_BETTER
        self.start = Start(method.point.theta, method.point.W, method.bound, later=True)
        return Status.RUNNING

    def _make_method(self, problem: Problem, settings: Settings) -> Method:
        """The method on a batch: begun, or taken up where a checkpoint left it."""
        assert self.start is not None
        state, self._resumed = self._resumed, None
        counted = dataclasses.replace(self.meter)
        method = METHODS[self.plan.method](problem, self.start, settings, state)
        if state is not None:  # what is built again was counted before
            self.meter.sample_passes, self.meter.inner_seconds = counted.sample_passes, counted.inner_seconds
        elif self.cursor.sweep == self.cursor.batch == 0:
            if not math.isfinite(method.point.value):
                raise ValueError(
                    "the model's features are not finite at its initial parameters, though inputs and parameters are; "
                    "scale the inputs or initialise the model with smaller parameters"
                )
            self._keep(method)
            gradient_norm = method.gradient_norm() if self.network.n_theta else None
            self._tell(self._record(problem, method.point, gradient_norm, None), method)
        return method

    def _limit(self) -> float:
        """Work units that may be spent until the end of this level; one is put aside for the last elimination."""
        last = self.cursor.level + 1 == len(self.plan.budgets)
        return sum(self.plan.budgets[: self.cursor.level + 1]) - (1 if self.plan.in_batches and last else 0)

    def _next_level(self) -> None:
        """Refine the network; theta is prolonged, the head kept."""
        self.network = self._see(prolongated(self.network.model))
        self.start = Start(self.network.theta(), self.network.W())
        self.cursor = Cursor(level=self.cursor.level + 1)

    def _finish(self) -> None:
        """Keep the best model if asked to, eliminate its head over all samples if that is due, write the last checkpoint."""
        if self.best is not None:
            self.network.store(self.best.theta, self.best.W)
        if self.plan.in_batches:
            problem = self._problem(None)
            start = WarmStart(self.network.W())
            point = ReducedObjective(problem, self.settings.eliminator).start(self.network.theta(), start)
            self.network.store(point.theta, point.W)
            self._tell(self._record(problem, point, None, None, "head eliminated over the whole training set"), None)
        if self.plan.checkpoint is not None:
            self._write(self._state(None))

    # -- the problem

    def _batches(self) -> list[Tensor | None]:
        if not self.plan.in_batches:
            return [None]
        assert self.plan.batch_size is not None
        order = shuffled(self.meter.total_samples, self.settings.seed, self.cursor.level, self.cursor.sweep)
        return list(order.to(self.train.inputs.device).split(self.plan.batch_size))

    def _problem(self, samples: Tensor | None) -> Problem:
        penalty = self.plan.theta_penalty.bind(self.network.model, self.network.parameters)
        inputs, misfit = self.train.inputs, self.train.misfit
        if samples is not None:
            inputs, misfit = inputs[samples], misfit.take(samples, inputs.shape[0])
        return Problem(self.network, inputs, misfit, penalty, self.plan.head_penalty)

    # -- the records

    def _keep(self, method: Method) -> None:
        self.network.store(method.point.theta, method.point.W)

    def _record(
        self,
        problem: Problem,
        point: Iterate,
        gradient_norm: float | None,
        trial: Trial | None,
        note: str | None = None,
    ) -> Record:
        """Write down where the run stands."""
        if trial is None or trial.accepted:
            self._validate(point.theta, point.W)
        record = Record(
            iteration=len(self.history),
            loss=point.value,
            misfit=point.misfit,
            gradient_norm=gradient_norm,
            radius=trial.radius if trial else None,
            ratio=trial.ratio if trial else None,
            rank=trial.rank if trial else None,
            accepted=trial is None or trial.accepted,
            work=self.meter.work,
            seconds=time.perf_counter() - self._clock,
            inner_seconds=self.meter.inner_seconds,
            accuracy=problem.misfit.accuracy(point.outputs),
            validation_loss=self._scores[0],
            validation_accuracy=self._scores[1],
            solver=trial.solver if trial else None,
            damping=trial.damping if trial else None,
            level=self.cursor.level,
            sweep=self.cursor.sweep if self.plan.in_batches and note is None else None,
            batch=self.cursor.batch if self.plan.in_batches and note is None else None,
            note=note,
        )
        self.history.append(record)
        return record

    def _validate(self, theta: Tensor, W: Tensor) -> None:
        """Score the model on the validation set, and remember it where it is the best; passes over it are not work."""
        if self.validation is None:
            return
        outputs = with_ones(self.network.features(theta, self.validation.inputs), self.network.bias) @ W.T
        loss, accuracy = self.validation.misfit.value(outputs), self.validation.misfit.accuracy(outputs)
        self._scores = (loss, accuracy)
        # The best model of an earlier level is not the network that this run will return.
        if self.plan.keep_best and (
            self.best is None or (self.cursor.level, score(loss, accuracy)) > (self.best.level, self.best.score)
        ):
            self.best = Best(self.cursor.level, score(loss, accuracy), theta.clone(), W.clone())

    def _stalled(self) -> bool:
        """Whether the validation score has not improved for too long; told by the history, so a resumed run knows."""
        if math.isinf(self.plan.patience):
            return False
        scores = [score(r.validation_loss, r.validation_accuracy) for r in self.history if r.level == self.cursor.level]
        return len(scores) - 1 - scores.index(max(scores)) >= self.plan.patience

    def _tell(self, record: Record, method: Method | None) -> None:
        """Checkpoint first: what listeners or the user's function do must not cost the iteration."""
        if self.plan.checkpoint is not None and method is not None:
            self._snapshot = self._state(method)
            iterations, seconds = self._written
            if record.iteration - iterations >= self.plan.checkpoint_every or time.perf_counter() - seconds > 30:
                self._write(self._snapshot)
        for listener in self.listeners:
            listener.record(record)

    # -- checkpoints

    def _state(self, method: Method | None) -> dict[str, Any]:
        return checkpoint.copied(
            {
                "identity": self.identity,
                "memory": self.memory,
                "cursor": dataclasses.asdict(self.cursor),
                "method": method.state() if method else None,
                "start": {"theta": self.start.theta, "W": self.start.W, "later": self.start.later}
                if self.start
                else None,
                "theta": self.network.theta(),
                "W": self.network.W(),
                "best": dataclasses.asdict(self.best) if self.best else None,
                "sample_passes": self.meter.sample_passes,
                "inner_seconds": self.meter.inner_seconds,
                "seconds": time.perf_counter() - self._clock,
                "history": json.dumps([record.to_dict() for record in self.history]),
                "status": (self.status if method is None else Status.RUNNING).name,
            }
        )

    def _write(self, snapshot: dict[str, Any]) -> None:
        assert self.plan.checkpoint is not None
        checkpoint.save(self.plan.checkpoint, snapshot)
        self._written = (len(self.history), time.perf_counter())

    def resume(self, path: Path) -> None:
        """Take up the run that the checkpoint is of."""
        saved = checkpoint.load(path)
        checkpoint.check_same_run(path, saved["identity"], self.identity)
        self.memory = saved["memory"]  # by default it depends on what was free, and with it the last bits
        self.cursor = Cursor(**saved["cursor"])
        model = self.model
        for _ in range(self.cursor.level):
            model = prolongated(model)
        self.network = self._see(model)
        self.network.store(saved["theta"], saved["W"])
        self.start = Start(**saved["start"]) if saved["start"] else None
        self.best = Best(**saved["best"]) if saved["best"] else None
        self.meter.sample_passes, self.meter.inner_seconds = saved["sample_passes"], saved["inner_seconds"]
        self._clock = time.perf_counter() - saved["seconds"]
        self.history = History(Record(**record) for record in json.loads(saved["history"]))
        self._scores = (self.history[-1].validation_loss, self.history[-1].validation_accuracy)
        self._written = (len(self.history), time.perf_counter())
        self._resumed = saved["method"]
        self.status = Status[saved["status"]]
