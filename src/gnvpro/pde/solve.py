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

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnvpro.arguments import check_choice, check_count, check_number, with_advice
from gnvpro.minimize.status import Status
from gnvpro.network.evaluation import evaluating, warn_of_modes
from gnvpro.pde.equation import Equation
from gnvpro.pde.field import Field
from gnvpro.pde.kinds import better_kind, choose_features, wider
from gnvpro.pde.march import can_march, march
from gnvpro.pde.residuals import Residual
from gnvpro.pde.solution_figure import solution_figure
from gnvpro.pde.solve_arguments import check_equations
from gnvpro.pde.solve_run import SolveRun
from gnvpro.pde.steps import EquationProblem
from gnvpro.pde.system import System
from gnvpro.pde.verdict import ORDER_OF_DATA, ending, estimated_error, verdict
from gnvpro.pde.ways import HEADS
from gnvpro.policy import EquationPolicy, Policy, as_policy
from gnvpro.processes import Processes
from gnvpro.training.checkpoint import Checkpoint, as_checkpoint, path_of
from gnvpro.training.history import Record
from gnvpro.training.listeners import Listener, as_listeners
from gnvpro.training.result import Result
from gnvpro.training.run import SPENT, Limits
from gnvpro.training.scores import Judge
from gnvpro.training.summary import Summary, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Solution(Result):
    """The result of `pde.solve`: a field, how good it is, and how it came about.

    `error` estimates the field's relative error (L2) by one more linear solve on points and features that the run
    did not have (`gnvpro.pde.verdict`); `solved` is true if it is at most the tolerance. `intervals` has a 95% interval of each
    unknown constant, from the scatter of the data (`gnvpro.pde.intervals`).

    Args:
        residuals: residual of each equation, on fresh points.
        notes: remarks on the run, in sentences.
        error: estimated relative error of the field (L2).
        tolerance: the tolerance of `pde.solve`.
        equations: the equations.
        intervals: lower and upper end of each constant's 95% interval, by name.

    `gnvpro.Result` describes the other fields.

    >>> import torch, gnvpro
    >>> from gnvpro import pde
    >>> _ = torch.manual_seed(0)
    >>> u = pde.Field(gnvpro.networks.MLP(1, [8], dtype=torch.float64))
    >>> x = pde.points.Box([0.0], [1.0]).inside(40)
    >>> start = torch.tensor([[0.0]], dtype=torch.float64)
    >>> solution = pde.solve(u, [pde.Equation(pde.d(u, 0) + u, x, 0.0), pde.Equation(u, start, 1.0)], iterations=30)
    >>> len(solution.residuals), solution.solved == (solution.error <= solution.tolerance)
    (2, True)
    >>> round(solution.field(torch.ones(1, 1, dtype=torch.float64)).item(), 4)  # 1 / e
    0.3679
    """

    residuals: list[Residual] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    error: float = math.inf
    tolerance: float = 0.0
    equations: list[Equation] = dataclasses.field(default_factory=list)
    intervals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    @property
    def field(self) -> Field:
        """The field that was solved for."""
        assert isinstance(self.model, Field)
        return self.model

    @property
    def solved(self) -> bool:
        """True if the estimated error is at most the tolerance."""
        return self.error <= self.tolerance

    def plot(self, against: str = "work") -> Figure:
        """Plot the field, the residuals, the points and the history against work, "seconds" or "iteration"."""
        return solution_figure(self.field, self.equations, self.history, against)

    def summary(self) -> Summary:
        """Cost, residuals and notes of the run: text on the terminal, a table in a notebook."""
        error = f"{self.error:.1e}, {'solved' if self.solved else 'not solved'} to {self.tolerance:g}"
        facts = {"relative error (estimated)": error} | {
            f"residual of {r.name}": f"{float(r):.2e} {r.how}, {r.on_points:.2e} on its points" for r in self.residuals
        }
        facts |= {name: f"{low:.6g} to {high:.6g} (95%)" for name, (low, high) in self.intervals.items()}
        notes = {f"note {i + 1}": note for i, note in enumerate(self.notes)}
        return summary_of({**facts, **notes}, self.status, self.history)

    def __repr__(self) -> str:
        how = f"error {self.error:.1e} (estimated), {self.history!r}, residuals {self.residuals!r}"
        return f"Solution({self.status.name}: {how})"


NO_RATE = "steps need none; write seconds=... or iterations=... to bound the run"
PROGRESS = 'write listeners="progress"'
WRITE_INSTEAD = {
    "epochs": "write iterations=... or seconds=...",
    "max_iter": "write iterations=...",
    "lr": NO_RATE,
    "learning_rate": NO_RATE,
    "batch_size": "every step sees all points; choose how many where you draw them, such as square.inside(900)",
    "hidden_layer_sizes": "give a field of these layers, pde.Field(gnvpro.networks.MLP(n_inputs, hidden_layer_sizes))",
    "optimizer": "there is one method; leave it out",
    "callbacks": "write listeners=...",
    "verbose": PROGRESS,
    "progress": PROGRESS,
}


