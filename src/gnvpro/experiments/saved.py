"""Runs read back from disk: the whole ones, and what is wrong with the others."""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gnvpro.experiments.catalogue import EXPERIMENTS, SETS
from gnvpro.experiments.experiment_run import OVERRIDES, PREDICTIONS
from gnvpro.experiments.numbers import title
from gnvpro.experiments.snapshots import Snapshots
from gnvpro.experiments.style import LOOKS, shade
from gnvpro.files import CONFIG, HISTORY, METRICS, kind_of_run, read_json

CURVES = ("work", "seconds", "loss", "validation_loss", "accuracy", "validation_accuracy", "level")

MAX_FILE_BYTES = 10**8  # of a JSON or CSV file
MAX_ARRAY_BYTES = 4 * 10**9  # of all arrays of a run


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
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of its experiment, if any."""
        return EXPERIMENTS[self.experiment].classes

    @property
    def tuned(self) -> dict[str, float]:
        """Settings that were changed by hand."""
        return dict(self.config["variant"])

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays kept for figures; empty if there are none. A damaged archive is a ValueError that names it."""
        found: dict[str, np.ndarray] = {}
        for name in (PREDICTIONS, Snapshots.FILE):
            path = self.directory / name
            if not path.is_file():
                continue
            try:
                with zipfile.ZipFile(path) as archive:
                    size = sum(entry.file_size for entry in archive.infolist())
                if size > MAX_ARRAY_BYTES:
                    raise ValueError(f"its arrays take {size:.0e} bytes, so gnvpro did not write it")
                # opened here: numpy leaves the file open when the archive in it is damaged
                with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
                    found |= {key: file[key] for key in file.files}
            except Exception as error:  # numpy and zipfile do not document which ones they raise
                raise ValueError(f"{name} is damaged ({error})") from error
        return found

    @property
    def tuned_text(self) -> list[str]:
        """Each setting that was changed by hand, in words."""
        return [f"{name.replace('_', ' ')} {value:g}" for name, value in self.tuned.items()]

    def label(self, among: Iterable[SavedRun]) -> str:
        """Its method, with its settings if the runs it is shown with have several."""
        return f"{title(self.method)}, {self.config['settings']}" if len(settings_of(among)) > 1 else title(self.method)

    def colour(self, among: Iterable[SavedRun]) -> str:
        """Return the colour of its method, shaded by the position of its settings among all settings shown."""
        return shade(LOOKS[self.method].colour, settings_of(among).index(self.config["settings"]))


def find(directory: Path) -> tuple[list[SavedRun], list[str]]:
    """Return the complete runs below a directory, and a sentence for each incomplete one."""
    runs, problems = [], []
    for path in sorted(directory.rglob(CONFIG)):
        if kind_of_run(path) is not None:
            continue
        try:
            runs.append(read(path.parent))
        except (ValueError, OSError) as error:
            problems.append(printable(f"{path.parent.relative_to(directory)}: {error}"))
    if not runs and not (not problems and any(kind_of_run(path) for path in directory.rglob(CONFIG))):
        why = "; ".join(problems) or f"no {CONFIG} is in it or below"
        raise ValueError(f"{directory} holds no finished run ({why}); make some with gnvpro run")
    names, methods = list(EXPERIMENTS), list(LOOKS)
    runs.sort(
        key=lambda run: (names.index(run.experiment), run.config["settings"], methods.index(run.method), run.seed)
    )
    return runs, problems


def read(directory: Path) -> SavedRun:
    """Read one run; raise a ValueError with the reason if something is missing or wrong."""
    for name in (CONFIG, METRICS, HISTORY):
        path = directory / name
        if not path.is_file():
            raise ValueError(f"it is not finished: {name} is missing")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{name} is larger than {MAX_FILE_BYTES:.0e} bytes, so gnvpro did not write it")
    try:
        config, metrics = read_json(directory / CONFIG), read_json(directory / METRICS)
    except RecursionError:
        raise ValueError(f"{CONFIG} or {METRICS} is damaged: its objects are nested without end") from None
    missing = {"experiment", "method", "seed", "settings", "variant", "loss"} - config.keys()
    missing |= {"work", "seconds", "inner_seconds", "data", *SETS} - metrics.keys()
    if missing:
        raise ValueError(f"{CONFIG} or {METRICS} lacks {', '.join(sorted(missing))}")
    _check(config, metrics)
    try:
        with open(directory / HISTORY, newline="") as file:
            rows = list(csv.DictReader(file))
    except csv.Error as error:
        raise ValueError(f"{HISTORY} is damaged ({error})") from error
    if not rows or any(name not in rows[0] for name in CURVES):
        raise ValueError(f"{HISTORY} is empty or not a history")
    try:
        history = {name: [number(row[name]) for row in rows] for name in CURVES}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{HISTORY} is damaged ({error})") from error
    return SavedRun(directory, config, metrics, history)


def _check(config: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Every value that is used, in its type and range: it goes into file names, labels and the page."""
    name, seed, settings, variant = (config[key] for key in ("experiment", "seed", "settings", "variant"))
    if not isinstance(name, str) or name not in EXPERIMENTS or config["method"] not in list(LOOKS):
        raise ValueError(f"{CONFIG} names an unknown experiment or method")
    loss = EXPERIMENTS[name].loss
    costs = {key: metrics[key] for key in ("work", "seconds", "inner_seconds")}
    fine = {
        f"loss in {CONFIG}": config["loss"] == loss,
        f"seed in {CONFIG}": type(seed) is int and 0 <= seed < 2**63,
        f"settings in {CONFIG}": isinstance(settings, str) and re.fullmatch(r"[\w ,.-]{1,80}", settings),
        f"variant in {CONFIG}": isinstance(variant, dict)
        and variant.keys() <= set(OVERRIDES)
        and _are_numbers(variant),
        f"data in {METRICS}": isinstance(metrics["data"], str) and len(metrics["data"]) <= 1000,
        f"work or seconds in {METRICS}": _are_numbers(costs) and min(costs.values()) >= 0,
        f"a score in {METRICS}": all(_is_score(metrics[part], loss == "least_squares") for part in SETS),
        f"a number in {METRICS}": _is_plain(metrics),
    }
    for what, is_fine in fine.items():
        if not is_fine:
            raise ValueError(f"{what} is damaged: gnvpro run did not write it")


def _is_score(part: Any, squares: bool) -> bool:
    """Mean and deviation of relative errors, or accuracies, overall and by class."""
    try:
        if squares:
            return _is_number(part["relative_error"]["mean"]) and _is_number(part["relative_error"]["std"])
        shares = {k: v for k, v in part["class_accuracy"].items() if v is not None}
        return _are_numbers(shares) and _is_number(part["accuracy"]) and "relative_error" not in part
    except (TypeError, KeyError, IndexError, AttributeError):
        return False


def _are_numbers(values: dict[str, Any]) -> bool:
    return all(map(_is_number, values.values()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # NaN compares False


def _is_plain(value: object) -> bool:
    """Return whether all of its numbers are finite."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return _is_number(value) or value is None or isinstance(value, str | bool)


def printable(text: str) -> str:
    """Without characters that steer a terminal: names of directories may hold any."""
    return "".join(c if c.isprintable() else "?" for c in text)


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
