"""Where a run should end by itself: when `Phi` has settled, for several windows and fractions.

    GNVPRO_DATA=DIR python -m benchmarks.stopping [--problems ellipse diabetes ...] [--seconds 20] [--solver auto]

Every problem is trained far beyond the point of interest, with the rule of `gnvpro.training.convergence` switched off. Then the
rule is asked on the history, record by record: the work at which it would have ended the run, and how much higher Phi was
there than at the end of the long run.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from benchmarks.auto import CASES, Problem, drawn
from torch import Tensor, nn

import gnvpro
from gnvpro.training import convergence
from gnvpro.training.convergence import Settling

RULES = [Settling(share=share, fall=fall) for share, fall in itertools.product((0.25, 0.5), (0.003, 0.01, 0.03))]


def table(load: Callable[[], tuple[Tensor, Tensor]], n_outputs: int, loss: str) -> Callable[[int], Problem]:
    """A noisy table of scikit-learn, columns standardised, with 16 hidden units."""

    def make(seed: int) -> Problem:
        inputs, targets = load()
        network = drawn(
            lambda: nn.Sequential(nn.Linear(inputs.shape[1], 16), nn.Tanh(), nn.Linear(16, n_outputs)), seed
        )
        penalty = 1e-10 if loss == "least_squares" else 1e-4
        return Problem(network.double(), (inputs, targets), loss, penalty, penalty)

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


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    **{name: case.make for name, case in CASES.items() if name not in ("cdr-stated", "indian-pines")},
    "diabetes": table(diabetes, 1, "least_squares"),
    "breast-cancer": table(cancer, 1, "logistic"),
}


def long_run(problem: Problem, solver: str, seconds: float) -> gnvpro.Result:
    """Until the seconds are up."""
    convergence.RULE = replace(convergence.RULE, fall=0.0)
    return gnvpro.train(
        problem.model,
        *problem.train,
        loss=problem.loss,
        theta_penalty=problem.theta_penalty,
        head_penalty=problem.head_penalty,
        method=problem.solved_by(solver),
        seconds=seconds,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("WU at which the rule ends the run, and Phi there over Phi at the end of the long run\n")
    rules = " | ".join(f"{rule.share:g}, {rule.fall:g}" for rule in RULES)
    print(f"| problem | Phi at the start | end | WU | status | {rules} |\n|{'---|' * (5 + len(RULES))}")
    for name in args.problems:
        result = long_run(PROBLEMS[name](args.seed), args.solver, args.seconds)
        history = result.history
        cells = []
        for rule in RULES:
            k = next((k for k in range(1, len(history) + 1) if rule.is_settled(history[:k])), None)
            record = history[-1 if k is None else k - 1]
            over = record.loss / history[-1].loss if history[-1].loss > 0 else math.inf
            cells.append("-" if k is None else f"{record.work:.0f}, {over:.3g}")
        print(
            f"| {name} | {history[0].loss:.2e} | {history[-1].loss:.2e} | {result.work:.0f} | {result.status.name} | "
            f"{' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
