"""Measure when a run without a budget ends, and what four times the work would gain.

    GNVPRO_DATA=DIR python -m benchmarks.stopping [--problems ellipse diabetes ...] [--seconds 40] [--pays 0.05]
    python -m benchmarks.stopping --confirm

Every problem is trained with the rules of `gnvpro.training.convergence` switched off. The rules are then applied to
the history, record by record. The output has the end of the run and Phi there over Phi at four times the work. If
the processor seconds are used up before that, the last Phi and its work are used instead.

The rules were chosen on the problems of `CHOSEN_ON`. The problems of `CONFIRMING` were named before any of them was
run.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from benchmarks.auto import CASES, Problem, drawn, watched
from benchmarks.stochastic import arm, fashion
from torch import Tensor, nn

import gnvpro
from gnvpro.minimize.status import Status
from gnvpro.policy import Policy, StoppingPolicy
from gnvpro.training import convergence
from gnvpro.training.scores import Improved, Judge, Rise

LONGER = 4
NEVER = Policy(stopping=StoppingPolicy(least_work=math.inf, gradient=0.0))


def mlp(*widths: int) -> nn.Module:
    """Tanh layers."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:])).double()


def table(
    load: Callable[[], tuple[Tensor, Tensor]], hidden: int, n_outputs: int, loss: str
) -> Callable[[int], Problem]:
    """Load a scikit-learn set, with one hidden layer and default penalties."""

    def make(seed: int) -> Problem:
        inputs, targets = load()
        network = drawn(lambda: mlp(inputs.shape[1], hidden, n_outputs), seed)
        penalty = 1e-10 if loss == "least_squares" else 1e-4
        return Problem(network, (inputs, targets), loss, penalty, penalty)

    return make


def scaled(columns: object) -> Tensor:
    """Columns of mean zero and variance one."""
    X = torch.as_tensor(columns, dtype=torch.float64)
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


def friedman(which: int, noise: float) -> tuple[Tensor, Tensor]:
    """1000 samples of a function of ten (1) or four (2) variables."""
    from sklearn import datasets

    X, y = getattr(datasets, f"make_friedman{which}")(1000, noise=noise, random_state=0)
    return scaled(X), scaled(y)[:, None]


def swiss_roll() -> tuple[Tensor, Tensor]:
    """Draw 2000 points on a rolled sheet in space; the target is the position along the sheet."""
    from sklearn.datasets import make_swiss_roll

    X, y = make_swiss_roll(2000, random_state=0)
    return scaled(X), scaled(y)[:, None]


