"""One command, one or several runs: each in its own directory, resumable, whole only when its metrics are there.

    DIR/NAME/METHOD-seedS/    config.json, history.csv, model.safetensors, its card model.safetensors.md,
                              predictions.npz and, written last, metrics.json

An interrupted run, or one with a larger budget, continues from checkpoint.pt. The seed draws everything: the data or its
split, the first weights and the batches. A directory that holds another configuration is not touched.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gnvpro
from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.experiments.catalogue import EXPERIMENTS, SETS, scaled
from gnvpro.experiments.metrics import outputs, predictions, scores
from gnvpro.experiments.settings import Experiment, Settings, ThreeSets, as_json
from gnvpro.experiments.snapshots import Snapshots
from gnvpro.extras import need
from gnvpro.files import CONFIG, HISTORY, METRICS, MODEL, read_json, write_json
from gnvpro.methods.gnvpro import SOLVERS
from gnvpro.training.listeners import CSVFile

PREDICTIONS, CARD, CHECKPOINT = "predictions.npz", f"{MODEL}.md", "checkpoint.pt"
BUDGETS = ("work", "seconds")  # a run that is resumed may have more of
LEAST_WORK = 6.0  # forward pass and gradient, one product with the curvature, a trial and its gradient
OVERRIDES = ("theta_penalty", "head_penalty", "learning_rate", "max_rank")


@dataclass(frozen=True)
class Order:
    """The user's choices; None stands for the catalogue's choice."""

    experiment: str
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    work: float | None = None
    data_dir: Path | None = None
    out: Path = Path("runs")
    paper: bool = False
    resume: bool = False
    overwrite: bool = False
    solver: str | None = None
    theta_penalty: float | None = None
    head_penalty: float | None = None
    learning_rate: float | None = None
    max_rank: int | None = None
    seconds: float | None = None

    def variant(self) -> dict[str, float]:
        """The settings that were tuned by hand; they become part of the run's name."""
        values = {name: vars(self)[name] for name in OVERRIDES}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Job:
    """One run: a method and a seed."""

    experiment: Experiment
    settings: Settings
    method: str
    seed: int
    directory: Path
    config: dict[str, Any]


def run(
    order: Order, tell: Callable[[str], object] = lambda text: None, progress: bool = False
) -> list[dict[str, Any]]:
    """Do what was ordered, one run after the other; the metrics of each."""
    jobs = plan(order)
    need("safetensors", "experiments")
    results, loaded, seed = [], None, None
    for job in jobs:
        if order.resume and finished(job.directory, job.config):
            tell(f"{job.directory}: done before")
            results.append(read_json(job.directory / METRICS))
            continue
        if loaded is None or seed != job.seed:
            loaded, seed = load(job, order.data_dir), job.seed
        config = {**job.config, "data": loaded.source}
        prepare(job.directory, config, order.resume, order.overwrite)
        name = f"{job.experiment.name}, {job.method}, seed {job.seed}"
        tell(f"{name}: {config['work']:g} work units, data: {loaded.source}")
        if job.experiment.study is not None:
            tell(f"{name}: first the study of the inner accuracy (Appendix A), which takes a minute or two")
        with explained(job.directory / CHECKPOINT):
            results.append(train(job, loaded, order.resume, progress))
    return results


@contextmanager
def explained(checkpoint: Path) -> Iterator[None]:
    """Add the checkpoint's path and the command that resumes to the message of an interruption."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        written = checkpoint.is_file()
        what = f"checkpoint written to {checkpoint}" if written else "there was nothing yet to write to a checkpoint"
        raise type(interrupt)(f"interrupted; {what}; the same command with --resume continues") from None


def plan(order: Order) -> list[Job]:
    """Return the runs of an order; raise an error for whatever is wrong with it, before anything is done."""
    experiment = EXPERIMENTS[check_choice("experiment", order.experiment, EXPERIMENTS)]
    settings = adjusted(experiment, order)
    methods = [check_choice("method", name, settings.methods) for name in order.methods or settings.methods]
    jobs = []
    for seed in order.seeds:
        check_count("seed", seed, 0)
        for method in methods:
            training = settings.methods[method]
            least = LEAST_WORK * training.levels
            if order.work is not None and order.work < least:
                raise ValueError(
                    f"work={order.work:g} is less than one iteration of {method} needs at each level; "
                    f"give at least {least:g}"
                )
            tuned = "".join(f"-{name.replace('_', '-')}{value:g}" for name, value in order.variant().items())
            config = {
                "experiment": experiment.name,
                "seed": seed,
                "settings": ("paper" if order.paper else "recommended") + (f", {order.solver}" if order.solver else ""),
                "variant": order.variant(),
                "loss": experiment.loss,
                **as_json(settings, method),
            }
            directory = order.out / experiment.name / f"{method}{tuned}-seed{seed}"
            jobs.append(Job(experiment, settings, method, seed, directory, config))
    return jobs


def adjusted(experiment: Experiment, order: Order) -> Settings:
    """The catalogue's settings with what the user chose instead."""
    changed: dict[str, Any] = {}
    for name in (*BUDGETS, *OVERRIDES):
        value = vars(order)[name]
        if name == "max_rank" and value is not None:
            changed[name] = check_count(name, value, 1)
        elif value is not None:
            changed[name] = check_number(name, value, 0.0, strict=name == "learning_rate")
    solver = order.solver or ("krylov" if order.paper else experiment.solver)
    return experiment.settings(order.paper).adjusted(solver=check_choice("solver", solver, SOLVERS), **changed)


