"""Run a simulator where the surrogate is least sure, with a journal that survives kills.

The journal is a JSON file, replaced whole after every run. What a run does next depends on the journal and the seed alone, so
that a killed exploration goes on as if nothing had happened.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

from gnvpro.arguments import check_choice, check_count
from gnvpro.files import read_json, write_json
from gnvpro.surrogate.acquisition import GOALS
from gnvpro.surrogate.likelihood import Array
from gnvpro.surrogate.surrogate import Surrogate

KIND = "gnvpro exploration 1"
FIRST_PER_INPUT, LEAST_FIRST = 5, 6  # samples of a Latin hypercube before the first surrogate


def explore(
    simulator: Callable[[Array], Any] | Sequence[str],
    bounds: Sequence[tuple[float, float]],
    *,
    runs: int,
    journal: str | Path,
    goal: str = "accuracy",
    level: float | None = None,
    first: int | None = None,
    batch: int = 1,
    random_state: int = 0,
    surrogate: Surrogate | None = None,
) -> Surrogate:
    """Run a simulator at points that the surrogate suggests, and fit it to all runs.

    Args:
        simulator: a function of one point (inputs,) that returns a number or several, or a command such as
            ["./simulate", "--a", "{0}", "--b", "{1}"]: {i} is input i, and its last line of output holds the numbers.
        bounds: (low, high) of every input.
        runs: how many runs in all, those of the journal included.
        journal: a JSON file with all runs. An exploration that was killed goes on from it.
        goal, level: see `Surrogate.suggest`.
        first: runs of a Latin hypercube before the first surrogate; by default five per input.
        batch: suggestions from one surrogate.
        random_state: seed of the Latin hypercube and the candidates.
        surrogate: settings of the surrogate, an unfitted one.

    Returns:
        The surrogate of all runs.

    Raises:
        ValueError: the journal is of another exploration, or the simulator returned no numbers.
    """
    check_choice("goal", goal, GOALS)
    check_count("runs", runs, 3)
    box = np.array(bounds, dtype=np.float64)
    if box.ndim != 2 or box.shape[1] != 2 or not (box[:, 0] < box[:, 1]).all():
        raise ValueError(f"bounds must be a list of (low, high) with low < high, got {bounds!r}")
    count = max(LEAST_FIRST, FIRST_PER_INPUT * len(box)) if first is None else check_count("first", first, 3)
    count = min(count, runs)
    path = Path(journal)
    settings = {"kind": KIND, "bounds": box.tolist(), "first": count, "random_state": random_state}
    X, Y = _read(path, settings)
    run = simulator if callable(simulator) else _command(simulator)
    design = box[:, 0] + (box[:, 1] - box[:, 0]) * qmc.LatinHypercube(len(box), rng=random_state).random(count)
    model = Surrogate(random_state=random_state) if surrogate is None else surrogate
    pending: list[Array] = []
    while len(X) < runs:
        if len(X) < count:
            point = design[len(X)]
        else:
            if not pending:
                model.fit(np.array(X), _targets(Y))
                number = min(check_count("batch", batch, 1), runs - len(X))
                pending = list(model.suggest(number, goal=goal, level=level, bounds=bounds))
            point = pending.pop(0)
        values = np.atleast_1d(np.asarray(run(point), dtype=np.float64))
        if values.ndim != 1 or not np.isfinite(values).all() or (Y and len(values) != len(Y[0])):
            raise ValueError(
                f"simulator must return {len(Y[0]) if Y else 'finite'} numbers, got {values} at {point.tolist()}"
            )
        X.append(point.tolist())
        Y.append(values.tolist())
        write_json(path, settings | {"X": X, "y": Y})
    return model.fit(np.array(X), _targets(Y))


def _targets(Y: list[list[float]]) -> Array:
    y = np.array(Y)
    return y[:, 0] if y.shape[1] == 1 else y


def _read(path: Path, settings: dict[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    if not path.exists():
        return [], []
    content = read_json(path)
    for name, value in settings.items():
        if content.get(name) != json.loads(json.dumps(value)):
            raise ValueError(
                f"journal {path} has {name}={content.get(name)!r}, this exploration {value!r}; name another journal"
            )
    return content["X"], content["y"]


def _command(words: Sequence[str]) -> Callable[[Array], Array]:
    """Return a function that runs a command."""

    def run(point: Array) -> Array:
        line = [word.format(*(repr(float(v)) for v in point)) for word in words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"simulator {line} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
        try:
            return np.array([float(each) for each in done.stdout.strip().splitlines()[-1].replace(",", " ").split()])
        except (IndexError, ValueError) as error:
            raise ValueError(f"the last line that simulator {line} printed must hold numbers ({error})") from error

    return run
