"""Small batches of least squares: adam-vpro and the default call against slimTrain and ADAM, at equal epochs.

    git clone https://github.com/elizabethnewman/slimTrain CODE
    python -m benchmarks.slimtrain peaks --code CODE --batches 1 5 10 40 --epochs 20
    python -m benchmarks.slimtrain cdr --code CODE --batches 5 10 --epochs 100
    python -m benchmarks.slimtrain peaks --ours --lr 0.0096 0.024 0.06 --batches 1 --epochs 20    adam-vpro at given rates

peaks is MATLAB's function of two variables on [-3, 3]^2, 2000 samples to train and 1000 to validate; cdr the set of
the paper's third experiment, 400 and 200. Networks: a residual network of width 8 (cdr: 16) and depth 8, tanh, to
time 1. slimTrain (Newman, Chung, Chung, Ruthotto 2022): ADAM on theta, and for W on each batch a step with the
features of this batch and the five before, its regularisation chosen by sampled cross-validation. W's step is their
own function, `slimtik_functions/slimtik_solve_kronecker_structure.py`; their repository has neither these problems
nor their networks, so the loop around it is ours. slimTrain and ADAM use the learning rates below, constant as in
their paper or with a cosine schedule; every run is shown. adam-vpro and the default call choose their own. All heads
are eliminated over all training samples at the end, if that lowers the error.

Errors are relative, |X - C| / |C| over the validation set. Seconds are processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import itertools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.data import cdr

RATES, SCHEDULES = (1e-3, 1e-2), ("constant", "cosine")
MEMORY = 5  # number of earlier batches
PENALTY = 1e-10
Sets = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def peaks() -> Sets:
    """Uniform samples of MATLAB's function."""
    points = 6 * torch.rand(3000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 3
    x, y = points.T
    z = 3 * (1 - x) ** 2 * torch.exp(-(x**2) - (y + 1) ** 2) - 10 * (x / 5 - x**3 - y**5) * torch.exp(-(x**2) - y**2)
    z = (z - torch.exp(-((x + 1) ** 2) - y**2) / 3)[:, None]
    return (points[:2000], z[:2000]), (points[2000:], z[2000:])


def cdr_sets() -> Sets:
    """Load CDR with inputs centred and scaled by one constant."""
    data = cdr.load()
    mean, spread = data.train[0].mean(0), data.train[0].std()
    first, second = (((x - mean) / (10 * spread), y) for x, y in (data.train, data.validation))
    return first, second


def network(inputs: int, width: int, outputs: int, seed: int) -> nn.Sequential:
    """Build the same network for all methods."""
    torch.manual_seed(seed)
    features = gnvpro.networks.ResNet(inputs, width, 8, 1.0, dtype=torch.float64)
    return nn.Sequential(features, nn.Linear(width, outputs, dtype=torch.float64))


def error(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """|X - C| / |C|."""
    with torch.no_grad():
        return float((model(data[0]) - data[1]).norm() / data[1].norm())


def with_eliminated_head(model: nn.Sequential, sets: Sets) -> float:
    """Validation error of the model, or with its head eliminated if that is lower."""
    other = copy.deepcopy(model)
    gnvpro.ReducedLoss(other, loss="least_squares", head_penalty=PENALTY).refit(sets[0])
    return min(error(model, sets[1]), error(other, sets[1]))


def loop(
    model: nn.Sequential,
    sets: Sets,
    head: Callable[[Tensor, Tensor], None] | None,
    rate: float,
    schedule: str,
    batch: int,
    epochs: int,
) -> tuple[float, float]:
    """Train with a plain loop; `head` moves W from features and targets, or ADAM does. Return validation error and
    seconds.
    """
    inputs, targets = sets[0]
    features, last = model[0], model[1]
    optimizer = torch.optim.Adam(model.parameters() if head is None else features.parameters(), rate)
    random, begun, steps = torch.Generator().manual_seed(0), time.process_time(), 0
    total = epochs * math.ceil(len(inputs) / batch)
    for _ in range(epochs):
        for samples in torch.randperm(len(inputs), generator=random).split(batch):
            x, c = inputs[samples], targets[samples]
            if schedule == "cosine":
                optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * steps / total))
            optimizer.zero_grad()
            Z = features(x)
            if head is not None:
                head(Z.detach(), c)
            (0.5 * (last(Z) - c).square().sum(1).mean()).backward()
            optimizer.step()
            steps += 1
    spent = time.process_time() - begun
    return with_eliminated_head(model, sets), spent


