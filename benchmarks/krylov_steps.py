"""Compare rules of Krylov steps: Phi after 100, 300 and 600 work units on ten small problems, five seeds each.

    python -m benchmarks.krylov_steps [--seeds 0 1 2 3 4] [--problems peaks cdr ...]

    plain       the step for the radius, damped in the quadratic model
    residual    damped in the norm of the residual, as in the paper

Medians over the seeds, and geometric means over all problems and seeds of the ratio to "plain".
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import torch
from benchmarks.auto import CASES, Problem, drawn, regression
from benchmarks.stochastic import arm
from torch import Tensor, nn

import gnvpro
from gnvpro.data import dcr, ellipse, peaks
from gnvpro.experiments.catalogue import EXPERIMENTS, ellipse_network, peaks_network

RULES = {
    "plain": gnvpro.solvers.Krylov(),
    "residual": gnvpro.solvers.Krylov(damped="residual"),
}
BUDGETS = (100, 300, 600)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def small_peaks(seed: int) -> Problem:
    """1000 points."""
    data = peaks.load((1000, 10, 10), seed=seed)
    return Problem(drawn(lambda: peaks_network(2, None), seed), data.train, "multinomial", 5e-6, 1e-8)


def normal_peaks(seed: int) -> Problem:
    """Build the same problem with normally distributed weights, as the authors draw them."""
    problem = small_peaks(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in problem.model[0].parameters():  # type: ignore[index]
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return problem


def small_ellipse(seed: int) -> Problem:
    """1000 points."""
    data = ellipse.load((1000, 10, 10), seed=seed)
    return Problem(drawn(lambda: ellipse_network(2, None), seed), data.train, "logistic", 1e-6, 1e-8)


def small_dcr(seed: int) -> Problem:
    """320 samples of a coarse mesh, depth 4."""
    data = dcr.load(400, 24, seed=seed, progress=False)
    return Problem(drawn(lambda: EXPERIMENTS["dcr"].network(3, 4), seed), data.train, "least_squares", 1e-10, 1e-10)


def small_arm(seed: int) -> Problem:
    """1000 samples."""
    bench = arm(1000, 16, torch.float64)
    return Problem(drawn(bench.network, seed), bench.train, "least_squares", 1e-8, 1e-8)


def wave(seed: int) -> Problem:
    """One variable, several periods."""
    x = torch.linspace(-1, 1, 300, dtype=torch.float64)[:, None]
    return Problem(drawn(lambda: mlp(1, 20, 1), seed), (x, torch.sin(8 * x) * x), "least_squares", 1e-10, 1e-10)


def spirals(seed: int) -> Problem:
    """Three arms."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(600) % 3
    radius = torch.rand(600, generator=generator, dtype=torch.float64)
    angle = 4 * radius + 2 * math.pi / 3 * labels + 0.1 * torch.randn(600, generator=generator, dtype=torch.float64)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return Problem(drawn(lambda: mlp(2, 24, 3), seed), (points, labels), "multinomial", 1e-6, 1e-6)


def digits(seed: int) -> Problem:
    """1000 images of 8 x 8."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    data: tuple[Tensor, Tensor] = torch.tensor(X[:1000] / 16.0), torch.tensor(y[:1000])
    return Problem(drawn(lambda: mlp(64, 16, 10), seed), data, "multinomial", 1e-4, 1e-4)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "ellipse": small_ellipse,
    "peaks": small_peaks,
    "peaks, normal weights": normal_peaks,
    "cdr": CASES["cdr"].make,
    "dcr": small_dcr,
    "regression": regression,
    "arm": small_arm,
    "wave": wave,
    "spirals": spirals,
    "digits": digits,
}


def reached(problem: Problem, solver: gnvpro.solvers.Krylov) -> list[float]:
    """Return the lowest Phi within each budget."""
    history = gnvpro.train(
        problem.model,
        *problem.train,
        loss=problem.loss,
        theta_penalty=problem.theta_penalty,
        head_penalty=problem.head_penalty,
        solver=solver,
        work=max(BUDGETS),
    ).history
    return [min(record.loss for record in history if record.work <= budget) for budget in BUDGETS]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| problem | {' | '.join(f'{rule}, {b} WU' for b in BUDGETS for rule in RULES)} |")
    print("|---" * (1 + len(RULES) * len(BUDGETS)) + "|")
    quotients: dict[tuple[int, str], list[float]] = {(k, rule): [] for k in range(len(BUDGETS)) for rule in RULES}
    for name in args.problems:
        found = {
            rule: [reached(PROBLEMS[name](seed), solver) for seed in args.seeds] for rule, solver in RULES.items()
        }  # fmt: skip
        cells = []
        for k in range(len(BUDGETS)):
            for rule in RULES:
                cells.append(f"{statistics.median(run[k] for run in found[rule]):.2e}")
                quotients[k, rule] += [a[k] / b[k] for a, b in zip(found[rule], found["plain"], strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means = [statistics.geometric_mean(quotients[k, rule]) for k in range(len(BUDGETS)) for rule in RULES]
    print(f"| geometric mean / plain | {' | '.join(f'{mean:.2f}' for mean in means)} |")


if __name__ == "__main__":
    main()
