"""One run of `pde.solve`: iterations of the loop within a budget, watched, checked on fresh points, resumable.

Every few iterations the residuals are measured on fresh points (`refine`): equations that overfit get more points, and the
penalty on the head is lowered if it is larger than the misfit. The loop then restarts from the same field.

New points change the head at once and the features later, so the last field of a run is not its best. The run keeps the field
with the smallest residuals on fresh points, among the measured fields and the last one, and reports residuals on other points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Damping, NielsenRule
from gnvpro.minimize.trust_region import StepReport, TrustRegion
from gnvpro.network.work import WorkMeter
from gnvpro.pde.arguments import check_smooth, not_finite, warn_about
from gnvpro.pde.eliminate import fit_at
from gnvpro.pde.equation import Equation
from gnvpro.pde.field import Field
from gnvpro.pde.objective import EquationPoint, local_model
from gnvpro.pde.refine import Refinement
from gnvpro.pde.residuals import Check, Residual
from gnvpro.pde.spread import better_start, gets_nowhere
from gnvpro.pde.system import System, zero_value
from gnvpro.pde.ways import HEADS, Ways
from gnvpro.processes import ALONE, Processes
from gnvpro.state import loaded, saved
from gnvpro.training import checkpoint
from gnvpro.training.agreement import agreed
from gnvpro.training.checkpoint import Checkpoint
from gnvpro.training.convergence import seen_rests
from gnvpro.training.fingerprint import fingerprint
from gnvpro.training.history import Record
from gnvpro.training.journal import Journal
from gnvpro.training.listeners import Listener

FIRST_PENALTY, LEAST_PENALTY = 1e-15, 1e-20  # on the head, unless it is given
ENOUGH = 2.0  # Phi must fall by this factor between two checks, or progress is slow
SOLVED = 1e-24  # misfit relative to the zero field, below which wider features cannot help
CHECK_EVERY = 10  # iterations between two checks on fresh points
REPORTED = 500_000  # added to the seed for the points of the report, which influence no choice


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    seconds: float | None
    seed: int
    iterations: int | None
    head_penalty: float | None
    grow: bool
    head: str
    spread: bool
    checkpoint: Checkpoint | None
    clock: Callable[[], float]
    processes: Processes = ALONE
    widen: Callable[[Field, int], str] | None = None  # adds features to a field; receives the number of times

    @property
    def has_budget(self) -> bool:
        """Return whether the run has a limit on time or iterations."""
        return self.seconds is not None or self.iterations is not None

    def __post_init__(self) -> None:
        if self.seconds is not None:
            check_number("seconds", self.seconds, 0.0)
        if self.iterations is not None:
            check_count("iterations", self.iterations, 0)
        if self.head_penalty is not None:
            check_number("head_penalty", self.head_penalty, 0.0)
        check_count("seed", self.seed, 0)
        check_choice("head", self.head, HEADS)


@dataclass(frozen=True)
class Kept:
    """A field, and its misfit on fresh points."""

    misfit: float
    theta: torch.Tensor
    W: torch.Tensor
    iteration: int


class Run:
    """One run, from the start or from a checkpoint of it."""

    def __init__(
        self,
        field: Field,
        equations: Sequence[Equation],
        settings: Settings,
        listeners: Sequence[Listener],
    ) -> None:
        self.field, self.settings, self.meter = field, settings, WorkMeter(1)
        self.processes = processes = settings.processes
        first = processes.is_first  # only the first process writes files and has listeners
        self.journal = Journal(settings.checkpoint if first else None, listeners if first else [])
        self.refinement = Refinement(equations, settings.seed)
        self.system = System(field, equations, processes=processes)
        self.identity = self._identity() if settings.checkpoint or not processes.alone else {}
        self._agree()
        check_smooth(field, equations, self.system)
        self.notes = warn_about(equations, self.system)
        self.ways = Ways.choose(self.system.linear, settings.head)
        self.penalty = FIRST_PENALTY if settings.head_penalty is None else settings.head_penalty
        self.spent = 0.0
        self.checked_misfit: float | None = None
        self.best: Kept | None = None
        self.before = math.inf  # Phi at the last check
        self.of_zero = zero_value(self.system)
        chosen = settings.widen is not None  # features chosen by trials need no other first weights
        self.first, self.tried = self.system.x(), chosen or not (settings.spread and self.system.linear)
        self.widened = 0
        self.region: TrustRegion[EquationPoint] | None = None

    def _agree(self) -> None:
        """Give all processes the same equations, and the parameters and constants of the first."""
        if self.processes.alone:
            return
        budget = {"iterations": repr(self.settings.iterations), "seconds": repr(self.settings.seconds)}
        self.processes.check_same({**self.identity, **budget}, "with the same equations and points everywhere")
        self.processes.spread([*self.field.parameters(), *self.field.buffers()])
        values = self.processes.from_rank(0, [constant.value for constant in self.system.constants])
        for constant, value in zip(self.system.constants, values, strict=True):
            constant.value = value

    # -- the loop

    def run(self) -> Status:
        """Run the loop until it ends."""
        journal = self.journal
        if journal.status is not Status.RUNNING:
            self._keep()
            return journal.status
        self.begun = self.settings.clock() - self.spent
        with journal.watched(math.inf):
            if self.region is None:
                self._begin(self.system.x(), self.field.W())
                self._record(None, None)
            journal.status = self._loop()
            self._keep()
            journal.close(self._state())
        return journal.status

    def _loop(self) -> Status:
        settings = self.settings
        while True:
            assert self.region is not None
            if len(self.region.point.x) == 0:
                return Status.HEAD_ONLY
            if settings.iterations is not None and len(self.journal.history) > settings.iterations:
                return Status.ITERATIONS_SPENT
            if self._is_late():
                return Status.SECONDS_SPENT
            if not settings.has_budget and seen_rests(self.journal.history):
                return Status.SETTLED
            done = self.region.iterate()
            if done is None:
                if self.ways.stuck(self.region.point.value):
                    self._begin_again(None)
                elif (note := self._widen()) is None:
                    return self.region.status
                else:
                    self._record(None, note)
                continue
            note = self._look() if len(self.journal.history) % CHECK_EVERY == 0 else None
            self._record(done, note)

    def _begin(
        self, theta: torch.Tensor, W: torch.Tensor, bound: Damping | None = None, restored: bool = False
    ) -> None:
        """Start the loop on the current system."""
        objective = self.ways.objective(self.system, self.penalty, self.meter)
        point = objective.restored(theta, W) if restored else objective.start(theta, W)
        if point.fit is None:
            raise ValueError(not_finite(self.system, theta, W))
        self.region = TrustRegion(objective, local_model, point, bound, NielsenRule())
        self.check = Check(self.system, self.settings.seed)

    def _begin_again(self, bound: Damping | None) -> None:
        """Restart the loop from the same field on the changed system."""
        assert self.region is not None
        point = self.region.point
        self._begin(point.theta, point.W, bound)

    def _look(self) -> str | None:
        """Measure the residuals on fresh points; change points, penalty and way if they require it."""
        assert self.region is not None
        point, bound = self.region.point, self.region.bound
        seen = self.check.seen(point.theta, point.fitted)
        self.checked_misfit = self.check.misfit(seen)
        nowhere = gets_nowhere(len(self.journal.history), self.before, point.value, self.of_zero)
        if nowhere and not self.tried and (note := self._try_other_weights(self.checked_misfit)) is not None:
            return note
        self.best = self._better(self.checked_misfit)
        slow, notes = self.before < ENOUGH * point.value, []
        if self.ways.look(point.value, self.of_zero):
            bound = None  # it belongs to other variables
            notes.append("head: eliminated")
        which = self.refinement.needing(self.system, point.fitted, seen, slow) if self.settings.grow else []
        if which:
            self.system = self.refinement.refined(self.system, point.theta, point.W, which, len(self.journal.history))
            changed = [(i, self.system.equations[i]) for i in which]
            notes.append("points: " + ", ".join(f"{e.name or f'equation {i}'} {e.rows}" for i, e in changed))
        lower = self.settings.head_penalty is None and self.penalty > 2 * LEAST_PENALTY
        if lower and point.value - point.misfit > point.misfit:
            self.penalty /= 10
            notes.append(f"head_penalty: {self.penalty:.0e}")
        if slow and not which and (note := self._widen()) is not None:
            self.before = self.region.point.value
            return "; ".join([*notes, note])
        if notes:
            self._begin_again(bound if isinstance(bound, Damping) else None)
        self.before = self.region.point.value
        return "; ".join(notes) or None

    def _try_other_weights(self, own: float) -> str | None:
        """Continue from other first weights if they lead below this misfit."""
        self.tried = True
        objective = self.ways.objective(self.system, self.penalty, self.meter)
        found = better_start(objective, self.check, self.first, own, self._is_late)
        if found is None:
            return None
        self._begin(found.point.theta, found.point.W)
        self.best, self.checked_misfit, self.before = None, found.misfit, found.point.value
        return "first weights: times " + ", ".join(f"{factor:g}" for factor in found.factors)

    def _widen(self) -> str | None:
        """Add features to the field and restart from the same values; None if that cannot help."""
        assert self.region is not None
        point, system, widen = self.region.point, self.system, self.settings.widen
        unknowns = 2 * (system.n_theta + point.W.numel())
        if widen is None or unknowns > system.rows or point.misfit <= SOLVED * self.of_zero:
            return None
        system.store(point.theta, point.W)
        note = self._wider(widen)
        self._begin(self.system.x(), self.field.W())
        if self.best is not None:
            self.best = self._better(math.inf if self.checked_misfit is None else self.checked_misfit, anew=True)
        return note

    def _wider(self, widen: Callable[[Field, int], str]) -> str:
        self.widened += 1
        note, system = widen(self.field, self.widened), self.system
        self.system = System(self.field, system.equations, system.weights, system.constants, self.processes)
        return note

    def _is_late(self) -> bool:
        seconds = self.settings.seconds
        return seconds is not None and self.processes.all(self._seconds() >= seconds)

    def _seconds(self) -> float:
        return self.settings.clock() - self.begun

    def _better(self, misfit: float, anew: bool = False) -> Kept:
        """Return the best field so far, given the misfit of the current one on fresh points; `anew` takes the current one."""
        assert self.region is not None
        point = self.region.point
        if self.best is not None and not misfit < self.best.misfit and not anew:
            return self.best
        return Kept(math.inf if math.isnan(misfit) else misfit, point.theta, point.W, len(self.journal.history))

    def _keep(self) -> None:
        """Store the best field, or the last one if none was measured, in the module."""
        assert self.region is not None
        point = self.region.point
        last = math.nan if self.best is None else self.check.misfit(self.check.seen(point.theta, point.fitted))
        self.kept = self._better(last)
        self.system.store(self.kept.theta, self.kept.W)
        if self.kept is self.best:
            self.notes.append(
                f"the field is the one after iteration {self.kept.iteration}: its residuals on fresh points are smaller "
                f"than at the end (objective {self.kept.misfit:.1e}, {last:.1e})"
            )

    def residuals(self) -> list[Residual]:
        """Measure the final residuals on new points."""
        theta, W = self.kept.theta, self.kept.W
        fit = fit_at(self.system, self.system.carry(theta), theta, W, self.penalty)
        assert fit is not None
        return Check(self.system, REPORTED + self.settings.seed).report(theta, fit)

    # -- records and checkpoints

    def _record(self, done: StepReport | None, note: str | None) -> None:
        assert self.region is not None
        point = self.region.point
        self.system.store(point.theta, point.W)
        record = Record(
            iteration=len(self.journal.history),
            loss=point.value,
            misfit=point.misfit,
            gradient_norm=float(torch.linalg.vector_norm(point.gradient())) if len(point.x) else None,
            radius=None,
            ratio=done.ratio if done else None,
            rank=done.rank if done else None,
            accepted=done is None or done.accepted,
            work=self.meter.work,
            seconds=self._seconds(),
            inner_seconds=self.meter.inner_seconds,
            validation_loss=self.checked_misfit,
            solver=self.ways.solver(self.system.linear),
            damping=done.damping if done else None,
            note=note,
        )
        self.journal.publish(agreed(self.processes, record, point.theta, point.W), self._state)

    def _identity(self) -> dict[str, Any]:
        tensors = {
            f"points {i}.{k}": s.points
            for i, e in enumerate(self.system.equations)
            for k, s in enumerate(e.compiled.sites)
        }
        tensors |= {f"values {i}": e.targets for i, e in enumerate(self.system.equations)}
        settings = {
            "head_penalty": self.settings.head_penalty,
            "grow": self.settings.grow,
            "head": self.settings.head,
            "spread": self.settings.spread,
            "weights": [equation.weight for equation in self.system.equations],  # None: balanced
        }
        return fingerprint(self.field, tensors, {**settings, "seed": self.settings.seed})

    def _state(self) -> dict[str, Any]:
        """Return everything that `resume` needs."""
        assert self.region is not None
        point = self.region.point
        state = {
            "identity": self.identity,
            "theta": point.theta,
            "W": point.W,
            "bound": saved(self.region.bound),
            "below_rounding": self.region.below_rounding,
            "penalty": self.penalty,
            "weights": self.system.weights,  # balanced weights belong to the first constants
            "of_zero": self.of_zero,
            "added": self.refinement.added(self.system),
            "widened": self.widened,
            "ways": self.ways.state(),
            "sample_passes": self.meter.sample_passes,
            "inner_seconds": self.meter.inner_seconds,
            "seconds": self._seconds(),
            "checked_misfit": self.checked_misfit,
            "best": None if self.best is None else vars(self.best),
            "before": self.before,
            "tried": self.tried,
        }
        return {name: saved(value) for name, value in state.items()}

    def resume(self, path: Path) -> None:
        """Continue the run of this checkpoint."""
        content = self.processes.from_first(lambda: checkpoint.load(path))
        self.journal.resume(path, content, self.identity)
        for _ in range(content["widened"]):
            assert self.settings.widen is not None
            self._wider(self.settings.widen)
        weighed = self.system.holding(self.system.equations, content["weights"])
        self.system, self.penalty = self.refinement.restored(weighed, content["added"]), content["penalty"]
        self.of_zero = content["of_zero"]
        self.ways = Ways(**content["ways"])
        self._begin(content["theta"], content["W"], loaded(content["bound"]), restored=True)
        assert self.region is not None
        self.region.below_rounding = content["below_rounding"]
        self.system.store(content["theta"], content["W"])
        self.meter.sample_passes, self.meter.inner_seconds = content["sample_passes"], content["inner_seconds"]
        self.checked_misfit, self.before, self.spent = content["checked_misfit"], content["before"], content["seconds"]
        self.tried = content["tried"]
        self.best = None if content["best"] is None else Kept(**content["best"])
        # a limit may be raised between runs; any other end is final
        if self.journal.status in (Status.SECONDS_SPENT, Status.ITERATIONS_SPENT, Status.SETTLED):
            self.journal.status = Status.RUNNING
