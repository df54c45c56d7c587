"""`train`: a model, data and a loss in; the trained model and the history of its training out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gnvpro.arguments import (
    check_choice,
    check_count,
    check_inputs,
    check_model,
    check_number,
    check_penalty,
    check_targets,
    check_validation,
    evaluation_mode,
)
from gnvpro.find_head import find_head
from gnvpro.head import Eliminator, with_ones
from gnvpro.history import History, Record
from gnvpro.least_squares import LeastSquares
from gnvpro.losses import HalfSquaredError, Loss, Misfit, get_loss
from gnvpro.methods import METHODS, Method, Settings, Trial
from gnvpro.network import SeparableNetwork, WorkMeter
from gnvpro.newton import Newton, NewtonKrylov
from gnvpro.objective import Problem
from gnvpro.penalties import Tikhonov
from gnvpro.solvers import SOLVERS, DenseSettings, choose_solver, obstacle
from gnvpro.status import Status

DENSE_HEAD = 1500  # entries of W up to which the inner Hessian is assembled


@dataclass(frozen=True)
class Result:
    """A trained model and how it came about."""

    model: nn.Module
    status: Status
    history: History

    @property
    def work(self) -> float:
        """Work units spent: passes, forward or backward, over the whole training set."""
        return self.history[-1].work

    def __repr__(self) -> str:
        return f"Result({self.status.name}: {self.status}, {self.history!r})"


def train(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: str | Loss,
    method: str = "gnvpro",
    head: str | None = None,
    validation: tuple[Any, Any] | None = None,
    theta_penalty: float | Tikhonov | None = None,
    head_penalty: float | None = None,
    work: float = 600.0,
    iterations: int | None = None,
    solver: str = "auto",
    dense: DenseSettings | None = None,
    max_rank: int = 20,
    rtol: float = 1e-2,
    eliminator: Eliminator | None = None,
    seed: int = 0,
    progress: bool = False,
    on_iteration: Callable[[Record], object] | None = None,
) -> Result:
    """Train the model in place.

    Args:
        model: any nn.Module whose output is that of an nn.Linear, or of a 1x1 nn.Conv2d. Parameters with
            requires_grad=False stay as they are.
        inputs: what the model takes, samples first.
        targets: real numbers for least squares; class labels, one-hot or soft labels for classification.
        loss: "least_squares", "logistic", "multinomial", or an object with the methods of `gnvpro.Loss`.
        method: "gnvpro" eliminates the head at every step; "gauss-newton" trains theta and W together.
        head: the name of the last layer; found by running the model when not given.
        validation: a pair (inputs, targets) whose loss (and accuracy) is recorded at every accepted step.
        theta_penalty: alpha in alpha/2 |B theta|^2, or a `Tikhonov` with B. Default 1e-10 for least squares, else 1e-4.
        head_penalty: alpha in alpha/2 |W|^2, the bias included. Same default.
        work: budget in work units, passes over the training set. 0 eliminates the head at the given theta, nothing else.
        iterations: cap on the trial steps.
        solver: "dense" takes exact steps from the whole Gauss-Newton matrix, for up to a few thousand parameters;
            "krylov" the paper's steps; "auto" chooses by size, and the history tells what it chose.
        dense: settings of the dense solver, for example `DenseSettings(memory=1e9)`.
        max_rank: largest Krylov space; it costs two work units a dimension.
        rtol: relative residual at which the Krylov space is large enough.
        eliminator: how the head is eliminated, for example `gnvpro.NewtonKrylov(max_rank=15)`; chosen by default.
        seed: of everything random.
        progress: whether to print a line an iteration.
        on_iteration: called with the `Record` of every iteration, when the model holds the last accepted theta and W.

    Example:
        >>> import torch, gnvpro
        >>> _ = torch.manual_seed(0)
        >>> inputs = torch.rand(200, 2, dtype=torch.float64)
        >>> targets = torch.sin(3 * inputs.sum(1, keepdim=True))
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        >>> result = gnvpro.train(model, inputs, targets, loss="least_squares", work=200)
        >>> bool(torch.allclose(model(inputs), targets, atol=1e-3))
        True
    """
    check_model(model)
    objective = get_loss(loss)
    make_method = METHODS[check_choice("method", method, METHODS)]
    check_choice("solver", solver, SOLVERS)
    budget = check_number("work", work, 0.0)
    cap = math.inf if iterations is None else check_count("iterations", iterations, 0)
    check_count("max_rank", max_rank, 1)
    check_number("rtol", rtol, 0.0)
    check_count("seed", seed, 0)
    default_penalty = 1e-10 if isinstance(objective, HalfSquaredError) else 1e-4
    penalty = check_penalty(default_penalty if theta_penalty is None else theta_penalty)
    alpha_W = check_number("head_penalty", default_penalty if head_penalty is None else head_penalty, 0.0)
    inputs = check_inputs("inputs", inputs, model)

    with evaluation_mode(model):
        network = SeparableNetwork(model, find_head(model, inputs[:2], head), WorkMeter(inputs.shape[0]))
        misfit = check_targets("targets", targets, inputs, network, objective)
        held_out = None
        if validation is not None:
            val_inputs, val_targets = check_validation(validation)
            val_inputs = check_inputs("validation inputs", val_inputs, model)
            held_out = HeldOut(
                network, val_inputs, check_targets("validation targets", val_targets, val_inputs, network, objective)
            )
        problem = Problem(network, inputs, misfit, penalty.bind(model, network.parameters), alpha_W)
        eliminator = eliminator or default_eliminator(misfit, network)
        switches = pick_solver(solver, method, problem, eliminator, dense or DenseSettings())
        settings = Settings(max_rank, rtol, lambda: budget - network.meter.work, switches)
        clock = time.perf_counter()
        state = make_method(problem, eliminator, network.theta(), None, settings)
        if not math.isfinite(state.point.value):
            raise ValueError(
                "the model's features are not finite at its initial parameters, though inputs and parameters are; "
                "scale the inputs or initialise the model with smaller parameters"
            )
        run = Run(network, problem, held_out, clock, budget, on_iteration, progress)
        return Result(model, run.train(state, cap), run.history)


def pick_solver(
    solver: str, method: str, problem: Problem, eliminator: Eliminator, settings: DenseSettings
) -> DenseSettings | None:
    """The settings of the dense solver where it is asked for or best; None for Krylov spaces."""
    settings = settings.resolved(problem.misfit)
    if solver == "dense":
        problem_with_it = obstacle(problem, settings) if method == "gnvpro" else "it needs method='gnvpro'"
        if problem_with_it is not None:
            raise ValueError(f"solver='dense' cannot be used: {problem_with_it}; use solver='krylov' or 'auto'")
        return settings
    wanted = solver == "auto" and method == "gnvpro" and choose_solver(problem, eliminator, settings) == "dense"
    return settings if wanted else None


def default_eliminator(misfit: Misfit, network: SeparableNetwork) -> Eliminator:
    """The SVD for least squares; Newton's method for other losses, on Krylov spaces where the head is large."""
    if isinstance(misfit.loss, HalfSquaredError):
        return LeastSquares()
    entries = network.n_targets * (network.n_features + network.bias)
    return Newton() if entries <= DENSE_HEAD else NewtonKrylov()