def load(job: Job, data_dir: Path | None) -> ThreeSets:
    """Load the sets of a run, scaled according to its settings."""
    return scaled(job.experiment.load(job.seed, data_dir), job.settings)


def finished(directory: Path, config: dict[str, Any]) -> bool:
    """Return whether this very run is done."""
    if not (directory / METRICS).is_file():
        return False
    saved = read_json(directory / CONFIG)
    return all(saved.get(name) == value for name, value in normal(config).items())


def prepare(directory: Path, config: dict[str, Any], resume: bool, overwrite: bool) -> None:
    """Make the directory the run's own, unless it is another's."""
    path = directory / CONFIG
    if path.is_file() and not overwrite:
        saved, now = read_json(path), normal(config)
        goes_on = resume and (directory / CHECKPOINT).is_file() and any(more_of(name, saved, now) for name in BUDGETS)
        for name in {**saved, **now}:
            if saved.get(name) != now.get(name) and not (goes_on and name in BUDGETS):
                raise ValueError(
                    f"{directory} holds another configuration: {name} was {saved.get(name)!r}, now it is "
                    f"{now.get(name)!r}; choose another --out, or --overwrite what is there"
                    + ("; --resume goes on with a larger budget" if name in BUDGETS else "")
                )
        interrupted = (directory / CHECKPOINT).is_file() and not (directory / METRICS).is_file()
        if interrupted and not resume:
            raise ValueError(
                f"{directory} holds an interrupted run; go on with --resume, or begin again with --overwrite"
            )
    directory.mkdir(parents=True, exist_ok=True)
    stale = [METRICS, MODEL, CARD, PREDICTIONS]
    if not resume or overwrite:
        stale += [CHECKPOINT, HISTORY, Snapshots.FILE]
    for name in stale:
        (directory / name).unlink(missing_ok=True)
    write_json(path, config)


def more_of(name: str, saved: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether this budget is larger now; None means no limit."""
    before, after = (math.inf if config.get(name) is None else config[name] for config in (saved, now))
    return after > before


def train(job: Job, loaded: ThreeSets, resume: bool, progress: bool) -> dict[str, Any]:
    """Train, score on all three sets, and write everything down."""
    experiment, training, directory = job.experiment, job.settings.methods[job.method], job.directory
    split = loaded.split
    model = initial(experiment, split.train[0].shape[1], training.depth, job.seed)
    kept: dict[str, Any] = dict(loaded.extras)
    if experiment.study is not None:
        kept |= experiment.study(model, loaded, job.settings, job.seed)
    snapshots = Snapshots(directory, model, split.train[0]) if experiment.snapshots else None
    result = gnvpro.train(
        model,
        *split.train,
        loss=experiment.loss,
        method=dataclasses.replace(training.method, levels=training.levels, seed=job.seed),
        validation=split.validation,
        theta_penalty=job.settings.penalty(),
        head_penalty=job.settings.head_penalty,
        work=training.work,
        seconds=training.seconds,
        iterations=training.iterations,
        keep=training.keep,
        checkpoint=directory / CHECKPOINT,
        resume=resume,
        listeners=[
            *([snapshots] if snapshots else []),
            CSVFile(directory / HISTORY),
            *(["progress"] if progress else []),
        ],
    )
    last = result.history[-1]
    metrics: dict[str, Any] = {
        "experiment": experiment.name,
        "method": job.method,
        "seed": job.seed,
        "data": loaded.source,
        "status": str(result.status),
        "work": last.work,
        "seconds": last.seconds,
        "inner_seconds": last.inner_seconds,
        "objective": last.loss,
    }
    for name in SETS:
        inputs, targets = vars(split)[name]
        computed = outputs(result.model, inputs)
        metrics[name] = scores(experiment.loss, computed, targets)
        kept |= predictions(experiment.loss, name, computed, (inputs, targets))
    how = f"{job.config['settings']} settings, seed {job.seed}"
    card = f"Experiment {experiment.name}: {experiment.summary}; {how}. Data: {loaded.source}."
    result.save(directory / MODEL, notes=card)
    np.savez_compressed(directory / PREDICTIONS, **kept)
    write_json(directory / METRICS, metrics)
    return metrics


def initial(experiment: Experiment, n_inputs: int, depth: int | None, seed: int) -> nn.Module:
    """The network at its first weights, drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return experiment.network(n_inputs, depth)


def normal(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration in the form in which it will be read back."""
    return json.loads(json.dumps(config))
