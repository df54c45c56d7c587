"""`train`: a model, data and a loss in; the trained model and the history of its training out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.training import checkpoint as checkpoints
from gnvpro.training.arguments import (
    check_choice,
    check_count,
    check_inputs,
    check_method,
    check_model,
    check_number,
    check_penalty,
    check_runs,
    check_sample_weight,
    check_targets,
    check_validation,
    check_work,
    evaluation_mode,
)
from gnvpro.network.find_head import find_head
from gnvpro.head.eliminator import Eliminator, WarmStart
from gnvpro.training.history import History, Record
from gnvpro.head.least_squares import LeastSquares
from gnvpro.training.levels import can_be_refined
from gnvpro.training.listeners import Listener, Progress
from gnvpro.problem.losses import HalfSquaredError, Loss, get_loss
from gnvpro.network.memory import default_memory
from gnvpro.methods.protocol import Settings
from gnvpro.problem.misfit import Misfit
from gnvpro.network.separable import SeparableNetwork, WorkMeter
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.objectives.reduced import Problem, ReducedObjective, ReducedPoint
from gnvpro.problem.penalties import Tikhonov
from gnvpro.training.plan import Data, Plan
from gnvpro.training.run import METHODS, Run
from gnvpro.methods.choose_solver import SOLVERS, DenseSettings, pick_solver
from gnvpro.minimize.status import Status

DENSE_HEAD = 1500  # entries of W up to which the inner Hessian is assembled
SMALL_INPUTS = 200_000  # entries of the inputs up to which one thread is faster


@dataclass(frozen=True)
class Result:
    """A trained model and how it came about.

    >>> import torch, gnvpro
    >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> result = gnvpro.train(torch.nn.Linear(1, 1).double(), x, 2 * x, loss="least_squares", head_penalty=0.0)
    >>> result.status.name, result.work, round(float(result.model.weight.item()), 6)
    ('HEAD_ONLY', 1.0, 2.0)
    """

    model: nn.Module
    status: Status
    history: History

    @property
    def work(self) -> float:
        """Work units spent: passes, forward or backward, over the whole training set."""
        return self.history[-1].work

    def __repr__(self) -> str:
        return f"Result({self.status.name}: {self.status} {self.history!r})"


def train(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: str | Loss,
    method: str = "gnvpro",
    head: str | None = None,
    sample_weight: Any = None,
    validation: tuple[Any, ...] | None = None,
    theta_penalty: float | Tikhonov | None = None,
    head_penalty: float | None = None,
    work: float | Sequence[float] = 600.0,
    iterations: int | None = None,
    solver: str = "auto",
    dense: DenseSettings | None = None,
    memory: float | None = None,
    max_rank: int = 20,
    rtol: float = 1e-2,
    batch_size: int | None = None,
    iterations_per_batch: int = 3,
    sweeps: int | None = None,
    levels: int = 1,
    learning_rate: float = 1e-3,
    keep: str = "last",
    patience: int | None = None,
    eliminator: Eliminator | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 5,
    resume: bool = False,
    progress: bool = False,
    listeners: Sequence[Listener] = (),
    on_iteration: Callable[[Record], object] | None = None,
) -> Result:
    """Train the model in place.

    Args:
        model: any nn.Module whose output is that of an nn.Linear, or of a 1x1 nn.Conv2d. Parameters with
            requires_grad=False stay as they are.
        inputs: what the model takes, samples first.
        targets: real numbers for least squares; class labels, one-hot or soft labels for classification.
        loss: "least_squares", "logistic", "multinomial", or an object with the methods of `gnvpro.Loss`.
        method: "gnvpro" eliminates the head at every step, and so does "lbfgs-vpro"; "gauss-newton", "adam" and
            "nesterov" train theta and W together, from the eliminated head.
        head: the name of the last layer; found by running the model when not given.
        sample_weight: a number for each sample, not negative: how often the sample counts. Only ratios matter.
        validation: a pair (inputs, targets), or these and weights, whose loss (and accuracy) is
            recorded at every accepted step.
        theta_penalty: alpha in alpha/2 |B theta|^2, or a `Tikhonov` with B. Default 1e-10 for least squares, else 1e-4.
        head_penalty: alpha in alpha/2 |W|^2, the bias included. Same default.
        work: budget in work units, passes over the training set, split evenly over the levels unless given for each.
            0 eliminates the head at the given theta and does nothing else.
        iterations: cap on the iterations, all levels and batches together.
        solver: of "gnvpro": "dense" takes exact steps from the whole Gauss-Newton matrix, for up to a few thousand
            parameters; "krylov" the paper's steps; "hybrid" quasi-Newton steps between these; "auto" is dense or hybrid by
            size, begins with cheaper steps as long as they pay, and the history tells what it chose.
        dense: settings of the dense solver, for example `gnvpro.DenseSettings(geodesic=False)`.
        memory: bytes for passes over samples and for the solver. Where a forward pass does not fit, part of it is not kept but
            computed again for every derivative: slower, and the same result. Default: an eighth of the machine's memory, or
            half of what is free where that is less. The data, and features and outputs in float64, come on top.
        max_rank: largest Krylov space; it costs two work units a dimension.
        rtol: relative residual at which the Krylov space is large enough.
        batch_size: samples a batch. For "adam" and "nesterov" the usual mini-batches (default 32); for the other methods
            large random parts of the training set, each trained on for a few iterations (default: the whole set).
        iterations_per_batch: how many, for methods other than "adam" and "nesterov".
        sweeps: over all batches, reshuffled each time; without it, as many as the work budget allows.
        levels: how often to train; between, the network is refined by its `prolongated()` (see `gnvpro.networks.NeuralODE`).
            `result.model` is then the deepest network; the model given stays as trained on the first level.
        learning_rate: of "adam" and "nesterov".
        keep: "last" or "best", the model with the best validation accuracy, or loss where there is no accuracy.
        patience: iterations without a better validation accuracy (or loss) after which to stop; without it, never.
        eliminator: how the head is eliminated, for example `gnvpro.NewtonKrylov(max_rank=15)`; chosen by default.
        seed: of everything random.
        checkpoint: a file to which the state of the run is written every few iterations and on interruption.
        checkpoint_every: how many iterations between two checkpoints; one is also written when 30 seconds have passed.
        resume: whether to go on from the checkpoint if the file exists. The result is that of a run never interrupted.
        progress: whether to show a progress bar, or lines where there is no terminal.
        listeners: objects that hear of every record, such as `gnvpro.listeners.CSVFile`.
        on_iteration: called with the `Record` of every iteration, when the model holds the last accepted theta and W.

    Example:
        >>> import torch, gnvpro
        >>> _ = torch.manual_seed(0)
        >>> inputs = torch.rand(200, 2, dtype=torch.float64)
        >>> targets = torch.sin(3 * inputs.sum(1, keepdim=True))
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        >>> result = gnvpro.train(model, inputs, targets, loss="least_squares", work=400)
        >>> bool(torch.allclose(model(inputs), targets, atol=1e-2))
        True
    """
    check_model(model)
    objective = get_loss(loss)
    default_penalty = 1e-10 if isinstance(objective, HalfSquaredError) else 1e-4
    check_choice("solver", solver, SOLVERS)
    if solver == "dense" and method != "gnvpro":
        raise ValueError(f"solver='dense' is a solver of method='gnvpro', got method={method!r}; leave solver out")
    stochastic_batch = 32 if batch_size is None else check_count("batch_size", batch_size, 1)
    plan = Plan(
        method=check_choice("method", method, METHODS),
        theta_penalty=check_penalty(default_penalty if theta_penalty is None else theta_penalty),
        head_penalty=check_number("head_penalty", default_penalty if head_penalty is None else head_penalty, 0.0),
        budgets=check_work(work, check_count("levels", levels, 1)),
        iterations=math.inf if iterations is None else check_count("iterations", iterations, 0),
        batch_size=batch_size,
        iterations_per_batch=check_count("iterations_per_batch", iterations_per_batch, 1),
        sweeps=math.inf if sweeps is None else check_count("sweeps", sweeps, 1),
        keep_best=check_choice("keep", keep, ("last", "best")) == "best",
        patience=math.inf if patience is None else check_count("patience", patience, 1),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_every=check_count("checkpoint_every", checkpoint_every, 1),
    )
    budget = default_memory() if memory is None else check_number("memory", memory, 0.0, strict=True)
    max_rank = check_count("max_rank", max_rank, 1)
    rtol = check_number("rtol", rtol, 0.0)
    learning_rate = check_number("learning_rate", learning_rate, 0.0, strict=True)
    seed = check_count("seed", seed, 0)
    if plan.keep_best and validation is None:
        raise ValueError('keep="best" needs validation=(inputs, targets) to tell which model is best')
    if patience is not None and validation is None:
        raise ValueError(f"patience={patience} needs validation=(inputs, targets) to tell what is better")
    if levels > 1 and not can_be_refined(model):
        raise ValueError(
            f"levels={levels} needs a model with a module that has a method prolongated(), such as "
            f"gnvpro.networks.NeuralODE; {type(model).__name__} has none"
        )
    if resume and plan.checkpoint is None:
        raise ValueError("resume=True needs checkpoint=PATH to resume from")
    if plan.checkpoint is not None:
        checkpoints.check_writable(plan.checkpoint)
    check_method("eliminator", eliminator, "fit", "an object with a method fit, such as gnvpro.Newton()")
    if on_iteration is not None and not callable(on_iteration):
        raise TypeError(f"on_iteration must be a function of one record, got {on_iteration!r}")
    inputs = check_inputs("inputs", inputs, model)
    weights = check_sample_weight("sample_weight", sample_weight, inputs)

    with evaluation_mode(model), suitable_threads(inputs.numel()):
        network = SeparableNetwork(model, find_head(model, inputs[:2], head), WorkMeter(inputs.shape[0]), memory=budget)
        penalty = plan.theta_penalty.bind(model, network.parameters)
        data = Data(inputs, check_targets("targets", targets, inputs, network, objective, weights))
        if weights is not None:
            data = data.where(weights > 0)
        held_out = None
        if validation is not None:
            val_inputs, val_targets, val_weight = check_validation(validation)
            val_inputs = check_inputs("validation inputs", val_inputs, model)
            check_runs("validation inputs", val_inputs, network)
            val_weight = check_sample_weight("validation weights", val_weight, val_inputs)
            held_out = Data(
                val_inputs, check_targets("validation targets", val_targets, val_inputs, network, objective, val_weight)
            )
        eliminator = eliminator or default_eliminator(objective, network)
        exact = dense or DenseSettings()
        if solver == "dense":  # whether it can be used is told before any work
            pick_solver(
                solver, Problem(network, data.inputs, data.misfit, penalty, plan.head_penalty), eliminator, exact
            )
        settings = Settings(
            eliminator,
            solver,
            exact,
            max_rank,
            rtol,
            learning_rate,
            stochastic_batch,
            seed,
            passes_left=lambda: math.inf,
            by_work=len(plan.budgets) > 1,
        )
        watchers = [*listeners, *([Progress()] if progress else [])]
        identity = run_identity(model, data, held_out, plan, settings, objective, memory) if plan.checkpoint else {}
        run = Run(model, head, data, held_out, plan, settings, watchers, on_iteration, identity, budget)
        if resume and plan.checkpoint is not None and plan.checkpoint.exists():
            run.resume(plan.checkpoint)
        status = run.run()
        return Result(run.network.model, status, run.history)


@contextmanager
def suitable_threads(entries: int) -> Iterator[None]:
    """One thread where arrays are so small that several would mostly wait for each other; as many as before afterwards."""
    before = torch.get_num_threads()
    if entries < SMALL_INPUTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_eliminator(loss: Loss, network: SeparableNetwork) -> Eliminator:
    """The SVD for least squares; Newton's method for other losses, on Krylov spaces where the head is large."""
    if isinstance(loss, HalfSquaredError):
        return LeastSquares()
    entries = network.n_targets * (network.n_features + network.bias)
    return Newton() if entries <= DENSE_HEAD else NewtonKrylov()


