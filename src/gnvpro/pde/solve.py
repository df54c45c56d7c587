"""`pde.solve`: takes a field and equations; returns the solved field, the history and the residuals on fresh points.

    x = (theta, constants)     the head eliminated at every x             `objective`, `eliminate`
    step                       damped Gauss-Newton on the rows            `minimize.row_model`
    loop                       the library's trust region                 `core`

For linear equations the head is eliminated exactly (history: solver "rows"). Other equations start with theta and head together
("joint rows"), and continue with the head eliminated by Newton's method ("newton rows") if that gains more (`ways`). Every few
iterations the residuals are measured on fresh points. Equations whose residuals are several times as large there get more
points in regions of large residuals (`refine`). If the penalty on the head exceeds the misfit, it falls to a tenth.
The run keeps the field with the smallest residuals on fresh points (`run`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnvpro.arguments import check_number, with_advice
from gnvpro.minimize.status import Status
from gnvpro.network.evaluation import evaluating, warn_of_modes
from gnvpro.pde.arguments import check_equations
from gnvpro.pde.equation import Equation
from gnvpro.pde.field import Field
from gnvpro.pde.kinds import choose_features, wider
from gnvpro.pde.march import can_march, march
from gnvpro.pde.residuals import Residual
from gnvpro.pde.run import Run, Settings
from gnvpro.pde.verdict import ending, estimated_error, verdict
from gnvpro.policy import EquationPolicy, Policy, as_policy
from gnvpro.processes import Processes
from gnvpro.training.checkpoint import Checkpoint, taken_up
from gnvpro.training.history import History, Record
from gnvpro.training.listeners import Listener, as_listeners
from gnvpro.training.summary import Summary, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """The solution, its quality, and the course of the run.

    `error` estimates the field's relative error (L2) by one more linear solve on points and features that the run
    did not have (`gnvpro.pde.verdict`); `solved` is true if it is at most the tolerance.
    """

    field: Field
    status: Status
    history: History
    residuals: list[Residual]
    notes: list[str]
    error: float
    tolerance: float

    @property
    def solved(self) -> bool:
        """True if the estimated error is at most the tolerance."""
        return self.error <= self.tolerance

    def plot(self, against: str = "seconds") -> Figure:
        """Loss, residuals on fresh points, damping and gradient of the run as a figure: see `History.plot`."""
        return self.history.plot(against)

    def summary(self) -> Summary:
        """Cost, residuals and notes of the run: text on the terminal, a table in a notebook."""
        error = f"{self.error:.1e}, {'solved' if self.solved else 'not solved'} to {self.tolerance:g}"
        facts = {"relative error (estimated)": error} | {
            f"residual of {r.name}": f"{float(r):.2e} {r.how}, {r.on_points:.2e} on its points" for r in self.residuals
        }
        notes = {f"note {i + 1}": note for i, note in enumerate(self.notes)}
        return summary_of({**facts, **notes}, self.status, self.history)

    def __repr__(self) -> str:
        return f"Result({self.status.name}: error {self.error:.1e} (estimated), {self.history!r}, residuals {self.residuals!r})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


NO_RATE = "steps need none; write seconds=... or iterations=... to bound the run"
WRITE_INSTEAD = {
    "epochs": "write iterations=... or seconds=...",
    "max_iter": "write iterations=...",
    "lr": NO_RATE,
    "learning_rate": NO_RATE,
    "batch_size": "every step sees all points; choose how many where you draw them, such as square.inside(900)",
    "hidden_layer_sizes": "give a field of these layers, pde.Field(gnvpro.networks.MLP(n_inputs, hidden_layer_sizes))",
    "optimizer": "there is one method; leave it out",
    "callbacks": "write listeners=...",
    "verbose": "write progress=True",
    "work": "write iterations=... or seconds=...",
}


@with_advice(WRITE_INSTEAD)
def solve(
    u: Field,
    equations: Sequence[Equation],
    *,
    seconds: float | None = None,
    seed: int = 0,
    iterations: int | None = None,
    tolerance: float = 1e-2,
    head_penalty: float | None = None,
    grow: bool = True,
    head: str = "auto",
    spread: bool = True,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: bool = False,
    progress: bool = False,
    listeners: str | Listener | Callable[[Record], object] | Sequence[Any] = (),
    clock: Callable[[], float] = time.perf_counter,
    process_group: Any = None,
    policy: Policy | None = None,
) -> Result:
    """Solve the equations for the field, in place.

    Args:
        u: the field; its features start from their current parameters.
        equations: `pde.Equation` objects about it.
        seconds: time limit. Without seconds and iterations the run ends when the residuals on fresh points no longer
            fall (`Status.SETTLED`, see `gnvpro.training.convergence`).
        seed: seed of the fresh points.
        iterations: largest number of trial steps.
        tolerance: relative error up to which the equations count as solved: `result.solved`.
        head_penalty: alpha in alpha/2 |W|^2, never squared on the way. Default: 1e-15, divided by ten whenever it
            exceeds the misfit, down to 1e-20.
        grow: whether equations that overfit their drawn points get as many again, in regions of large residuals.
        head: "eliminated" at every step, or moving "together" with the features; linear equations are always solved with the
            head eliminated. Default ("auto"): a run with nonlinear equations uses whichever gains more.
        spread: whether a run of linear equations without progress in its first thirty iterations is tried once with larger
            first weights, along all axes and along each (`gnvpro.pde.spread`); the history records the choice.
        checkpoint: a file to which the state of the run is written every few iterations and on interruption, or a
            `gnvpro.Checkpoint` with the interval.
        resume: whether to continue from the checkpoint if the file exists; the result is the same as without an interruption.
        progress: whether to show a progress bar.
        listeners: watchers of the run, as in `gnvpro.train`: functions of one `Record`, called when the field holds the last
            accepted parameters, or listener objects that receive every record.
        clock: measures the time limit; `time.process_time` for CPU time.
        process_group: processes that make the same call, such as `torch.distributed.group.WORLD`: each carries a part of the
            points through the network. Default: this process alone.
        policy: thresholds, among them the rows on trials of features, for a field given by its domain.

    Returns:
        A `Result`: status, history, residuals (one for each equation, on fresh points), notes, estimated error. Its status is
        `NOT_SOLVED` if the run ended by itself with an estimated error above the tolerance, and also if seconds or iterations
        ended it with an error of the order of the solution.

    Raises:
        ValueError: the equations cannot be solved as stated; the message names the remedy.

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
    check_number("tolerance", tolerance, 0.0, strict=True)
    processes = Processes.of(process_group)
    with processes.together():
        checked = check_equations(u, equations)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint, every=20)
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint=PATH to resume from")
    settings = Settings(seconds, seed, iterations, head_penalty, grow, head, spread, checkpoint, clock, processes)
    watchers = as_listeners("progress" if progress and not listeners else listeners)
    watchers += as_listeners("progress") if progress and listeners else []
    warn_of_modes(u, stacklevel=4)
    with processes.noting_failures(), evaluating(u):
        began, rows, widen, chosen = clock(), as_policy(policy).equations, None, []
        if u.domain is not None:
            if not u.chosen:
                sentence, misfit = choose_features(u, checked, seed, seconds, rows, processes)
                chosen = [sentence]
                alone = processes.alone and checkpoint is None
                if alone and iterations is None and misfit > rows.march_above and can_march(u, checked):
                    return _marched(u, checked, seed, rows, lambda: clock() - began, seconds, watchers, tolerance)
            widen = wider(u.domain, u.kind, seed)
        if seconds is not None:
            settings = replace(settings, seconds=max(0.0, seconds - (clock() - began)))
        settings = replace(settings, widen=widen)
        run = Run(u, checked, settings, watchers)
        path = None if checkpoint is None else Path(checkpoint.path)
        if resume and path is not None and processes.from_first(path.exists):
            with taken_up(path, u, lambda: True):
                run.resume(path)
        status = run.run()
        error = estimated_error(run.system, checked, seed)
        return Result(
            u,
            verdict(status, error, tolerance),
            run.journal.history,
            run.residuals(),
            chosen + run.notes + ending(status, error, tolerance),
            error,
            tolerance,
        )


def _marched(
    u: Field,
    equations: list[Equation],
    seed: int,
    rows: EquationPolicy,
    spent: Callable[[], float],
    seconds: float | None,
    listeners: list[Listener],
    tolerance: float,
) -> Result:
    """Return the result of marching in time."""
    assert u.domain is not None
    assert u.domain.time is not None
    made = march(u, equations, seed, rows, spent, seconds, listeners)
    made.store(u)
    reached = made.slabs[-1].end if made.slabs else float(u.domain.low[u.domain.time])
    notes = [f"marched in time in {len(made.slabs)} slabs: the misfit of short runs over all times stayed high"]
    if made.status is not Status.CONVERGED:
        notes.append(
            f"the last time was not reached: the field is solved up to {reached:.4g} and that slab goes on beyond"
        )
    error, residuals = made.error, made.residuals(equations)
    status = verdict(made.status, error, tolerance)
    return Result(u, status, made.history, residuals, notes + ending(made.status, error, tolerance), error, tolerance)
