"""`train`: takes a model, samples and a loss; trains the model in place and returns the history of its training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gnvpro.arguments import EPOCHS, RATE, check_choice, check_count, check_number, with_advice
from gnvpro.methods.names import as_method
from gnvpro.methods.protocol import Method, Solver
from gnvpro.network.evaluation import evaluating, one_thread, warn_of_modes
from gnvpro.network.places import intact
from gnvpro.network.training_mode import changing as changing_modules
from gnvpro.objectives.held_out import HeldOut
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.problem_arguments import check_model, check_validation
from gnvpro.objectives.stream import Stream
from gnvpro.policy import Policy, as_policy
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import Tikhonov
from gnvpro.processes import Processes
from gnvpro.samples.loaders import Loaded, is_loader
from gnvpro.samples.sample_digest import SampleDigest
from gnvpro.samples.several import Inputs, entries_per_sample, tensors_of
from gnvpro.training.agreement import check_settings
from gnvpro.training.checkpoint import Checkpoint, as_checkpoint, path_of
from gnvpro.training.fingerprint import describe, model_parts
from gnvpro.training.history import Record
from gnvpro.training.inspection import warn_of_inputs
from gnvpro.training.levels import can_be_refined
from gnvpro.training.listeners import Listener, as_listeners
from gnvpro.training.plan import mode_sentences, sentences
from gnvpro.training.result import Result
from gnvpro.training.run import Limits
from gnvpro.training.scorer import Scorer
from gnvpro.training.scores import RESERVED, Judge, Metric, Rise, check_metrics
from gnvpro.training.summary import setup_of
from gnvpro.training.train_run import TrainRun

TRIED_SAMPLES = 4  # samples of a loader, read twice to check that they stay the same
HASHED_ROWS = 10_000  # samples per chunk

WRITE_INSTEAD = {
    "epochs": EPOCHS,
    "n_epochs": EPOCHS,
    "num_epochs": EPOCHS,
    "max_epochs": EPOCHS,
    "max_iter": "write iterations=...",
    "lr": RATE,
    "learning_rate": RATE,
    "batch_size": "batches are chosen by the number of samples; for your own write "
    "method=gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(...))",
    "hidden_layer_sizes": "give a model of these layers, gnvpro.networks.MLP(n_inputs, hidden_layer_sizes, n_outputs=...)",
    "optimizer": "write method=...",
    "criterion": "write loss=...",
    "weight_decay": "write theta_penalty=... and head_penalty=...",
    "validation_data": "write validation=(inputs, targets)",
    "callbacks": "write listeners=...",
    "verbose": 'write listeners="progress"',
}


@with_advice(WRITE_INSTEAD)
def train(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    *,
    loss: str | Loss,
    method: str | Method = "gnvpro",
    solver: str | Solver | None = None,
    theta_penalty: float | str | Tikhonov | None = None,
    head_penalty: float | str | None = None,
    sample_weight: Any = None,
    validation: tuple[Any, ...] | None = None,
    metrics: Mapping[str, Metric | Callable[[Tensor, Tensor], object]] | None = None,
    work: float | Sequence[float] | None = None,
    seconds: float | None = None,
    iterations: int | None = None,
    keep: str = "last",
    patience: int | None = None,
    seed: int | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: bool = False,
    listeners: str | Listener | Callable[[Record], object] | Sequence[Any] = (),
    process_group: Any = None,
    policy: Policy | None = None,
) -> Result:
    """Train the model in place.

    Args:
        model: any nn.Module whose output is computed by an nn.Linear, or by a convolution with a kernel of one, and at most
            reshaped afterwards. Parameters with requires_grad=False are not trained.
        inputs: what the model takes, samples first: a tensor, an array or a DataFrame; a tuple or list of them for a model
            that is called with several arguments, a dictionary for one that is called by name.
            Arrays on disk (np.memmap, h5py, zarr) are read in chunks and never held; so is a Dataset or a DataLoader of
            (inputs, targets) or (inputs, targets, weights); leave out targets and sample_weight then.
        targets: real numbers for least squares; class labels, one-hot or soft labels for classification. Left out with a
            Dataset or a DataLoader, which includes its own.
        loss: "least_squares" ("mse", "squared_error"), "logistic", "multinomial" ("cross_entropy"), "log_loss" (logistic for
            one output, else multinomial), or an object with the methods of `gnvpro.extend.Loss`.
        method: "gnvpro" eliminates the head at every step, and so does "lbfgs-vpro"; "adam-vpro" eliminates it on random
            batches, for large sets; "gauss-newton", "adam" and "nesterov" train theta and W together, from the eliminated
            head. Or an object with settings, such as
            `gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-2, batch_size=128)` or
            `gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(10_000))`. Every method takes `levels`, from shallow to
            deep networks, `memory` in bytes, and `seed` (see `gnvpro.extend.Method`).
        solver: how "gnvpro" makes its steps: "dense", exact steps from the whole Gauss-Newton matrix, for up to a few
            thousand parameters; "krylov", the paper's steps; "hybrid", quasi-Newton steps between these; or an object with
            settings, such as `gnvpro.solvers.Krylov(max_rank=30)`. Left out, it is "auto": dense or hybrid by size, cheaper
            steps first as long as they pay; with 10,000 samples or more it begins on random batches. With fewer it tries
            both, judged by a fifth of the samples, if exact steps cost too much and passes cost as much in batches. The
            history says which it was. A model with dropout or BatchNorm in training mode is trained in that mode, by
            method="adam-vpro"; call `model.eval()` before for steps on all samples, without dropout.
        theta_penalty: alpha in alpha/2 |B theta|^2, or a `Tikhonov` with B. "auto", or `Tikhonov("auto", B)`, finds alpha from
            the data during training (see docs/penalties.md) and reports it in `result.chosen`. Default: 1e-10 for least
            squares, else 1e-4.
        head_penalty: alpha in alpha/2 |W|^2, the bias included, or "auto". Same default.
        sample_weight: a number for each sample, not negative (for least squares, also one for each entry of the targets,
            which may be NaN if its weight is zero): how often the sample counts. Only ratios matter. Default: all samples
            count the same.
        validation: a pair (inputs, targets), or these and weights, or a Dataset or DataLoader of them, whose loss (and
            accuracy) is recorded at every accepted step. Default: nothing is validated.
        metrics: functions f(outputs, targets) -> number by name, such as {"mae": f}: recorded as `Record.metrics` at every
            accepted step, on the validation set if there is one, else on the training set. Less is better, unless it is a
            `gnvpro.Metric(f, higher_is_better=True)`. Default: none.
        work: maximum number of work units (passes over the training set), split evenly over the levels unless given for each.
            0 only eliminates the head at the given theta. Default: no limit.
        seconds: maximum wall-clock time, split evenly over the levels; it is exceeded by one step at most. A resumed run
            includes the seconds before. Default: no limit.
        iterations: maximum number of iterations of all levels and batches together. Default: no limit.
            Whatever these three limits, a run ends when its gradient is below its tolerance or its objective has settled
            (`Status.CONVERGED`, `Status.SETTLED`; see `gnvpro.training.convergence`). Methods on random batches cannot
            detect that, and have 600 work units if neither work nor seconds is given. If none of the three is given, nor
            patience, a run also ends when its validation loss has turned up for good (`Status.TURNED_UP`).
        keep: "last" (default); or "best", the model with the best validation accuracy, or validation loss if there is no
            accuracy; or the name of a metric, for the model with its best value.
        patience: stop after this many iterations without a better score (the score that `keep` names). Default: never.
            A run that ends with a validation loss well above its lowest gives a warning.
        seed: seed of everything random in the method, such as the order of batches. The first weights are the model's: call
            `torch.manual_seed` before you make it. Default: the method's own, which is 0.
        checkpoint: a file to which the state of the run is written every few iterations and on interruption, or a
            `gnvpro.Checkpoint` with the interval. Default: nothing is written.
        resume: whether to continue from the checkpoint if the file exists. The result has the same bits as a run that was
            never interrupted. A run that has spent its work, seconds or iterations continues if the limit is larger.
            Default: start again.
        listeners: one or several watchers of the run: "progress" for a progress bar (plain lines without a terminal), a
            function of one `Record`, called when the model holds the last accepted theta and W, or an object such as
            `gnvpro.listeners.CSVFile("history.csv")`. Default: a progress bar if the run takes longer than two seconds
            and standard error is a terminal. "silent" shows nothing.
        process_group: a group of `torch.distributed`, such as `torch.distributed.group.WORLD`. Every process makes this call
            with its own part of the samples (of any size, or none) and of the validation set, and equal other arguments.
            Training begins with the model of rank 0, and ends with the same model and history everywhere. Only rank 0
            writes the checkpoint and calls listeners. Default: this process trains alone.
        policy: the thresholds that choose algorithms, such as `Policy(batches=BatchPolicy(begin_from=None))` (see
            `gnvpro.policy`). Default: the measured ones.

    Returns:
        A `Result`: the model, the status that ended the run, and its history. However the run ends, including by an error or
        Ctrl-C, methods that eliminate the head refit it on all training samples; on batches that adds a record with a note.

    Raises:
        ValueError, TypeError: an argument cannot be used; the message names it and the remedy. The model is unchanged.

    On small inputs (fewer than 200,000 entries), torch uses one thread in the whole process during training, which is faster;
    afterwards it uses as many threads as before.

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
    processes = Processes.of(process_group)
    with processes.together():
        chosen = as_method(method, solver, seed)
        by_itself = method == "gnvpro" and solver is None
        changing = by_itself and is_loader(inputs) and Loaded.of("inputs", inputs, True).changes(TRIED_SAMPLES)
    penalties_found = "auto" in (theta_penalty, head_penalty) or (
        isinstance(theta_penalty, Tikhonov) and theta_penalty.alpha == "auto"
    )
    plain = by_itself and processes.alone and not penalties_found and isinstance(model, nn.Module)
    drawn = sorted({type(module).__name__ for module in changing_modules(model)}) if plain else []
    if drawn:
        chosen = as_method("adam-vpro", None, seed)
        if work is None and seconds is None and iterations is None and patience is None:
            work = as_policy(policy).batches.least_passes
    if not processes.all(not changing):
        chosen = as_method("adam-vpro", None, seed)
        warnings.warn(
            "inputs: samples of the loader change from pass to pass (augmentation), so there is no sum over all of them to "
            "minimise: trained on the loader's batches by method='adam-vpro'; name a method to choose another one",
            UserWarning,
            stacklevel=2,
        )
    with processes.together():
        watchers = as_listeners(listeners)
        named = check_metrics(metrics)
        limits = Limits(
            check_work(chosen.usual_work(seconds is not None) if work is None else work, chosen.levels),
            math.inf if seconds is None else check_number("seconds", seconds, 0.0),
            math.inf if iterations is None else check_count("iterations", iterations, 0),
            math.inf if patience is None else check_count("patience", patience, 1),
            Judge(check_choice("keep", keep, (*RESERVED, *named)), named),
            as_checkpoint(checkpoint) if processes.is_first else None,
        )
        check_model(model)
        if keep == "best" and validation is None:
            raise ValueError('keep="best" needs validation=(inputs, targets) to know which model is best')
        if patience is not None and validation is None and keep not in named:
            raise ValueError(f"patience={patience} needs validation=(inputs, targets) to know what is better")
        if chosen.levels > 1 and not can_be_refined(model):
            raise ValueError(
                f"levels={chosen.levels} needs a model with a module that has a method prolongated(), such as "
                f"gnvpro.networks.NeuralODE; {type(model).__name__} has none"
            )
        samples = None if validation is None else check_validation(validation)
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=PATH to resume from")
    problem = Problem(
        model,
        inputs,
        targets,
        loss=loss,
        theta_penalty=theta_penalty,
        head_penalty=head_penalty,
        sample_weight=sample_weight,
        head=chosen.head,
        eliminator=chosen.eliminator,
        memory=chosen.memory,
        process_group=processes,
        same_samples=chosen.whole_set,
        policy=policy,
    )
    caps = {"work": limits.budgets, "seconds": limits.seconds, "iterations": limits.iterations}
    given = {"validation": validation is not None, "checkpoint": checkpoint is not None, "resume": resume}
    check_settings(processes, {**settings_of(problem, chosen, limits), **caps, **given})
    if chosen.whole_set:
        warn_of_modes(model, stacklevel=4)
    warn_of_inputs(problem, stacklevel=4)
    entries = processes.largest(len(problem.inputs) * entries_per_sample(problem.inputs))
    threads = one_thread(entries < problem.policy.memory.one_thread)
    with intact(model), evaluating(model), threads, processes.noting_failures():
        held_out = None if samples is None else problem.held_out(*samples)
        with processes.together():
            trouble = chosen.why_not(problem) or why_no_search(chosen, problem)
            if trouble is not None:
                raise ValueError(trouble)
        identity = {} if checkpoint is None else run_identity(problem, held_out, chosen, limits)
        measured = None if not named else held_out or problem.held_out(inputs, targets, sample_weight)
        scorer = Scorer(held_out, measured, named, processes)
        scorer.measure(problem.network, problem.theta(), problem.W())  # a metric that fails does so before any work
        if chosen.whole_set:  # else they follow theta
            problem.measure_statistics(problem.theta())
        run = TrainRun(chosen, problem, scorer, limits, watchers, identity)
        path = path_of(checkpoint)
        taken_up = resume and path is not None and processes.from_first(path.exists)
        status = run.run_from(path, model) if path is not None and taken_up else run.run()
        rise = None if limits.judge.keeps_best else Rise.of(run.history)
        if rise is not None:
            rise.warn(stacklevel=3)
        return Result(
            run.problem.working.given,
            status,
            run.history,
            run.chosen,
            setup_of(run.problem, held_out, chosen),
            run.problem,
            (*mode_sentences(drawn), *sentences(problem, chosen, int(entries))),
        )


