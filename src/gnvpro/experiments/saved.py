"""Runs read back from disk: the whole ones, and what is wrong with the others."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gnvpro.experiments.catalogue import EXPERIMENTS, SETS
from gnvpro.experiments.numbers import title
from gnvpro.experiments.run import CONFIG, HISTORY, METRICS, PREDICTIONS, read_json
from gnvpro.experiments.snapshots import Snapshots

ORDER = ("gnvpro", "lbfgs-vpro", "gauss-newton", "adam", "nesterov")
CURVES = ("work", "seconds", "loss", "validation_loss", "accuracy", "validation_accuracy", "level")


@dataclass(frozen=True)
class SavedRun:
    """One finished run."""

    directory: Path
    config: dict[str, Any]
    metrics: dict[str, Any]
    history: dict[str, list[float | None]]

    @property
    def experiment(self) -> str:
        """Its experiment."""
        return str(self.config["experiment"])

    @property
    def method(self) -> str:
        """The method that trained it."""
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.config["seed"])

    @property
    def tuned(self) -> dict[str, float]:
        """Settings that were changed by hand."""
        return dict(self.config["variant"])

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays kept for figures; empty if there are none."""
        found: dict[str, np.ndarray] = {}
        for name in (PREDICTIONS, Snapshots.FILE):
            if (self.directory / name).is_file():
                # opened here: numpy leaves the file open when the archive in it is damaged
                with open(self.directory / name, "rb") as handle, np.load(handle) as file:
                    found |= {key: file[key] for key in file.files}
        return found

    @property
    def tuned_text(self) -> list[str]:
        """Each setting that was changed by hand, in words."""
        return [f"{name.replace('_', ' ')} {value:g}" for name, value in self.tuned.items()]

    def label(self, among: Iterable[SavedRun]) -> str:
        """Its method, with its settings if the runs it is shown with have several."""
        return f"{title(self.method)}, {self.config['settings']}" if len(settings_of(among)) > 1 else title(self.method)


def find(directory: Path) -> tuple[list[SavedRun], list[str]]:
    """The whole runs below a directory, and a sentence for each that is not."""
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no directory {directory}; give the directory that gnvpro run had as --out")
    runs, problems = [], []
    for path in sorted(directory.rglob(CONFIG)):
        if is_equation(path):
            continue
        try:
            runs.append(read(path.parent))
        except (ValueError, OSError) as error:
            problems.append(f"{path.parent.relative_to(directory)}: {error}")
    if not runs and not (not problems and any(is_equation(path) for path in directory.rglob(CONFIG))):
        why = "; ".join(problems) or f"no {CONFIG} is in it or below"
        raise ValueError(f"{directory} holds no finished run ({why}); make some with gnvpro run")
    names = list(EXPERIMENTS)
    runs.sort(key=lambda run: (names.index(run.experiment), run.config["settings"], ORDER.index(run.method), run.seed))
    return runs, problems


def is_equation(path: Path) -> bool:
    """Whether a configuration is of an equation, which `equation_report` shows."""
    try:
        return read_json(path).get("kind") == "equation"
    except (ValueError, OSError):
        return False


def read(directory: Path) -> SavedRun:
    """Read one run; a ValueError says what is missing or wrong."""
    for name in (METRICS, HISTORY):
        if not (directory / name).is_file():
            raise ValueError(f"it is not finished: {name} is missing")
    config, metrics = read_json(directory / CONFIG), read_json(directory / METRICS)
    missing = {"experiment", "method", "seed", "settings", "variant", "loss"} - config.keys()
    missing |= {"work", "seconds", "inner_seconds", "data", *SETS} - metrics.keys()
    if missing:
        raise ValueError(f"{CONFIG} or {METRICS} lacks {', '.join(sorted(missing))}")
    if config["experiment"] not in EXPERIMENTS or config["method"] not in ORDER:
        raise ValueError(f"{CONFIG} names an unknown experiment or method")
    if not isinstance(config["variant"], dict):
        raise ValueError(f"{CONFIG} is damaged: variant should be an object")
    key = "relative_error" if config["loss"] == "least_squares" else "accuracy"
    if any(not isinstance(metrics[name], dict) or key not in metrics[name] for name in SETS):
        raise ValueError(f"{METRICS} lacks a {key}")
    with open(directory / HISTORY, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or any(name not in rows[0] for name in CURVES):
        raise ValueError(f"{HISTORY} is empty or not a history")
    try:
        history = {name: [number(row[name]) for row in rows] for name in CURVES}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{HISTORY} is damaged ({error})") from error
    return SavedRun(directory, config, metrics, history)


def number(text: str | None) -> float | None:
    """A cell as a finite number, or None."""
    value = float(text) if text else None
    return value if value is not None and math.isfinite(value) else None


def by_experiment(runs: Iterable[SavedRun]) -> dict[str, list[SavedRun]]:
    """Runs of each experiment, in their order."""
    groups: dict[str, list[SavedRun]] = {}
    for run in runs:
        groups.setdefault(run.experiment, []).append(run)
    return groups


def standard(runs: Iterable[SavedRun]) -> list[SavedRun]:
    """Runs with the catalogue's settings; the others are for the tuning panels."""
    return [run for run in runs if not run.tuned]


def settings_of(runs: Iterable[SavedRun]) -> list[str]:
    """The settings that occur, in their order."""
    return sorted({str(run.config["settings"]) for run in runs})


def first_of_each(runs: Iterable[SavedRun]) -> list[SavedRun]:
    """The first seed of every method and settings: what figures show of several seeds."""
    chosen: dict[tuple[str, str], SavedRun] = {}
    for run in standard(runs):
        chosen.setdefault((run.config["settings"], run.method), run)
    return list(chosen.values())