@with_advice(WRITE_INSTEAD)
def solve(
    u: Field,
    equations: Sequence[Equation],
    *,
    work: float | None = None,
    seconds: float | None = None,
    iterations: int | None = None,
    patience: int | None = None,
    seed: int = 0,
    tolerance: float = 1e-2,
    head_penalty: float | None = None,
    grow: bool = True,
    head: str = "auto",
    spread: bool = True,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: bool = False,
    listeners: str | Listener | Callable[[Record], object] | Sequence[Any] = (),
    clock: Callable[[], float] = time.perf_counter,
    process_group: Any = None,
    policy: Policy | None = None,
) -> Solution:
    """Solve the equations for the field, in place.

    Args:
        u: the field; its features start from their current parameters.
        equations: `pde.Equation` objects about it.
        work: maximum number of passes over all points; forward and backward passes count one each.
        seconds: time limit, the choice of features included.
        iterations: maximum number of trial steps.
        patience: stop after this many iterations without smaller residuals on fresh points, which are measured every ten
            iterations. Without any of these four limits the run ends when the residuals on fresh points no longer fall
            (`Status.SETTLED`, see `gnvpro.training.convergence`).
        seed: seed of the fresh points.
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
            A run that has spent a limit continues if the limit is larger.
        listeners: watchers of the run, as in `gnvpro.train`: "progress", functions of one `Record`, called when the field
            holds the last accepted parameters, or listener objects that receive every record.
        clock: measures the time limit; `time.process_time` for CPU time.
        process_group: processes that make the same call, such as `torch.distributed.group.WORLD`: each carries a part of the
            points through the network. Default: this process alone.
        policy: thresholds, among them the rows on trials of features, for a field given by its domain.

    Returns:
        A `Solution`: what `gnvpro.train` returns, with residuals (one for each equation, on fresh points), notes and an
        estimated error. Its status is `NOT_SOLVED` if the run ended by itself with an estimated error
        above the tolerance, and also if a limit ended it with an error of the order of the solution.

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
    check_count("seed", seed, 0)
    check_choice("head", head, HEADS)
    if head_penalty is not None:
        check_number("head_penalty", head_penalty, 0.0)
    processes = Processes.of(process_group)
    with processes.together():
        checked = check_equations(u, equations)
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint=PATH to resume from")
    limits = Limits(
        (math.inf if work is None else check_number("work", work, 0.0),),
        math.inf if seconds is None else check_number("seconds", seconds, 0.0),
        math.inf if iterations is None else check_count("iterations", iterations, 0),
        math.inf if patience is None else check_count("patience", patience, 1),
        Judge("best"),
        as_checkpoint(checkpoint),
    )
    watchers = as_listeners(listeners)
    warn_of_modes(u, stacklevel=4)
    with processes.noting_failures(), evaluating(u):
        began, rules, widen, plan, marches = clock(), as_policy(policy), None, tuple[str, ...](), False
        rows = rules.equations

        def marched() -> Solution:
            return _marched(u, checked, seed, rows, lambda: clock() - began, seconds, watchers, tolerance, plan)

        if u.domain is not None:
            if not u.chosen:
                sentence, misfit = choose_features(u, checked, seed, seconds, rows, processes)
                plan = (sentence,)
                alone = processes.alone and checkpoint is None and work is None and patience is None
                marches = alone and iterations is None and misfit > rows.march_above and can_march(u, checked)
                if marches and u.domain.dimension == 1:
                    return marched()
            widen = wider(u.domain, u.kind, seed)
        system = System(u, checked, processes=processes)
        problem = EquationProblem(system, seed, rules, head_penalty, grow, head, spread, widen)

        def error() -> float:
            return estimated_error(problem.system, checked, seed)

        stint = rows.operations_in(seconds) if marches and seconds is not None else math.inf
        run = SolveRun(
            problem, limits, watchers, clock, began, stint, lambda: not error() < max(tolerance, ORDER_OF_DATA)
        )
        path = None if checkpoint is None else path_of(checkpoint)
        taken_up = resume and path is not None and processes.from_first(path.exists)
        status = run.run_from(path, u) if path is not None and taken_up else run.run()
        found = error()
        if marches and not found < max(tolerance, ORDER_OF_DATA) and status is not Status.SECONDS_SPENT:
            theta, W, features = run.kept.theta, run.kept.W, u.features
            slabs = marched()
            if slabs.error < found:
                return slabs
            u.take(features, W)
            problem.store(theta, W)
            if status is Status.NOT_SOLVED:
                status, found = run.go_on(), error()
        notes = [*plan, *run.notes, *ending(status, found, tolerance)]
        if u.domain is None and processes.alone and not found <= tolerance:
            most = run.operations * (rows.trial_share if run.journal.status in SPENT else 1.0)
            other = better_kind(u, checked, seed, run.kept_misfit(), most, rows)
            notes += [] if other is None else [other]
        status = verdict(status, found, tolerance)
        residuals = run.residuals()
        return Solution(
            u,
            status,
            run.history,
            plan=plan,
            residuals=residuals,
            notes=notes,
            error=found,
            tolerance=tolerance,
            equations=checked,
            intervals=run.intervals(),
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
    plan: tuple[str, ...],
) -> Solution:
    """Return the result of marching in time."""
    assert u.domain is not None
    assert u.domain.time is not None
    made = march(u, equations, seed, rows, spent, seconds, listeners)
    made.store(u)
    reached = made.slabs[-1].end if made.slabs else float(u.domain.low[u.domain.time])
    notes = [*plan, f"marched in time in {len(made.slabs)} slabs: the misfit of short runs over all times stayed high"]
    if made.status is not Status.CONVERGED:
        notes.append(
            f"the last time was not reached: the field is solved up to {reached:.4g} and that slab goes on beyond"
        )
    error, residuals = made.error, made.residuals(equations)
    status = verdict(made.status, error, tolerance)
    notes += ending(made.status, error, tolerance)
    return Solution(
        u,
        status,
        made.history,
        plan=plan,
        residuals=residuals,
        notes=notes,
        error=error,
        tolerance=tolerance,
        equations=equations,
    )