def why_no_search(method: Method, problem: Problem) -> str | None:
    """Return why this method cannot search for penalties; None if it can."""
    names = [name for name in ("theta", "head") if vars(problem.searched)[name]]
    if not names or (method.parts() is None and method.whole_set):
        return None
    return (
        f'{names[0]}_penalty="auto" needs a method that trains on the whole set at every step, not {method.name!r} with '
        'batches: the evidence is of all samples. Use method="gnvpro" without batches, or give a number'
    )


def check_work(work: object, levels: int) -> tuple[float, ...]:
    """Return the budget of each level: an even share of one number, or one number each."""
    if isinstance(work, list | tuple):
        if len(work) != levels:
            raise ValueError(f"work must be one number, or one per level: got {len(work)} numbers for levels={levels}")
        return tuple(check_number("work", part, 0.0) for part in work)
    return ((math.inf if work == math.inf else check_number("work", work, 0.0)) / levels,) * levels


def settings_of(problem: Problem, method: Method, limits: Limits) -> dict[str, Any]:
    """Return the settings that determine a run's numbers, apart from the samples and the model."""
    return {
        "loss": problem.loss.given,
        "precision": problem.network.dtype,
        "theta_penalty": problem.penalty,
        "head_penalty": problem.head_penalty,
        "eliminator": problem.eliminator,
        "head": problem.network.location.head_name,
        "levels": method.levels,
        "memory": method.memory,
        "seed": method.seed,
        "method": method,
        "policy": problem.policy,
        "keep": limits.judge.keep,
        "metrics": limits.judge.metrics,
        "patience": limits.patience,
    }


