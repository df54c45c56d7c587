"""`pde.solve`: a field and equations in; the field solved, the history and the residuals on fresh points out.

    x = (theta, constants)     the head eliminated at every x             `objective`, `eliminate`
    step                       damped Gauss-Newton on the rows            `model`
    loop                       the library's trust region                 `core`

For linear equations the head is eliminated exactly (history: solver "rows"). For others it is eliminated by Newton's method
from the field of the last accepted point ("newton rows"). Every few iterations the residuals are measured on fresh points;
where they are several times as large as on the points themselves, those equations get twice as many points, and the run
goes on. So it does with a tenth of the penalty on the head where that has come to be larger than the misfit.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnvpro.pde import core
from gnvpro.pde.arguments import check_equations, check_smooth, warn_about
from gnvpro.pde.core import Checkpoint, DampedRows, Damping, History, Listener, Record, Status, StepReport, TrustRegion
from gnvpro.pde.eliminate import Fit
from gnvpro.pde.equation import Equation
from gnvpro.pde.field import Field
from gnvpro.pde.model import RowModel
from gnvpro.pde.objective import EquationObjective, EquationPoint, Meter
from gnvpro.pde.residuals import Check, Residual
from gnvpro.pde.system import System

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnvpro.training.summary import Summary

FIRST_PENALTY, LEAST_PENALTY = 1e-15, 1e-20  # on the head, where the run chooses it
CHECK_EVERY = 10  # iterations between two looks at fresh points
OVERFIT = 3.0  # times the residual on the points: then there are too few of them
MOST_GROWTH = 4  # times the points given


@dataclass(frozen=True)
class Result:
    """A solved field and how it came about."""

    field: Field
    status: Status
    history: History
    residuals: list[Residual]
    notes: list[str]

    def plot(self, against: str = "seconds") -> Figure:
        """Loss, residuals on fresh points, damping and gradient of the run as a figure: see `History.plot`."""
        return self.history.plot(against)

    def summary(self) -> Summary:
        """Cost, residuals and notes of the run: text on the terminal, a table in a notebook."""
        facts = {
            f"residual of {r.name}": f"{float(r):.2e} {r.how}, {r.on_points:.2e} on its points" for r in self.residuals
        }
        notes = {f"note {i + 1}": note for i, note in enumerate(self.notes)}
        return core.summary_of({**facts, **notes}, self.status, self.history)

    def __repr__(self) -> str:
        return f"Result({self.status.name}: {self.history!r}, residuals {self.residuals!r})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def solve(
    u: Field,
    equations: Sequence[Equation],
    *,
    seconds: float | None = 60.0,
    seed: int = 0,
    iterations: int | None = None,
    head_penalty: float | None = None,
    grow: bool = True,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: bool = False,
    progress: bool = False,
    listeners: Sequence[Listener | Callable[[Record], object] | str] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Solve the equations for the field, in place.

    Args:
        u: the field; its features start from the parameters they have.
        equations: `pde.Equation` objects about it.
        seconds: budget; None for none.
        seed: of the fresh points.
        iterations: cap on the trial steps.
        head_penalty: alpha in alpha/2 |W|^2, never squared on the way. By default 1e-15, and a tenth of that whenever it comes
            to be larger than the misfit, down to 1e-20.
        grow: whether equations that overfit their drawn points get more of them, up to four times as many.
        checkpoint: a file to which the state of the run is written every few iterations and on interruption, or a
            `gnvpro.Checkpoint` that says how often.
        resume: whether to go on from the checkpoint if the file exists; the result is the same as of a run never interrupted.
        progress: whether to show a progress bar.
        listeners: what watches the run, as in `gnvpro.train`: functions of one `Record`, called when the field holds the last
            accepted parameters, or objects that hear of every record.
        clock: what the budget is measured by, `time.process_time` for processor seconds.

    Returns:
        A `Result`: status, history, residuals (one for each equation, on fresh points), notes.

    Raises:
        ValueError: the equations cannot be solved as stated; the message says what to do.

    Example:
        >>> import torch, gnvpro
        >>> from gnvpro import pde
        >>> _ = torch.manual_seed(0)
        >>> u = pde.Field(gnvpro.networks.MLP(1, [10], dtype=torch.float64))
        >>> line = pde.points.Box([0.0], [1.0])
        >>> ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> equations = [pde.Equation(pde.d(u, 0, 0), line.inside(50), -1.0), pde.Equation(u, ends, 0.0)]
        >>> result = pde.solve(u, equations, iterations=30)
        >>> bool(abs(u(torch.tensor([[0.5]], dtype=torch.float64)) - 0.125) < 1e-6)
        True
    """
    checked = check_equations(u, equations)
    if head_penalty is not None and not 0 <= head_penalty < math.inf:
        raise ValueError(f"head_penalty must be a number of at least 0, got {head_penalty}")
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"seconds must be at least 0, got {seconds}")
    if iterations is not None and iterations < 0:
        raise ValueError(f"iterations must be at least 0, got {iterations}")
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint=PATH to resume from")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint, every=20)
    path = None if checkpoint is None else Path(checkpoint.path)
    before = torch.get_num_threads()
    watchers = [core.as_listener(each) for each in [*listeners, *(["progress"] if progress else [])]]
    settings = Settings(seconds, seed, iterations, head_penalty, grow, checkpoint, clock)
    try:
        run = Run(u, checked, settings, watchers)
        if resume and path is not None and path.exists():
            run.resume(path)
        status = run.run()
    finally:
        torch.set_num_threads(before)
    return Result(u, status, run.history, run.residuals(), run.notes)