def slimtik(model: nn.Sequential, code: Path) -> Callable[[Tensor, Tensor], None]:
    """Return a function that moves the head with the authors' code."""
    sys.path.insert(0, str(code))
    solve = importlib.import_module("slimtik_functions.slimtik_solve_kronecker_structure").solve
    head, kept, state = model[1], list[Tensor](), {"sum": 0.05}

    @torch.no_grad()
    def move(Z: Tensor, C: Tensor) -> None:
        scale = 1 / math.sqrt(len(Z))
        A = scale * torch.cat([Z, torch.ones(len(Z), 1, dtype=Z.dtype)], 1).T
        kept.append(A)
        del kept[: -MEMORY - 1]
        W = torch.cat([head.weight, head.bias[:, None]], 1)
        W, info = solve(A, scale * C.T, torch.cat(kept, 1), W, state["sum"], opt_method="trial_points")
        state["sum"] = info["sumLambda"]
        head.weight.copy_(W[:, :-1])
        head.bias.copy_(W[:, -1])

    return move


def ours(model: nn.Sequential, sets: Sets, method: gnvpro.extend.Method | str, epochs: int) -> tuple[float, float]:
    """Train with one call of `gnvpro.train`; an epoch counts as two work units."""
    begun = time.process_time()
    settings = {"theta_penalty": PENALTY, "head_penalty": PENALTY}
    gnvpro.train(model, *sets[0], loss="least_squares", method=method, work=2 * epochs + 1, **settings)  # type: ignore[arg-type]
    return error(model, sets[1]), time.process_time() - begun


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=["peaks", "cdr"])
    parser.add_argument("--code", type=Path, help="a checkout of slimTrain; left out without")
    parser.add_argument("--batches", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ours", action="store_true", help="adam-vpro alone")
    parser.add_argument("--lr", type=float, nargs="+", help="rates of adam-vpro, instead of its own")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sets = peaks() if given.problem == "peaks" else cdr_sets()
    sizes = sets[0][0].shape[1], 8 if given.problem == "peaks" else 16, sets[0][1].shape[1]
    print("| method | batch | seed | error | s |\n|---|---|---|---|---|")

    def show(name: str, batch: object, seed: int, reached: tuple[float, float]) -> None:
        print(f"| {name} | {batch} | {seed} | {reached[0]:.5f} | {reached[1]:.1f} |", flush=True)

    for seed in given.seeds:
        if not given.ours:
            show("gnvpro, default", "all", seed, ours(network(*sizes, seed), sets, "gnvpro", given.epochs))
        for batch in given.batches:
            for rate in given.lr or [None]:
                method = gnvpro.methods.AdamVPro(lr=rate, batch_size=batch)
                name = "adam-vpro" if rate is None else f"adam-vpro {rate:g}"
                show(name, batch, seed, ours(network(*sizes, seed), sets, method, given.epochs))
            if given.ours:
                continue
            for name, rate, schedule in itertools.product(("ADAM", "slimTrain"), RATES, SCHEDULES):
                if name == "slimTrain" and given.code is None:
                    continue
                model = network(*sizes, seed)
                head = slimtik(model, given.code) if name == "slimTrain" else None
                reached = loop(model, sets, head, rate, schedule, batch, given.epochs)
                show(f"{name} {rate:g}, {schedule}", batch, seed, reached)


if __name__ == "__main__":
    main()
