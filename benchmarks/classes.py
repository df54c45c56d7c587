"""Compare ways to train classifiers on many or few samples: Phi and held-out loss against processor seconds.

    python -m benchmarks.classes table --seconds 20           30,000 samples of a synthetic table, MLP 20-32-32-5
    python -m benchmarks.classes fashion --seconds 40         Fashion-MNIST, 60,000 images, MLP 784-64-64-10
    python -m benchmarks.classes fashion-cnn --seconds 120    the same with a small CNN
    python -m benchmarks.classes digits --seconds 5           1347 images of 8 x 8 digits, MLP 64-32-10
    python -m benchmarks.classes spirals --seconds 20         20,000 points of the plane, two classes, logistic loss

`auto` is `gnvpro.train(model, X, Y, loss=..., seconds=...)`, `all` the same without batches
(`Policy(batches=BatchPolicy(begin_from=None))`), `adam-vpro` the method on batches alone; ADAM is a plain loop with a
cosine that ends with the seconds, at several rates, its head eliminated over all samples at the end, which does not count.
Phi is the objective on the training samples. Seconds are the processor's, of one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from benchmarks.images import data
from benchmarks.stochastic import Bench, fashion, mlp
from torch import nn

import gnvpro
from gnvpro.policy import BatchPolicy, Policy

ADAM_RATES, ADAM_BATCH = (1e-3, 3e-3, 1e-2), 128


def table(n: int = 30_000) -> Bench:
    """Draw twenty columns; the class is the largest of five random functions of them, and a twentieth of the labels
    are random.
    """
    random = torch.Generator().manual_seed(0)
    X = torch.randn(n + 5000, 20, generator=random, dtype=torch.float64)
    A, b, C = (torch.randn(*s, generator=random, dtype=torch.float64) for s in ((20, 24), (24,), (24, 5)))
    y = (torch.sin(X @ A / 3 + b) @ C).argmax(1)
    wrong = torch.rand(len(X), generator=random) < 0.05
    y[wrong] = torch.randint(0, 5, (int(wrong.sum()),), generator=random)
    return Bench((X[:n], y[:n]), (X[n:], y[n:]), lambda: mlp(20, 32, 5, nn.Tanh).double(), "multinomial", (1e-4, 1e-4))


def spirals(n: int = 20_000) -> Bench:
    """Two arms of three turns each, with noise."""
    random = torch.Generator().manual_seed(0)
    t = torch.rand(n + 5000, generator=random, dtype=torch.float64).sqrt()
    y = torch.randint(0, 2, (n + 5000,), generator=random)
    angle = 6 * math.pi * t + math.pi * y
    X = torch.stack([t * angle.cos(), t * angle.sin()], 1)
    X = 2 * (X + 0.02 * torch.randn(X.shape, generator=random, dtype=torch.float64))
    return Bench((X[:n], y[:n]), (X[n:], y[n:]), lambda: mlp(2, 24, 1, nn.Tanh).double(), "logistic", (1e-6, 1e-6))


def digits() -> Bench:
    """Load scikit-learn's digits, a quarter held out."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    X, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    X, y = torch.from_numpy(X)[order] / 8 - 1, torch.from_numpy(y)[order].long()

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()

    return Bench((X[:1347], y[:1347]), (X[1347:], y[1347:]), network, "multinomial", (1e-4, 1e-4))


def fashion_cnn() -> Bench:
    """A small CNN."""
    train, test, network = data("fashion", 0, "test")
    return Bench(train, test, network, "multinomial", (1e-4, 1e-4))


BENCHES: dict[str, Callable[[], Bench]] = {
    "table": table, "spirals": spirals, "digits": digits, "fashion": fashion, "fashion-cnn": fashion_cnn,
}  # fmt: skip
Row = tuple[float, float, float, float]  # seconds, Phi, loss and accuracy on held-out samples


def row_of(record: gnvpro.extend.Record, seconds: float) -> Row:
    """Convert a record to a row."""
    return seconds, record.loss, record.validation_loss or math.nan, record.validation_accuracy or math.nan


