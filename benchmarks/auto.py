"""Compare `auto` with dense, Krylov and hybrid steps: Phi at a work budget, and the seconds to a given Phi.

    GNVPRO_DATA=DIR python benchmarks/auto.py [--problems cdr peaks ...] [--seeds 0 1 2] [--tables work seconds]

Two tables per problem, on one thread.

    work      every solver has the problem's budget of work units. Goal: auto at most 1.2 times the lowest Phi of the others.
    seconds   every solver has the same processor seconds. Seconds to values of Phi that are a factor of sqrt(10) apart, down to
              the lowest that the best solver reaches. Goal: auto at most 1.2 times the fastest of the others.

Both are medians over the seeds. The second table also takes medians over repetitions with the solvers in turn,
because on a shared machine the same run may take 1.3 times as long.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from benchmarks.race import problems as race
from benchmarks.stochastic import arm
from torch import Tensor, nn

import gnvpro
from gnvpro.data import dcr, peaks
from gnvpro.experiments.catalogue import EXPERIMENTS, peaks_network, scaled
from gnvpro.experiments.experiment_run import initial
from gnvpro.experiments.settings import adjusted
from gnvpro.methods.auto import Auto

SOLVERS = ("dense", "hybrid", "krylov", "auto")


@dataclass(frozen=True)
class Problem:
    """The initial network, the samples and the settings of a training problem."""

    model: nn.Module
    train: tuple[Tensor, Tensor]
    loss: str
    theta_penalty: float | gnvpro.Tikhonov
    head_penalty: float
    levels: int = 1
    method: gnvpro.methods.GNvpro = gnvpro.methods.GNvpro()  # noqa: RUF009 - it is frozen
    validation: tuple[Tensor, Tensor] | None = None

    def solved_by(self, solver: str, cost: str) -> gnvpro.extend.Method:
        """Return the method with this solver, with the sizes of Krylov spaces that the problem has."""
        from gnvpro.experiments.settings import Training

        chosen = adjusted(Training(self.method, 0.0), solver=solver).method
        if isinstance(chosen.solver, Auto):
            chosen = replace(chosen, solver=replace(chosen.solver, cost=cost))
        return replace(chosen, levels=self.levels)


@dataclass(frozen=True)
class Case:
    """A problem for every seed, its work budget, the seconds of a run, and whether the matrix of dense steps fits."""

    make: Callable[[int], Problem]
    work: float
    seconds: float
    dense: bool = True


def of_paper(name: str, paper: bool = False) -> Callable[[int], Problem]:
    """Return an experiment of the paper with the stated or the recommended settings."""

    def make(seed: int) -> Problem:
        experiment = EXPERIMENTS[name]
        settings = experiment.settings(paper)
        loaded = scaled(experiment.load(seed, None), settings)
        training = settings.methods["gnvpro"]
        model = initial(experiment, loaded.split.train[0].shape[1], training.depth, seed)
        method = training.method
        assert isinstance(method, gnvpro.methods.GNvpro)
        return Problem(
            model,
            loaded.split.train,
            experiment.loss,
            settings.penalty(),
            settings.head_penalty,
            training.levels,
            method,
        )

    return make


def drawn(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a network with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def dcr_1200(seed: int) -> Problem:
    """1200 samples of a coarser mesh, which is simulated in half a minute; one level of depth 8."""
    data = dcr.load(1500, 24, seed=seed, progress=False)
    penalty = gnvpro.Tikhonov(1e-10, gnvpro.time_differences)
    return Problem(drawn(lambda: EXPERIMENTS["dcr"].network(3, 8), seed), data.train, "least_squares", penalty, 1e-10)


def small_peaks(seed: int) -> Problem:
    """2000 points."""
    return Problem(
        drawn(lambda: peaks_network(2, None), seed), peaks.load((2000, 10, 10), seed=seed).train, "multinomial", 5e-6, 1e-8
    )  # fmt: skip


def regression(seed: int) -> Problem:
    """The regression of the race."""
    problem = race.make("regression", seed)
    return Problem(problem.model, problem.train, "least_squares", 1e-10, 1e-10)


def arm_20000(seed: int) -> Problem:
    """A planar arm."""
    bench = arm(20_000, 32, torch.float64)
    return Problem(drawn(bench.network, seed), bench.train, bench.loss, *bench.penalties)


CASES = {
    "ellipse": Case(of_paper("ellipse"), 500, 6),
    "peaks": Case(of_paper("peaks"), 200, 10),
    "peaks-2000": Case(small_peaks, 660, 10),
    "cdr": Case(of_paper("cdr"), 600, 12),
    "cdr-stated": Case(of_paper("cdr", paper=True), 600, 12),
    "dcr-1200": Case(dcr_1200, 600, 25),
    "indian-pines": Case(of_paper("indian-pines"), 500, 40, dense=False),
    "regression": Case(regression, 300, 5),
    "arm-20000": Case(arm_20000, 200, 30),
}


class Enough(Exception):
    """Raised by a listener to end a run that has been observed long enough."""


@dataclass(frozen=True)
class Curve:
    """Processor seconds, and the lowest objective up to then, during a run."""

    seconds: list[float]
    losses: list[float]

    def time_to(self, loss: float) -> float:
        """Seconds until the objective was this small; infinite if it never was."""
        return next((s for s, value in zip(self.seconds, self.losses, strict=True) if value <= loss), math.inf)


def watched(
    problem: Problem, solver: str, enough: Callable[[list[gnvpro.extend.Record], float], bool], **budget: Any
) -> tuple[list[gnvpro.extend.Record], list[float]]:
    """Return the records of one run and the processor seconds at each, until `enough` is true."""
    records: list[gnvpro.extend.Record] = []
    times: list[float] = []
    begun = time.process_time()

    def keep(record: gnvpro.extend.Record) -> None:
        records.append(record)
        times.append(time.process_time() - begun)
        if enough(records, times[-1]):
            raise Enough

    with contextlib.suppress(Enough):
        gnvpro.train(
            problem.model,
            *problem.train,
            loss=problem.loss,
            theta_penalty=problem.theta_penalty,
            head_penalty=problem.head_penalty,
            method=problem.solved_by(solver, "work" if "work" in budget else "operations"),
            validation=problem.validation,
            listeners=keep,
            **budget,
        )
    return records, times


def trained(case: Case, solver: str, seed: int, seconds: float, **settings: Any) -> Curve:
    """Run one solver for a number of processor seconds; return None if the solver cannot run the problem."""
    if solver == "dense" and not case.dense:
        return Curve([math.inf], [math.inf])
    records, times = watched(case.make(seed), solver, lambda _, spent: spent > seconds, **settings)
    return Curve(times, list(itertools.accumulate((record.loss for record in records), min)))


def ladder(runs: dict[str, list[Curve]]) -> list[float]:
    """Values of Phi a constant factor apart, from the first ones down to what the best solver reaches in the median
    run.
    """
    first = statistics.median(curve.losses[0] for curves in runs.values() for curve in curves)
    least = min(statistics.median(curve.losses[-1] for curve in curves) for curves in runs.values())
    top = math.floor(2 * math.log10(first))
    values = [10.0 ** (k / 2) for k in range(top, top - 60, -1)]
    return [value for value in values if value >= least]


def table_of_work(names: list[str], seeds: list[int]) -> None:
    """The lowest Phi of every solver at the problem's work."""
    print(f"\nPhi at a budget of work, medians of {len(seeds)} seeds\n")
    print("| problem | WU | dense | hybrid | Krylov | auto | auto / lowest | of each seed |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        case = CASES[name]
        ends = {
            s: [trained(case, s, seed, math.inf, work=case.work).losses[-1] for seed in seeds] for s in SOLVERS
        }  # fmt: skip
        middle = {s: statistics.median(values) for s, values in ends.items()}
        lowest = min(middle[s] for s in SOLVERS[:-1])
        each = [ends["auto"][k] / min(ends[s][k] for s in SOLVERS[:-1]) for k in range(len(seeds))]
        cells = " | ".join(f"{middle[s]:.2e}" for s in SOLVERS)
        print(
            f"| {name} | {case.work:g} | {cells} | {middle['auto'] / lowest:.2f} | {' '.join(f'{r:.2f}' for r in each)} |",
            flush=True,
        )


def table_of_seconds(name: str, seeds: list[int], repetitions: int, share: float) -> None:
    """Seconds to every Phi."""
    case = CASES[name]
    limit = case.seconds * share
    runs: dict[str, list[Curve]] = {solver: [] for solver in SOLVERS}
    for seed in seeds:
        rounds = [[trained(case, s, seed, limit, **unlimited(case)) for s in SOLVERS] for _ in range(repetitions)]
        for solver, repeated in zip(SOLVERS, zip(*rounds, strict=True), strict=True):
            runs[solver].extend(repeated)
    print(f"\n{name}, seeds {' '.join(map(str, seeds))}, {repetitions} runs of {limit:g} s each: processor seconds\n")
    print("| Phi | dense | hybrid | Krylov | auto | auto / fastest |\n|---|---|---|---|---|---|")
    for value in ladder(runs):
        times = [statistics.median(curve.time_to(value) for curve in runs[solver]) for solver in SOLVERS]
        fastest = min(times[:-1])
        ratio = f"{times[-1] / fastest:.2f}" if fastest < math.inf else "-"
        print(f"| {value:.1e} | {' | '.join(map(cell, times))} | {ratio} |", flush=True)


def unlimited(case: Case) -> dict[str, float]:
    """Return no limit on work, so that `auto` counts operations; with levels, work decides when the next one begins."""
    return {"work": case.work} if case.make(0).levels > 1 else {"iterations": 10**9}


def cell(seconds: float) -> str:
    """Format one cell."""
    return f"{seconds:.2f}" if seconds < math.inf else "-"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", nargs="+", default=["work", "seconds"], choices=["work", "seconds"])
    parser.add_argument("--seconds", type=float, default=1.0, help="times the usual ones of a run")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for solver in SOLVERS:  # let torch load what it loads at first use, so that no measured run pays for it
        trained(CASES["ellipse"], solver, 0, 0.2, work=50)
    if "work" in args.tables:
        table_of_work(args.problems, args.seeds)
    if "seconds" in args.tables:
        for name in args.problems:
            table_of_seconds(name, args.seeds, args.repetitions, args.seconds)


if __name__ == "__main__":
    main()
