"""Compare stochastic methods at equal work: adam-vpro, and tuned ADAM and Nesterov.

    python -m benchmarks.stochastic arm --seconds 30            regression, n = 20,000, MLP 8-32-32-3
    python -m benchmarks.stochastic arm-large --seconds 60      n = 200,000, width 64, float32
    python -m benchmarks.stochastic fashion --epochs 5          Fashion-MNIST, MLP 784-64-64-10
    python -m benchmarks.stochastic cifar10 --epochs 20         the paper's network

The baselines are a plain loop on all parameters, with a search over learning rate and batch size (each candidate
gets the whole budget), a cosine schedule, and the head eliminated over all samples at the end, as in adam-vpro.
Times are processor seconds of one thread. For the regressions every method gets about the same seconds (adam-vpro
gets the epochs that fit into them according to a short run), for the images the same epochs. Seconds of the
baselines exclude the last elimination; those of adam-vpro include everything. Reported are the error on the
validation set (relative RMSE, or test accuracy) and Phi without the penalty on theta.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.data import cifar10

RATES = {"adam": (1e-3, 3e-3, 1e-2, 2e-2), "nesterov": (1e-2, 5e-2)}
BATCHES = (128, 512)
FASHION = Path("/usr/share/datasets/fashion-mnist")  # path used by Debian's package dataset-fashion-mnist


@dataclass(frozen=True)
class Bench:
    """A problem: data, network, loss, penalties."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    network: Callable[[], nn.Sequential]
    loss: str
    penalties: tuple[float, float]  # theta, W

    def score(self, model: nn.Module) -> float:
        """Relative RMSE, or accuracy."""
        inputs, targets = self.held_out
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in inputs.split(500)])
        if self.loss == "multinomial":
            return float((outputs.argmax(1) == targets).double().mean())
        return float(((outputs - targets).square().mean() / targets.var(0, unbiased=False).mean()).sqrt())


def mlp(inputs: int, width: int, outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, outputs)
    )


def arm(n: int, width: int, dtype: torch.dtype) -> Bench:
    """Three functions of a planar arm with four joints; eight inputs."""
    u = torch.rand(n + 5000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    angles, lengths = torch.cumsum(2 * math.pi * u[:, :4], 1), u[:, 4:]
    x, y = (lengths * angles.cos()).sum(1), (lengths * angles.sin()).sum(1)
    columns = [(x * x + y * y + 1e-4).sqrt(), x * u[:, 0], (3 * u[:, 1] * u[:, 5]).sin() + u[:, 2].square() * y]
    targets = torch.stack(columns, 1)
    targets = ((targets - targets[:n].mean(0)) / targets[:n].std(0)).to(dtype)
    inputs = (3.46 * (u - 0.5)).to(dtype)
    return Bench(
        (inputs[:n], targets[:n]),
        (inputs[n:], targets[n:]),
        lambda: mlp(8, width, 3, nn.Tanh).to(dtype),
        "least_squares",
        (1e-10, 1e-10),
    )


def fashion(held_out: str = "test") -> Bench:
    """Load Fashion-MNIST, standardised with one mean and one deviation; the last 10,000 training images are for
    validation.
    """

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.open(FASHION / f"{name}.gz").read(), np.uint8, offset=offset)

    parts = []
    for split in ("train", "t10k"):
        images = read(f"{split}-images-idx3-ubyte", 16).reshape(-1, 784).astype(np.float32) / 255
        labels = read(f"{split}-labels-idx1-ubyte", 8).astype(np.int64)
        parts.append((torch.from_numpy((images - 0.286) / 0.353), torch.from_numpy(labels)))
    if held_out == "validation":
        images, labels = parts[0]
        parts = [(images[:-10_000], labels[:-10_000]), (images[-10_000:], labels[-10_000:])]
    return Bench(parts[0], parts[1], lambda: mlp(784, 64, 10, nn.ReLU), "multinomial", (1e-4, 1e-4))