@dataclass(frozen=True)
class HeldOut:
    """A validation set."""

    network: SeparableNetwork
    inputs: Tensor
    misfit: Misfit

    def evaluate(self, theta: Tensor, W: Tensor) -> tuple[float, float | None]:
        """Loss and accuracy; passes over it are not work."""
        outputs = with_ones(self.network.features(theta, self.inputs), self.network.bias) @ W.T
        return self.misfit.value(outputs), self.misfit.accuracy(outputs)


class Run:
    """One training run: iterates a method within its budget, keeps the model current and writes the history."""

    def __init__(
        self,
        network: SeparableNetwork,
        problem: Problem,
        held_out: HeldOut | None,
        clock: float,
        budget: float,
        on_iteration: Callable[[Record], object] | None,
        progress: bool,
    ) -> None:
        self.network, self.problem, self.held_out, self.clock, self.budget = network, problem, held_out, clock, budget
        self.on_iteration, self.progress = on_iteration, progress
        self.history = History()
        self._validation: tuple[float | None, float | None] = (None, None)

    def train(self, method: Method, cap: float) -> Status:
        """Iterate until the budget, the cap or the method itself says stop."""
        self.network.store(method.point.theta, method.point.W)
        self.record(method, None)
        if self.network.n_theta == 0:
            return Status.HEAD_ONLY
        while len(self.history) <= cap:
            if self.network.meter.work + method.next_passes > self.budget:
                return Status.WORK_SPENT
            trial = method.iterate()
            if trial is None:
                return method.status
            if trial.accepted:
                self.network.store(method.point.theta, method.point.W)
            record = self.record(method, trial)
            if self.progress:
                print(progress_line(record), flush=True)
            if self.on_iteration is not None:
                self.on_iteration(record)
        return Status.ITERATIONS_SPENT

    def record(self, method: Method, trial: Trial | None) -> Record:
        """Write down where the run stands."""
        point = method.point
        if self.held_out is not None and (trial is None or trial.accepted):
            self._validation = self.held_out.evaluate(point.theta, point.W)
        record = Record(
            iteration=len(self.history),
            loss=point.value,
            misfit=point.misfit,
            gradient_norm=method.gradient_norm() if self.network.n_theta else None,
            radius=trial.radius if trial else None,
            ratio=trial.ratio if trial else None,
            rank=trial.rank if trial else None,
            accepted=trial is None or trial.accepted,
            work=self.network.meter.work,
            seconds=time.perf_counter() - self.clock,
            inner_seconds=self.network.meter.inner_seconds,
            accuracy=self.problem.misfit.accuracy(point.outputs),
            validation_loss=self._validation[0],
            validation_accuracy=self._validation[1],
            solver=trial.solver if trial else None,
            damping=trial.damping if trial else None,
        )
        self.history.append(record)
        return record


def progress_line(record: Record) -> str:
    """One iteration in one line."""
    held_out = "" if record.validation_loss is None else f"  validation {record.validation_loss:.4e}"
    bound = f"damping {record.damping:.1e}" if record.radius is None else f"radius {record.radius:.1e}"
    verdict = "accepted" if record.accepted else "rejected"
    return (
        f"{record.iteration:4d}  loss {record.loss:.4e}{held_out}  {bound}  rank {record.rank}  "
        f"{verdict}  work {record.work:g}  {record.seconds:.1f} s"
    )