def digest_of(inputs: Inputs, misfit: Misfit) -> SampleDigest:
    """Return the hash of samples; samples that are not in memory are read once more."""
    digest = SampleDigest()
    if isinstance(inputs, Stream):
        for chunk in inputs.chunks(HASHED_ROWS):
            digest.update(tensors_of(chunk.data.inputs), chunk.data.targets, chunk.data.weights)
    else:
        digest.update(tensors_of(inputs), misfit.targets, misfit.weights)
    return digest


def run_identity(problem: Problem, held_out: HeldOut | None, method: Method, limits: Limits) -> dict[str, str]:
    """Return everything that determines a run's numbers, except the first theta."""
    samples: dict[str, tuple[Inputs, Misfit]] = {"": (problem.inputs, problem.misfit)}
    if held_out is not None:
        samples["validation "] = (held_out.inputs, held_out.misfit)
    content = {}
    for name, given in samples.items():
        if isinstance(given[0], Stream) and not given[0].same_samples:
            content[f"{name}inputs"] = f"{len(given[0])} samples, which may differ from pass to pass"
            continue
        hashes = digest_of(*given).texts(problem.processes)
        content.update({name + part: text for part, text in hashes.items()})
    settings = {**settings_of(problem, method, limits), "validation": held_out is not None}
    return {
        **model_parts(problem.working.given),
        **content,
        **{name: describe(name, value) for name, value in settings.items()},
    }