def cifar(samples: int, held_out: str = "test") -> Bench:
    """Load CIFAR-10 with the paper's network; test or validation images are held out."""

    def network() -> nn.Sequential:
        layers = [nn.Conv2d(3, 32, 5, padding=2, bias=False), nn.Conv2d(32, 64, 5, padding=2, bias=False)]
        for layer in layers:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        first, second = layers
        pools = nn.AvgPool2d(2), nn.AvgPool2d(16)
        return nn.Sequential(
            first, nn.ReLU(), pools[0], second, nn.ReLU(), pools[1], nn.Flatten(), nn.Linear(64, 10)
        )  # fmt: skip

    data = cifar10.load()
    train, other = (data.train[0][:samples], data.train[1][:samples]), getattr(data, held_out)
    return Bench(train, other, network, "multinomial", (1e-4, 1e-2))


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    score: float
    objective: float  # without the penalty on theta
    seconds: float


def plain_loop(bench: Bench, method: str, rate: float, batch: int, seed: int, epochs: float, seconds: float) -> Outcome:
    """Train all parameters by ADAM or Nesterov's SGD until the epochs or seconds are used, then eliminate the head."""
    torch.manual_seed(seed)
    model, (inputs, targets) = bench.network(), bench.train
    if method == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True)
    head = list(model[-1].parameters())
    features = [p for p in model.parameters() if all(p is not q for q in head)]
    random, start, done, total = torch.Generator().manual_seed(seed), time.process_time(), 0, epochs * len(inputs)
    while True:
        for samples in torch.randperm(len(inputs), generator=random).split(batch):
            progress = max(done / total, (time.process_time() - start) / seconds)
            if progress >= 1:
                spent = time.process_time() - start
                objective = gnvpro.ReducedLoss(model, loss=bench.loss, head_penalty=bench.penalties[1]).refit(
                    zip(inputs.split(500), targets.split(500), strict=True)
                )
                return Outcome(bench.score(model), objective, spent)
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * progress))
            optimizer.zero_grad()
            outputs, wanted = model(inputs[samples]), targets[samples]
            if bench.loss == "multinomial":
                loss = nn.functional.cross_entropy(outputs, wanted)
            else:
                loss = 0.5 * (outputs - wanted).square().sum(1).mean()
            for alpha, group in zip(bench.penalties, (features, head), strict=True):
                loss = loss + 0.5 * alpha * sum(p.square().sum() for p in group)
            loss.backward()
            optimizer.step()
            done += len(samples)


def adam_vpro(bench: Bench, seed: int, epochs: float) -> Outcome:
    """Train with the method's defaults."""
    torch.manual_seed(seed)
    model = bench.network()
    theta, head = bench.penalties
    start = time.process_time()
    result = gnvpro.train(
        model, *bench.train, loss=bench.loss, method=gnvpro.methods.AdamVPro(seed=seed), work=2 * epochs + 1,
        theta_penalty=theta, head_penalty=head,
    )  # fmt: skip
    spent = time.process_time() - start
    objective = result.history[-1].misfit + 0.5 * head * sum(
        float(p.detach().square().sum()) for p in model[-1].parameters()
    )
    return Outcome(bench.score(model), objective, spent)


def main() -> None:
    """Run one problem, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=["arm", "arm-large", "fashion", "cifar10"])
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--epochs", type=float, default=math.inf)
    parser.add_argument("--samples", type=int, default=40_000, help="of CIFAR-10")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = {
        "arm": lambda: arm(20_000, 32, torch.float64),
        "arm-large": lambda: arm(200_000, 64, torch.float32),
        "fashion": fashion,
        "cifar10": lambda: cifar(given.samples),
    }[given.problem]()
    print("| method | seed | score | objective | s |\n|---|---|---|---|---|")

    def show(method: str, seed: int, outcome: Outcome) -> None:
        print(
            f"| {method} | {seed} | {outcome.score:.4f} | {outcome.objective:.4g} | {outcome.seconds:.1f} |", flush=True
        )

    for seed in range(given.seeds):
        epochs = given.epochs
        if math.isinf(epochs):  # as many as fit into the seconds, estimated from a short run
            probe = [adam_vpro(bench, seed, count).seconds for count in (2, 6)]
            epochs = max(1.0, given.seconds / max((probe[1] - probe[0]) / 4, 1e-3))
        show("adam-vpro", seed, adam_vpro(bench, seed, epochs))
        for method, rates in RATES.items():
            for rate, batch in itertools.product(rates, BATCHES):
                outcome = plain_loop(bench, method, rate, batch, seed, given.epochs, given.seconds)
                show(f"{method} {rate:g}, {batch}", seed, outcome)


if __name__ == "__main__":
    main()