def ours(bench: Bench, seconds: float | None, seed: int, **settings: object) -> tuple[list[Row], str]:
    """Train with one call of `gnvpro.train`; everything counts."""
    torch.manual_seed(seed)
    model, begun = bench.network(), time.process_time()
    rows: list[Row] = []

    def note(record: gnvpro.extend.Record) -> None:
        rows.append(row_of(record, time.process_time() - begun))

    result = gnvpro.train(
        model, *bench.train, loss=bench.loss, validation=bench.held_out, seconds=seconds, listeners=note,
        theta_penalty=bench.penalties[0], head_penalty=bench.penalties[1], **settings,
    )  # type: ignore[arg-type]  # fmt: skip
    kinds = [str(r.solver) for r in result.history[1:]]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return rows, f"{result.status.name}, {result.work:.0f} WU, {counts}"


def adam(bench: Bench, rate: float, seconds: float, seed: int) -> tuple[list[Row], str]:
    """Train with a plain loop, and eliminate the head at its end."""
    torch.manual_seed(seed)
    model, (inputs, targets) = bench.network(), bench.train
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    head = list(model[-1].parameters())
    theta = [p for p in model.parameters() if all(p is not q for q in head)]
    random, begun, spent, epochs = torch.Generator().manual_seed(seed), time.process_time(), 0.0, 0.0
    while spent < seconds:
        for samples in torch.randperm(len(inputs), generator=random).split(ADAM_BATCH):
            spent = time.process_time() - begun
            if spent >= seconds:
                break
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * spent / seconds))
            optimizer.zero_grad()
            outputs, wanted = model(inputs[samples]), targets[samples]
            if bench.loss == "logistic":
                nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], wanted.to(outputs.dtype)).backward()
            else:
                nn.functional.cross_entropy(outputs, wanted).backward()
            for alpha, group in zip(bench.penalties, (theta, head), strict=True):
                for p in group:
                    p.grad.add_(p.detach(), alpha=alpha)  # type: ignore[union-attr]
            optimizer.step()
            epochs += len(samples) / len(inputs)
    result = gnvpro.train(
        model, inputs, targets, loss=bench.loss, validation=bench.held_out, work=0, theta_penalty=bench.penalties[0],
        head_penalty=bench.penalties[1],
    )  # fmt: skip
    return [row_of(result.history[-1], spent)], f"{epochs:.0f} epochs"


def show(name: str, rows: list[Row], said: str, seconds: float) -> None:
    """Print readings at a few times, and the last one."""
    print(f"{name}: {said}")
    for wanted in [seconds / 2**k for k in range(6, -1, -1)]:
        read = [row for row in rows if row[0] <= 1.03 * wanted]
        if read:
            s, phi, loss, right = read[-1]
            print(f"| {name} | {wanted:.2g} s | {s:.2f} | {phi:.5f} | {loss:.4f} | {100 * right:.2f} |")
    s, phi, loss, right = rows[-1]
    print(f"| {name} | end | {s:.2f} | {phi:.5f} | {loss:.4f} | {100 * right:.2f} |", flush=True)


def main() -> None:
    """Run one problem with all methods, or with those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=BENCHES)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=["auto", "all", "adam-vpro", "adam"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    time.perf_counter = time.process_time  # `seconds` of train
    bench = BENCHES[given.problem]()
    settings: dict[str, dict[str, object]] = {
        "auto": {},
        "all": {"policy": Policy(batches=BatchPolicy(begin_from=None))},
        "adam-vpro": {"method": "adam-vpro"},
        "hybrid": {"solver": "hybrid"},
    }
    print("| method | by | s | Phi | loss | accuracy |\n|---|---|---|---|---|---|")
    for seed in given.seeds:
        for name in given.methods:
            if name == "adam":
                for rate in ADAM_RATES:
                    show(f"ADAM {rate:g}", *adam(bench, rate, given.seconds, seed), given.seconds)
            else:
                show(name, *ours(bench, given.seconds, seed, **settings[name]), given.seconds)


if __name__ == "__main__":
    main()