def predators() -> tuple[Tensor, Tensor]:
    """Simulate predators and prey at five times for 500 sets of rates of the Lotka-Volterra equations."""
    from scipy.integrate import solve_ivp

    rates = 0.5 + torch.rand(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = [
        solve_ivp(
            lambda _, z, a, b, c, d: (z[0] * (a - b * z[1]), z[1] * (d * z[0] - c)),
            (0, 5),
            (1.0, 1.5),
            args=each,
            t_eval=range(1, 6),
            rtol=1e-8,
        ).y.ravel()
        for each in rates.tolist()
    ]
    return scaled(rates), torch.tensor(np.array(found))


def wine() -> tuple[Tensor, Tensor]:
    """178 wines of three growers."""
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    return scaled(X), torch.tensor(y)


def moons() -> tuple[Tensor, Tensor]:
    """Two half circles that overlap, 1000 points."""
    from sklearn.datasets import make_moons

    X, y = make_moons(1000, noise=0.2, random_state=0)
    return torch.tensor(X), torch.tensor(y)


def spirals() -> tuple[Tensor, Tensor]:
    """Three spirals, 1500 points."""
    labels = torch.arange(1500) % 3
    along = torch.linspace(0.2, 1, 1500, dtype=torch.float64)
    angle = 2 * math.pi * (along + labels / 3)
    return torch.stack([along * angle.cos(), along * angle.sin()], 1), labels


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


CHOSEN_ON: dict[str, Callable[[int], Problem]] = {
    "diabetes": table(diabetes, 16, 1, "least_squares"),
    "breast-cancer": table(cancer, 16, 1, "logistic"),
    "digits": table(digits, 32, 10, "multinomial"),
    "noisy": noisy,
    **{name: CASES[name].make for name in ("ellipse", "peaks", "cdr", "dcr-1200", "regression")},
    "arm-2000": of_arm(2000),
    "arm-30000": of_arm(30_000),
    "fashion": images,
}
CONFIRMING: dict[str, Callable[[int], Problem]] = {
    "friedman-1": table(partial(friedman, 1, 0.5), 16, 1, "least_squares"),
    "friedman-2": table(partial(friedman, 2, 0.0), 16, 1, "least_squares"),
    "swiss-roll": table(swiss_roll, 24, 1, "least_squares"),
    "predators": table(predators, 16, 10, "least_squares"),
    "wine": table(wine, 8, 3, "multinomial"),
    "moons": table(moons, 8, 1, "logistic"),
    "spirals": table(spirals, 16, 3, "multinomial"),
}
PROBLEMS = {**CHOSEN_ON, **CONFIRMING}


@dataclass
class Ending:
    """The end of a run without a limit according to one rule, which is applied after every record."""

    rule: StoppingPolicy
    best: Improved = field(default_factory=Improved)
    at: int | None = None
    status: Status | None = None

    def ask(self, history: Sequence[gnvpro.extend.Record]) -> None:
        """Return whether the run ends at the last record."""
        self.best = self.best.after(history[-1], Judge())
        if self.at is not None or history[-1].solver == "adam-vpro":  # batches never settle
            return
        if convergence.has_converged(self.rule, history):
            self.status = Status.CONVERGED
        elif convergence.rests(self.rule, history, self.best.iteration) and Rise.of(history) is not None:
            self.status = Status.TURNED_UP
        elif convergence.has_settled(self.rule, history, capped=False):
            self.status = Status.SETTLED
        if self.status is not None:
            self.at = len(history) - 1


def table_rows(name: str, seed: int, rules: list[StoppingPolicy], most_seconds: float) -> None:
    """Train one long run and find where each rule would have ended it."""
    endings = [Ending(rule) for rule in rules]

    def enough(records: list[gnvpro.extend.Record], spent: float) -> bool:
        for ending in endings:
            ending.ask(records)
        ends = [records[ending.at].work for ending in endings if ending.at is not None]
        return spent > most_seconds or (len(ends) == len(endings) and records[-1].work >= LONGER * max(ends))

    records, times = watched(PROBLEMS[name](seed), "auto", enough, policy=NEVER)
    for ending in endings:
        k = len(records) - 1 if ending.at is None else ending.at
        later = next((record for record in records if record.work >= LONGER * records[k].work), None)
        last = later or records[-1]
        print(
            f"| {name} | {ending.rule.pays:g} | {ending.status.name if ending.status else '-'} | {records[k].work:.0f} | "
            f"{times[k]:.1f} | {records[k].loss:.3g} | {records[k].loss / last.loss:.2f}"
            + ("" if later else f" ({last.work / records[k].work:.1f} times)")
            + " |",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(CHOSEN_ON), choices=list(PROBLEMS))
    parser.add_argument("--confirm", action="store_true", help="the problems on which nothing was chosen")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a run at most")
    parser.add_argument("--pays", type=float, nargs="+", default=[StoppingPolicy().pays])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rules = [StoppingPolicy(pays=pays) for pays in args.pays]
    print(
        "| problem | asked per 100 WU | status | WU | seconds | Phi | over four times the work |\n|---|---|---|---|---|---|---|"
    )
    for name in CONFIRMING if args.confirm else args.problems:
        table_rows(name, args.seed, rules, args.seconds)


if __name__ == "__main__":
    main()
