"""Dense, Krylov or hybrid steps: processor seconds to a ladder of accuracies on the paper's problems, and those of `auto`.

    GNVPRO_DATA=DIR python benchmarks/auto.py [--problems cdr dcr ...] [--seeds 0 1 2] [--seconds 15] [--repetitions 2]

Each problem is trained on one thread by each solver until its seconds are up, and the same again, solvers in turn: every
iteration counts with the less of its seconds, since a shared machine is slow at times. The accuracies are values of the
training objective, a factor of sqrt(10) apart, down to the least that the best solver reaches on the median seed within
its seconds; a time is the median over the seeds. Goal: auto at most 1.2 times the better of dense and Krylov, everywhere.

Not in the list is Indian Pines: its exact step has 9072 directions, 2.6 GB of matrices and 8e12 flops an iteration.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import gnvpro
from gnvpro.experiments.catalogue import EXPERIMENTS, spread
from gnvpro.experiments.run import initial
from gnvpro.experiments.settings import adjusted

SOLVERS = ("dense", "krylov", "hybrid", "auto")


@dataclass(frozen=True)
class Case:
    """A problem of the paper: the stated or the recommended settings, a part of its samples, another depth."""

    experiment: str
    paper: bool = False
    samples: int | None = None
    depth: int | None = None  # one level of this depth, instead of the levels of the settings
    seconds: float = 1.0  # times --seconds


CASES = {
    "ellipse": Case("ellipse"),
    "cdr": Case("cdr"),
    "cdr-stated": Case("cdr", paper=True),
    "dcr-1200": Case("dcr", samples=1200, depth=8, seconds=2.0),
    "peaks": Case("peaks"),
}


class Enough(Exception):
    """The seconds are up."""


@dataclass(frozen=True)
class Curve:
    """What a run had reached when: processor seconds and the least objective so far."""

    seconds: list[float]
    losses: list[float]

    def time_to(self, loss: float) -> float:
        """Seconds until the objective was that small; infinite where it never was."""
        return next((s for s, value in zip(self.seconds, self.losses, strict=True) if value <= loss), math.inf)


def quickest(curves: list[Curve]) -> Curve:
    """One curve from repetitions of a run: the least seconds of each iteration."""
    length = min(len(curve.losses) for curve in curves)
    losses = curves[0].losses[:length]
    assert all(curve.losses[:length] == losses for curve in curves), "a run repeated is the same run"
    steps = [[b - a for a, b in itertools.pairwise([0.0, *curve.seconds[:length]])] for curve in curves]
    return Curve(list(itertools.accumulate(map(min, zip(*steps, strict=True)))), losses)


def load(case: Case, seed: int, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """The training set."""
    experiment = EXPERIMENTS[case.experiment]
    loaded = experiment.load(seed, data_dir)
    settings = experiment.settings(case.paper)
    if settings.input_spread is not None:
        loaded = spread(loaded, settings.input_spread)
    inputs, targets = loaded.split.train
    return inputs[: case.samples], targets[: case.samples]


def trained(case: Case, train: tuple[Tensor, Tensor], solver: str, seed: int, limit: float) -> Curve:
    """One run."""
    experiment = EXPERIMENTS[case.experiment]
    settings = experiment.settings(case.paper)
    training = settings.methods["gnvpro"]
    levels = 1 if case.depth else training.levels
    model = initial(experiment, train[0].shape[1], case.depth or training.depth, seed)
    records: list[gnvpro.Record] = []
    seconds: list[float] = []
    begun = time.process_time()

    def keep(record: gnvpro.Record) -> None:
        records.append(record)
        seconds.append(time.process_time() - begun)
        if seconds[-1] > limit:
            raise Enough

    with contextlib.suppress(Enough):
        gnvpro.train(
            model,
            *train,
            loss=experiment.loss,
            theta_penalty=settings.penalty(),
            head_penalty=settings.head_penalty,
            # With levels the budget decides when to go on: the stated one. Krylov steps are cheaper by the unit, and
            # get as many units as take them about as long.
            work=1e6 if levels == 1 else training.work * (4 if solver == "krylov" else 1),
            method=replace(adjusted(training, solver=solver).method, levels=levels),
            listeners=keep,
        )
    losses, least = [], math.inf
    for record in records:
        least = min(least, record.loss)
        losses.append(least)
    return Curve(seconds, losses)


def ladder(runs: dict[str, list[Curve]]) -> list[float]:
    """Objectives a factor apart, from the first ones down to what the best solver reaches on the median seed."""
    first = statistics.median(curve.losses[0] for curves in runs.values() for curve in curves)
    least = min(statistics.median(curve.losses[-1] for curve in curves) for curves in runs.values())
    top = 2 * math.floor(math.log10(first))
    values = [10.0 ** (k / 2) for k in range(top, top - 60, -1)]
    return [value for value in values if value >= least]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=15.0, help="of the processor, for each run")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for solver in SOLVERS:  # what torch does once a process is nobody's cost
        trained(CASES["ellipse"], load(CASES["ellipse"], 0, args.data_dir), solver, 0, 0.2)
    for name in args.problems:
        case = CASES[name]
        limit = args.seconds * case.seconds
        runs: dict[str, list[Curve]] = {solver: [] for solver in SOLVERS}
        for seed in args.seeds:
            train = load(case, seed, args.data_dir)
            rounds = [
                [trained(case, train, solver, seed, limit) for solver in SOLVERS] for _ in range(args.repetitions)
            ]
            for solver, repeated in zip(SOLVERS, zip(*rounds, strict=True), strict=True):
                runs[solver].append(quickest(list(repeated)))
        print(f"\n{name}, {len(args.seeds)} seeds, {limit:g} s a run: seconds\n")
        print("| Phi | dense | Krylov | hybrid | auto | auto / better of dense and Krylov |\n|---|---|---|---|---|---|")
        for value in ladder(runs):
            times = [statistics.median(curve.time_to(value) for curve in runs[solver]) for solver in SOLVERS]
            better = min(times[:2])
            ratio = f"{times[-1] / better:.2f}" if better < math.inf else "-"
            print(f"| {value:.1e} | {' | '.join(map(cell, times))} | {ratio} |", flush=True)


def cell(seconds: float) -> str:
    """For the table."""
    return f"{seconds:.2f}" if seconds < math.inf else "-"


if __name__ == "__main__":
    main()
