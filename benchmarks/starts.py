"""Run the paper's two small classifications, ellipse and peaks, from ten seeds: median and range of every method.

    python -m benchmarks.starts                   both problems, seeds 0 to 9
    python -m benchmarks.starts ellipse --seeds 3

A seed draws the samples and the first weights. The methods of the paper have the settings of `gnvpro run NAME`. The
default call is `gnvpro.train(model, *train, loss=..., theta_penalty=..., head_penalty=..., work=...)` with the same
network, penalties and work and nothing else said. ADAM trains all weights in batches of 32, for the same work. Phi is
the mean loss with its penalties. The last two columns count the seeds with the lowest Phi of all methods, and show
processor seconds of one run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gnvpro
from gnvpro.experiments.catalogue import EXPERIMENTS, scaled
from gnvpro.experiments.experiment_run import initial
from gnvpro.experiments.metrics import outputs, scores
from gnvpro.experiments.settings import Experiment, ThreeSets
from gnvpro.methods import GaussNewton, GNvpro, LBFGSvpro, TorchOptimizer
from gnvpro.solvers import Krylov

NAMES = ("ellipse", "peaks")


@dataclass(frozen=True)
class Row:
    """One run."""

    phi: float
    accuracy: float
    seconds: float


def methods(name: str) -> dict[str, object]:
    """Each method; None is the default call."""
    rank, tolerance = (10, 1e-3) if name == "ellipse" else (20, 1e-3)
    solver = Krylov(rank, tolerance)
    return {
        "GNvpro, the paper's Krylov steps": GNvpro(solver=solver),
        "the default call": None,
        "L-BFGSvpro": LBFGSvpro(),
        "Gauss-Newton on all weights": GaussNewton(solver=solver),
        "ADAM, learning rate 0.01": TorchOptimizer(torch.optim.Adam, lr=1e-2, batch_size=32),
    }


def run(experiment: Experiment, loaded: ThreeSets, method: Any, work: float, seed: int) -> Row:
    """Train the experiment's network and score it on the test set."""
    settings, (inputs, _) = experiment.recommended, loaded.split.train
    model = initial(experiment, inputs.shape[1], None, seed)
    chosen: dict[str, Any] = {} if method is None else {"method": method}
    begin = time.process_time()
    result = gnvpro.train(
        model,
        *loaded.split.train,
        loss=experiment.loss,
        theta_penalty=settings.theta_penalty,
        head_penalty=settings.head_penalty,
        work=work,
        seed=seed,
        **chosen,
    )
    seconds = time.process_time() - begin
    test_inputs, test_targets = loaded.split.test
    accuracy = scores(experiment.loss, outputs(model, test_inputs), test_targets)["accuracy"]
    return Row(result.history[-1].loss, accuracy, seconds)


def spread(values: list[float], show: Callable[[float], str]) -> str:
    """Median and range."""
    return f"{show(statistics.median(values))} ({show(min(values))} to {show(max(values))})"


def table(name: str, seeds: range) -> None:
    """Print the rows of one problem."""
    experiment = EXPERIMENTS[name]
    settings = experiment.recommended
    budget = settings.methods["gnvpro"].work
    rows: dict[str, list[Row]] = {label: [] for label in methods(name)}
    for seed in seeds:
        loaded = scaled(experiment.load(seed, None), settings)
        for label, method in methods(name).items():
            rows[label].append(run(experiment, loaded, method, budget, seed))
    lowest = [min(of[k].phi for of in rows.values()) for k in range(len(seeds))]
    print(f"\n{name}, {budget:g} work units, seeds {seeds.start} to {seeds.stop - 1}: median (range)\n")
    print("| method | Phi | test accuracy | lowest Phi | s |\n|---|---|---|---|---|")
    for label, of in rows.items():
        phi = spread([row.phi for row in of], lambda value: f"{value:.2g}")
        accuracy = spread([row.accuracy for row in of], lambda value: f"{100 * value:.2f}%")
        first = sum(row.phi <= best for row, best in zip(of, lowest, strict=True))
        print(f"| {label} | {phi} | {accuracy} | {first} | {statistics.median(row.seconds for row in of):.1f} |")


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names:
        table(name, range(arguments.seeds))


if __name__ == "__main__":
    main()