@dataclass(frozen=True)
class Settings:
    """What a run is told."""

    seconds: float | None
    seed: int
    iterations: int | None
    head_penalty: float | None
    grow: bool
    checkpoint: Checkpoint | None
    clock: Callable[[], float]


class Run:
    """One run, from the start or from a checkpoint of it."""

    def __init__(
        self,
        field: Field,
        equations: Sequence[Equation],
        settings: Settings,
        listeners: Sequence[Listener],
    ) -> None:
        self.field, self.settings, self.listeners = field, settings, listeners
        self.history, self.meter, self.status = History(), Meter(), Status.RUNNING
        self.first_rows = [e.rows for e in equations]
        self.system = System(field, equations)
        check_smooth(field, equations, self.system)
        self.notes = warn_about(equations, self.system)
        self.weights = self.system.weights
        self.penalty = FIRST_PENALTY if settings.head_penalty is None else settings.head_penalty
        self.identity = self._identity() if settings.checkpoint else {}
        self.spent = 0.0
        self.checked_misfit: float | None = None
        self.region: TrustRegion[EquationPoint] | None = None

    # -- the loop

    def run(self) -> Status:
        """Go on until the run is over; an interruption is written down and handed on."""
        if self.status is not Status.RUNNING:
            return self.status
        self.begun = self.settings.clock() - self.spent
        for listener in self.listeners:
            listener.begin(self.history, math.inf)
        try:
            if self.region is None:
                self._begin(self.system.x(), self.field.W(), None)
                self._record(None, "first head: " + self._kind())
            self.status = self._loop()
            self._store()
            self._write(final=True)
        except BaseException:
            self._write(final=False)
            self.status = Status.RUNNING
            raise
        finally:
            for listener in self.listeners:
                listener.end(self.status)
        return self.status

    def _loop(self) -> Status:
        settings = self.settings
        while True:
            assert self.region is not None
            if len(self.region.point.x) == 0:
                return Status.HEAD_ONLY
            if settings.iterations is not None and len(self.history) > settings.iterations:
                return Status.ITERATIONS_SPENT
            if settings.seconds is not None and self._seconds() >= settings.seconds:
                return Status.WORK_SPENT
            done = self.region.iterate()
            if done is None:
                return self.region.status
            note = self._look() if len(self.history) % CHECK_EVERY == 0 else None
            self._record(done, note)

    def _begin(self, x: torch.Tensor, W: torch.Tensor, bound: Damping | None, restored: bool = False) -> None:
        """The loop on the system as it is."""
        objective = EquationObjective(self.system, self.penalty, self.meter)
        point = objective.restored(x, W) if restored else objective.start(x, W)
        if point.fit is None:
            raise ValueError(
                "the rows of the equations are not finite at the first parameters; scale the points or the network"
            )
        self.region = TrustRegion(objective, _model, point, bound, core.NielsenRule())
        self.check = Check(self.system, self.settings.seed)

    def _look(self) -> str | None:
        """Measure the residuals on fresh points; use more points, and less penalty, where they say so."""
        assert self.region is not None
        point, bound = self.region.point, self.region.bound
        assert point.fit is not None
        squares = self.check.mean_squares(point.x, point.fit)
        self.checked_misfit = self.check.misfit(squares)
        notes = []
        larger, grown = self._larger(point.fit, squares) if self.settings.grow else ([], [])
        if grown:
            self.system = System(self.field, larger, self.weights, self.system.constants)
            notes.append("points: " + ", ".join(grown))
        lower = self.settings.head_penalty is None and self.penalty > LEAST_PENALTY
        if lower and point.value - point.misfit > point.misfit:
            self.penalty /= 10
            notes.append(f"head_penalty: {self.penalty:.0e}")
        if not notes:
            return None
        self._begin(point.x, point.fit.W, bound if isinstance(bound, Damping) else None)
        return "; ".join(notes)

    def _larger(self, fit: Fit, squares: Sequence[float]) -> tuple[list[Equation], list[str]]:
        """The equations with twice the points where they overfit, and which these are."""
        own = self.system.by_equation(fit.assembled.residual)
        larger: list[Equation] = []
        grown: list[str] = []
        for i, (equation, square) in enumerate(zip(self.system.equations, squares, strict=True)):
            on_points = float(own[i].square().sum()) / self.system.weights[i]
            room = 2 * equation.rows <= MOST_GROWTH * self.first_rows[i]
            if equation.can_be_redrawn and room and square > OVERFIT**2 * on_points and self._matters(i, square):
                assert equation.set is not None
                larger.append(equation.at(equation.set.grown(2 * equation.rows)))
                grown.append(f"{equation.name or f'equation {i}'} {2 * equation.rows}")
            else:
                larger.append(equation)
        return larger, grown

    def _matters(self, i: int, square: float) -> bool:
        """Whether the equation's residual on fresh points is a tenth of all of them, or more."""
        assert self.checked_misfit is not None
        return 0.5 * self.weights[i] * square >= 0.1 * self.checked_misfit

    def _kind(self) -> str:
        return "rows" if self.system.linear else "newton rows"

    def _seconds(self) -> float:
        return self.settings.clock() - self.begun

    def residuals(self) -> list[Residual]:
        """The check at the end."""
        assert self.region is not None
        assert self.region.point.fit is not None
        return self.check.report(self.region.point.x, self.region.point.fit)

    # -- records and checkpoints

    def _store(self) -> None:
        assert self.region is not None
        self.system.store(self.region.point.x, self.region.point.W)

    def _record(self, done: StepReport | None, note: str | None) -> None:
        assert self.region is not None
        point = self.region.point
        record = Record(
            iteration=len(self.history),
            loss=point.value,
            misfit=point.misfit,
            gradient_norm=float(torch.linalg.vector_norm(point.gradient())) if len(point.x) else None,
            radius=None,
            ratio=done.ratio if done else None,
            rank=done.rank if done else None,
            accepted=done is None or done.accepted,
            work=float(self.meter.passes),
            seconds=self._seconds(),
            inner_seconds=self.meter.inner_seconds,
            validation_loss=self.checked_misfit,
            solver=self._kind(),
            damping=done.damping if done else None,
            note=note,
        )
        self.history.append(record)
        if self.settings.checkpoint is not None and record.iteration % self.settings.checkpoint.every == 0:
            self._write(final=False)
        self._store()
        for listener in self.listeners:
            listener.record(record)

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
            "weights": self.system.weights,
        }
        return core.fingerprint(self.field, tensors, {**settings, "seed": self.settings.seed})

    def _write(self, final: bool) -> None:
        if self.settings.checkpoint is None or self.region is None:
            return
        region = self.region
        core.save(
            Path(self.settings.checkpoint.path),
            core.detached_copy(
                {
                    "identity": self.identity,
                    "x": region.point.x,
                    "W": region.point.W,
                    "loop": {**region.state(), "has_model": False},  # it is built again from the point
                    "penalty": self.penalty,
                    "rows": [e.rows for e in self.system.equations],
                    "passes": self.meter.passes,
                    "inner_seconds": self.meter.inner_seconds,
                    "seconds": self._seconds(),
                    "checked_misfit": self.checked_misfit,
                    "history": json.dumps([record.to_dict() for record in self.history]),
                    "status": (self.status if final else Status.RUNNING).name,
                }
            ),
        )

    def resume(self, path: Path) -> None:
        """Take up the run that the checkpoint is of."""
        saved = core.load(path)
        core.check_same_run(path, saved["identity"], self.identity)
        larger = [
            e if e.rows == rows or e.set is None else e.at(e.set.grown(rows))
            for e, rows in zip(self.system.equations, saved["rows"], strict=True)
        ]
        self.system, self.penalty = System(self.field, larger, self.weights, self.system.constants), saved["penalty"]
        self._begin(saved["x"], saved["W"], None, restored=True)
        assert self.region is not None
        self.region.resume(saved["loop"])
        self.meter.passes, self.meter.inner_seconds = saved["passes"], saved["inner_seconds"]
        self.checked_misfit, self.spent = saved["checked_misfit"], saved["seconds"]
        self.history = History(Record(**record) for record in json.loads(saved["history"]))
        # Budgets may be raised on the way; any other end is final.
        ended = Status[saved["status"]]
        self.status = Status.RUNNING if ended in (Status.WORK_SPENT, Status.ITERATIONS_SPENT) else ended


def _model(point: EquationPoint) -> DampedRows:
    assert point.fit is not None
    return DampedRows(RowModel(point.reduced_jacobian, point.fit.residual))
