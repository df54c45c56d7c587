"""Measure peak memory and seconds of one GNvpro iteration against the number of samples, for several budgets.

    python benchmarks/memory.py [--out docs/images/memory.png] [--save FILE]

Each point runs in a separate process. It makes random data, trains one iteration (one Krylov space, one trial, the
gradient after it) and reports the peak of its resident memory, and the memory before `train`, data included. A
budget is `memory=` of `gnvpro.methods.GNvpro`; "all kept" is a budget that is never reached; "again" is how often a
sample was linearised again because memory was short. Seconds are processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.network.work import WorkMeter
from gnvpro.networks import ConvNet, NeuralODE
from gnvpro.objectives import problem as problem_module

ALL = 1e15


@dataclass(frozen=True)
class Problem:
    """A network and random data of any number of samples."""

    title: str
    make: Callable[[int], tuple[nn.Module, Tensor, Tensor]]
    loss: str
    samples: tuple[int, ...]
    budgets: tuple[float, ...]
    max_rank: int


def images(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    return ConvNet(), torch.randn(n, 3, 32, 32), torch.randint(10, (n,))


def spectra(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(NeuralODE(55, 8, depth=8), nn.Linear(8, 72)).double()
    inputs = torch.randn(n, 55, dtype=torch.float64)
    return model, inputs, torch.sin(inputs @ torch.randn(55, 72, dtype=torch.float64) / 8)


PROBLEMS = {
    "cifar10": Problem(
        "CIFAR-10 network, float32, rank 2", images, "multinomial", (100, 1000, 10_000), (1e8, 1e9, ALL), 2
    ),
    "cdr": Problem(
        "Neural ODE 55 -> 8, float64, rank 20",
        spectra,
        "least_squares",
        (1000, 3000, 10_000, 30_000),
        (1e7, 1e8, ALL),
        20,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="where to draw the figure")
    parser.add_argument("--only", choices=PROBLEMS, help="one of the problems")
    parser.add_argument("--rank", type=int, help="largest Krylov space, instead of the problem's own")
    parser.add_argument("--samples", type=int, nargs="+")
    parser.add_argument("--budgets", type=float, nargs="+")
    parser.add_argument("--save", type=Path, help="a file of the measurements, added to; drawn from with --out")
    parser.add_argument("--measure", nargs=4, metavar=("PROBLEM", "SAMPLES", "BUDGET", "RANK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, samples, budget, rank = arguments.measure
        print(json.dumps(measure(PROBLEMS[name], int(samples), float(budget), int(rank))))
        return
    results = json.loads(arguments.save.read_text()) if arguments.save and arguments.save.exists() else {}
    print(
        f"{'problem':10}{'samples':>9}{'budget':>10}{'before, MB':>12}{'peak, MB':>10}{'CPU, s':>8}{'again':>7}  loss"
    )
    for name in [arguments.only] if arguments.only else PROBLEMS:
        problem = PROBLEMS[name]
        for budget in arguments.budgets or problem.budgets:
            for samples in arguments.samples or problem.samples:
                key = json.dumps([name, budget, samples])
                if key not in results:
                    results[key] = in_a_process(name, samples, budget, arguments.rank or problem.max_rank)
                    if arguments.save:
                        arguments.save.write_text(json.dumps(results, indent=1))
                r = results[key]
                print(
                    f"{name:10}{samples:9}{shown(budget):>10}{r['before'] / 1e6:12.0f}{r['peak'] / 1e6:10.0f}",
                    f"{r['seconds']:8.1f}{r['again']:7.1f}  {r['loss']:.12g}",
                    sep="",
                    flush=True,
                )
    if arguments.out:
        draw({tuple(json.loads(key)): value for key, value in results.items()}, arguments.out)


def shown(budget: float) -> str:
    return "all kept" if budget == ALL else f"{budget / 1e6:g} MB"


def in_a_process(name: str, samples: int, budget: float, rank: int) -> dict[str, float]:
    script = [sys.executable, __file__, "--measure", name, str(samples), str(budget), str(rank)]
    return json.loads(subprocess.run(script, check=True, capture_output=True, text=True).stdout)


def measure(problem: Problem, samples: int, budget: float, rank: int) -> dict[str, float]:
    """Run one iteration in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    meters: list[WorkMeter] = []

    def noted(n: int) -> WorkMeter:
        meters.append(WorkMeter(n))
        return meters[-1]

    problem_module.WorkMeter = noted  # type: ignore[assignment, misc]
    settings = {"loss": problem.loss, "work": 1e6, "iterations": 1}
    # The first run on little data loads what torch loads at first use, so that no measurement includes it.
    gnvpro.train(*problem.make(10), **settings, solver=gnvpro.solvers.Krylov(1, rtol=0.0))  # type: ignore[arg-type]
    torch.manual_seed(0)
    data = problem.make(samples)
    before, start = peak(), time.process_time()
    result = gnvpro.train(
        *data, **settings, method=gnvpro.methods.GNvpro(solver=gnvpro.solvers.Krylov(rank, rtol=0.0), memory=budget)
    )  # type: ignore[arg-type]
    return {
        "before": before,
        "peak": peak(),
        "seconds": time.process_time() - start,
        "again": meters[-1].made_again / samples,
        "loss": result.history[-1].loss,
    }


def peak() -> float:
    """The largest resident memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def draw(results: dict[tuple[str, float, int], dict[str, float]], path: Path) -> None:
    """Draw memory above seconds, one column per problem, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    figure, axes = plt.subplots(2, len(PROBLEMS), figsize=(9, 6), sharex="col", layout="constrained")
    for column, (name, problem) in enumerate(PROBLEMS.items()):
        upper, lower = axes[0, column], axes[1, column]
        for budget, marker in zip(problem.budgets, "osD^v", strict=False):
            found = sorted((n, r) for (which, of, n), r in results.items() if (which, of) == (name, budget))
            label = shown(budget) if budget == ALL else f"memory = {shown(budget)}"
            samples = [n for n, _ in found]
            upper.loglog(samples, [r["peak"] / 1e6 for _, r in found], marker=marker, label=label)
            lower.loglog(samples, [r["seconds"] for _, r in found], marker=marker, label=label)
        least = sorted(
            (n, min(r["before"] for (w, _, m), r in results.items() if (w, m) == (name, n))) for n in samples
        )
        upper.loglog(*zip(*((n, b / 1e6) for n, b in least), strict=True), "k:", label="before training, with the data")
        upper.set(title=problem.title, ylabel="peak memory of the process, MB" if not column else "")
        lower.set(xlabel="samples", ylabel="seconds of an iteration (processor)" if not column else "")
        upper.legend(fontsize=8)
        upper.yaxis.set_minor_formatter(ScalarFormatter())
        upper.yaxis.set_major_formatter(ScalarFormatter())
        for ax in (upper, lower):
            ax.grid(True, which="major", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