def run_identity(
    model: nn.Module,
    data: Data,
    held_out: Data | None,
    plan: Plan,
    settings: Settings,
    loss: Loss,
    memory: float | None,
) -> dict[str, Any]:
    """Everything that decides the numbers of a run, except where theta starts."""
    operator = plan.theta_penalty.operator
    return checkpoints.fingerprint(
        model,
        {
            "inputs": data.inputs,
            "targets": data.misfit.targets,
            "sample_weight": data.misfit.weights,
            "validation inputs": held_out.inputs if held_out else None,
            "validation targets": held_out.misfit.targets if held_out else None,
            "validation weights": held_out.misfit.weights if held_out else None,
        },
        {
            "loss": type(loss).__qualname__,
            "method": plan.method,
            "theta_penalty": plan.theta_penalty.alpha,
            "theta_penalty's operator": getattr(operator, "__qualname__", type(operator).__qualname__),
            "head_penalty": plan.head_penalty,
            "work": list(plan.budgets),
            "iterations": plan.iterations,
            "max_rank": settings.max_rank,
            "rtol": settings.rtol,
            "batch_size": plan.batch_size,
            "iterations_per_batch": plan.iterations_per_batch,
            "sweeps": plan.sweeps,
            "learning_rate": settings.learning_rate,
            "keep": "best" if plan.keep_best else "last",
            "patience": plan.patience,
            "eliminator": repr(settings.eliminator),
            "solver": settings.solver,
            "dense": repr(settings.dense),
            "memory": memory,
            "seed": settings.seed,
        },
    )


def reduced_point(
    model: nn.Module,
    inputs: Tensor,
    misfit: Misfit,
    theta_penalty: float | Tikhonov,
    head_penalty: float,
    memory: float | None = None,
) -> ReducedPoint:
    """The reduced objective at the model's own theta: its value, gradient, curvature and inner Hessian there."""
    with evaluation_mode(model):
        budget = default_memory() if memory is None else memory
        anatomy = find_head(model, inputs[:2], None)
        network = SeparableNetwork(model, anatomy, WorkMeter(inputs.shape[0]), memory=budget)
        penalty = check_penalty(theta_penalty).bind(model, network.parameters)
        problem = Problem(network, inputs, misfit, penalty, head_penalty)
        objective = ReducedObjective(problem, default_eliminator(misfit.loss, network))
        return objective.start(network.theta(), WarmStart(network.W()))
