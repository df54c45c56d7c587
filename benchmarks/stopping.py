"""Where a run that is told nothing ends by itself, and what ten times as long would have gained.

    GNVPRO_DATA=DIR python -m benchmarks.stopping [--problems ellipse diabetes ...] [--seconds 40] [--pays 0.05]

Every problem is trained with the rules of `gnvpro.training.convergence` switched off, for so many processor seconds on one
thread. Then the rules are asked on the history, record by record: where the run would have ended, and Phi there over Phi
after ten times the seconds; where the run had not so many, over its last Phi, with a star.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from benchmarks.auto import CASES, Enough, Problem, drawn
from benchmarks.stochastic import arm, fashion
from torch import Tensor, nn

import gnvpro
from gnvpro.minimize.status import Status
from gnvpro.training import convergence
from gnvpro.training.scores import Improved, Judge, Rise

LONGER = 10


def mlp(*widths: int) -> nn.Module:
    """Tanh layers."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:])).double()


def table(
    load: Callable[[], tuple[Tensor, Tensor]], hidden: int, n_outputs: int, loss: str
) -> Callable[[int], Problem]:
    """A set of scikit-learn, one hidden layer, default penalties."""

    def make(seed: int) -> Problem:
        inputs, targets = load()
        network = drawn(lambda: mlp(inputs.shape[1], hidden, n_outputs), seed)
        penalty = 1e-10 if loss == "least_squares" else 1e-4
        return Problem(network, (inputs, targets), loss, penalty, penalty)

    return make


def scaled(columns: object) -> Tensor:
    """Columns of mean zero and variance one."""
    X = torch.tensor(columns, dtype=torch.float64)
    return (X - X.mean(0)) / X.std(0)


def diabetes() -> tuple[Tensor, Tensor]:
    """442 patients."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return scaled(X), torch.tensor(y, dtype=torch.float64)[:, None]


def cancer() -> tuple[Tensor, Tensor]:
    """569 tumours of two kinds."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return scaled(X), torch.tensor(y)


def digits() -> tuple[Tensor, Tensor]:
    """1797 images of 8 x 8."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return torch.tensor(X) / 16, torch.tensor(y)


def noisy(seed: int) -> Problem:
    """A function of five variables with noise, 1000 samples, two layers of 32; 1000 samples to validate."""
    generator = torch.Generator().manual_seed(seed)
    X = 2 * torch.rand(2000, 5, generator=generator, dtype=torch.float64) - 1
    f = torch.sin(3 * X[:, 0] * X[:, 1]) + X[:, 2].square() - X[:, 3] * X[:, 4]
    Y = (f + 0.3 * torch.randn(2000, generator=generator, dtype=torch.float64))[:, None]
    network = drawn(lambda: mlp(5, 32, 32, 1), seed)
    return Problem(network, (X[:1000], Y[:1000]), "least_squares", 1e-10, 1e-10, validation=(X[1000:], Y[1000:]))


def of_arm(samples: int) -> Callable[[int], Problem]:
    """A planar arm."""

    def make(seed: int) -> Problem:
        bench = arm(samples, 32, torch.float64)
        return Problem(drawn(bench.network, seed), bench.train, bench.loss, *bench.penalties)

    return make


def images(seed: int) -> Problem:
    """Fashion-MNIST, 60,000 images, 784-64-64-10."""
    bench = fashion()
    return Problem(drawn(bench.network, seed), bench.train, bench.loss, *bench.penalties)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "diabetes": table(diabetes, 16, 1, "least_squares"),
    "breast-cancer": table(cancer, 16, 1, "logistic"),
    "digits": table(digits, 32, 10, "multinomial"),
    "noisy": noisy,
    **{name: CASES[name].make for name in ("ellipse", "peaks", "cdr", "dcr-1200", "regression")},
    "arm-2000": of_arm(2000),
    "arm-30000": of_arm(30_000),
    "fashion": images,
}


def long_run(problem: Problem, seconds: float) -> tuple[list[gnvpro.Record], list[float]]:
    """The records until the processor seconds are up, and when each was made."""
    convergence.RULE = convergence.Settling(fall=0.0, pays=0.0)
    records: list[gnvpro.Record] = []
    times: list[float] = []
    begun = time.process_time()

    def keep(record: gnvpro.Record) -> None:
        records.append(record)
        times.append(time.process_time() - begun)
        if times[-1] > seconds:
            raise Enough

    with contextlib.suppress(Enough):
        gnvpro.train(
            problem.model,
            *problem.train,
            loss=problem.loss,
            theta_penalty=problem.theta_penalty,
            head_penalty=problem.head_penalty,
            method=problem.solved_by("auto"),
            validation=problem.validation,
            listeners=keep,
        )
    return records, times


def end(records: Sequence[gnvpro.Record], rule: convergence.Settling) -> tuple[int, Status | None]:
    """The record at which a run without a cap ends, and why; the last one, where it does not."""
    best = Improved()
    for k, record in enumerate(records):
        best, history = best.after(record, Judge()), records[: k + 1]
        if record.solver == "adam-vpro":  # on batches nothing is seen to settle
            continue
        if rule.rests(history, best.iteration) and Rise.of(history) is not None:
            return k, Status.TURNED_UP
        if (status := rule.status(history, capped=False)) is not None:
            return k, status
    return len(records) - 1, None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--pays", type=float, nargs="+", default=[convergence.RULE.pays])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rules = [replace(convergence.RULE, pays=pays) for pays in args.pays]
    print(
        "| problem | asked per 100 WU | status | WU | seconds | Phi | over ten times as long |\n|---|---|---|---|---|---|---|"
    )
    for name in args.problems:
        records, times = long_run(PROBLEMS[name](args.seed), args.seconds)
        for rule in rules:
            k, status = end(records, rule)
            later = next((j for j, spent in enumerate(times) if spent >= LONGER * times[k]), None)
            over = records[k].loss / records[-1 if later is None else later].loss
            print(
                f"| {name} | {rule.pays:g} | {status.name if status else '-'} | {records[k].work:.0f} | {times[k]:.1f} | "
                f"{records[k].loss:.3g} | {over:.2f}{'*' if later is None else ''} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
