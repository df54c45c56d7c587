"""Classify images with mini-batches: the head eliminated in your own loop, against AdamW and Nesterov's SGD.

    python -m benchmarks.images fashion --method sgd --lr 0.1 --batch 128 --epochs 5         Fashion-MNIST, a small CNN
    python -m benchmarks.images cifar10 --method vpro --epochs 20 --out cifar-runs           CIFAR-10, the paper's network
    python -m benchmarks.images fashion --search --held-out validation                       all rates and batch sizes
    python -m benchmarks.images cifar10 --epochs 20 --out cifar-runs --plot cifar.png        a figure of the saved runs

    sgd, adam, adamw    all parameters in a plain loop, the penalties in the loss (adamw: the usual weight decay)
    rotated             the same with gnvpro.methods.RotatedAdam
    vpro                gnvpro.ReducedLoss with gnvpro.methods.RotatedAdam on theta: the head eliminated on each batch

Every run has a schedule that ends with it: one cycle (a rise over 0.3 of the run, then a cosine) or a cosine alone.
The accuracy of the current model is read after each epoch; after some epochs and at the end it is also read with the
head eliminated over all training images. Phi is the objective of the latter without the penalty on theta. Seconds
are processor seconds of one thread in the loop, without readings; an epoch is two work units. With --out a run is
saved after each epoch and can be continued. Choose rates with --held-out validation, which uses no test image.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from benchmarks.stochastic import cifar, fashion
from torch import Tensor, nn

import gnvpro
from gnvpro.drawing import BLUE, GREEN, ORANGE, VERMILION, new_figure, readable_log_axis

PENALTIES = {"fashion": (1e-4, 1e-4), "cifar10": (1e-4, 1e-2)}  # theta, W
RATES = {
    "sgd": (2e-2, 5e-2, 1e-1, 2e-1),
    "adam": (1e-3, 3e-3, 1e-2),
    "adamw": (1e-3, 3e-3, 1e-2),
    "rotated": (3e-3, 1e-2, 3e-2),
    "vpro": (3e-3, 1e-2, 3e-2),
}
LABELS = {
    "sgd": "Nesterov's SGD",
    "adam": "ADAM",
    "adamw": "AdamW",
    "rotated": "RotatedAdam",
    "vpro": "ReducedLoss with RotatedAdam",
}
RISE = 0.3  # rising share of one cycle
WARM_UP = 20  # steps before the cosine

Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Callable[[], nn.Sequential]]


@dataclass(frozen=True)
class Setting:
    """Settings of a run, except its length."""

    problem: str
    method: str
    lr: float
    batch: int
    epochs: int
    seed: int = 0
    samples: int = 0  # 0: all
    schedule: str = "cosine"
    held_out: str = "test"

    @property
    def name(self) -> str:
        """Name of the run's files."""
        return "_".join(str(value) for value in asdict(self).values())


def data(problem: str, samples: int, held_out: str) -> Data:
    """Load training images, held-out images and the network."""
    bench = fashion(held_out) if problem == "fashion" else cifar(samples or 40_000, held_out)
    train, test = bench.train, bench.held_out
    if problem == "fashion":
        train, test = ((x.view(-1, 1, 28, 28), y) for x, y in (train, test))
        train = train[0][: samples or None], train[1][: samples or None]
        return train, test, small_cnn
    return train, test, bench.network


def small_cnn() -> nn.Sequential:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def share_of_rate(schedule: str, step: int, steps: int) -> float:
    """Learning rate at a step, relative to its largest value."""
    p = step / steps
    if schedule == "cosine":
        return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * p))
    return 0.04 + 0.96 * p / RISE if p < RISE else 0.5 * (1 + math.cos(math.pi * (p - RISE) / (1 - RISE)))


class Loop:
    """A model in training, whose complete state can be saved."""

    def __init__(self, setting: Setting, network: Callable[[], nn.Sequential]) -> None:
        self.setting = setting
        self.theta_penalty, self.head_penalty = PENALTIES[setting.problem]
        torch.manual_seed(setting.seed)
        self.model = network()
        self.criterion = gnvpro.ReducedLoss(self.model, loss="multinomial", head_penalty=self.head_penalty)
        self.theta, self.head = list(self.criterion.parameters()), list(self.model[-1].parameters())
        make: dict[str, Callable[[], torch.optim.Optimizer]] = {
            "sgd": lambda: torch.optim.SGD(self.model.parameters(), setting.lr, momentum=0.9, nesterov=True),
            "adam": lambda: torch.optim.Adam(self.model.parameters(), setting.lr),
            "adamw": lambda: torch.optim.AdamW(self.model.parameters(), setting.lr),
            "rotated": lambda: gnvpro.methods.RotatedAdam(self.model.parameters(), setting.lr),
            "vpro": lambda: gnvpro.methods.RotatedAdam(self.theta, setting.lr),
        }
        self.optimizer = make[setting.method]()
        self.epoch, self.seconds, self.readings = 0, 0.0, []

    def step(self, x: Tensor, y: Tensor, share: float) -> None:
        """Train on one batch."""
        self.optimizer.param_groups[0]["lr"] = self.setting.lr * share
        self.optimizer.zero_grad()
        if self.setting.method == "vpro":
            self.criterion(x, y).backward()
        else:
            nn.functional.cross_entropy(self.model(x), y).backward()
        if self.setting.method != "adamw":
            decayed = [(self.theta_penalty, self.theta), (self.head_penalty, self.head)]
            for alpha, parameters in decayed[: 1 if self.setting.method == "vpro" else 2]:
                for p in parameters:
                    p.grad.add_(p.detach(), alpha=alpha)  # type: ignore[union-attr]
        self.optimizer.step()

    def run_epoch(self, train: tuple[Tensor, Tensor]) -> None:
        """Train on all batches in random order."""
        (x, y), setting = train, self.setting
        random = torch.Generator().manual_seed(1000 * setting.seed + self.epoch)
        steps = len(x) // setting.batch
        start = time.process_time()
        order = torch.randperm(len(x), generator=random)[: steps * setting.batch].split(setting.batch)
        for k, samples in enumerate(order, self.epoch * steps):
            self.step(x[samples], y[samples], share_of_rate(setting.schedule, k, steps * setting.epochs))
        self.seconds += time.process_time() - start
        self.epoch += 1

    def read(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], eliminate: bool) -> dict[str, float]:
        """Read accuracies with the head of the loop and with the head eliminated; training is not affected."""
        model = copy.deepcopy(self.model)
        reading = {"epoch": self.epoch, "seconds": self.seconds, "own": accuracy(model, test)}
        if eliminate and all(torch.isfinite(p).all() for p in model.parameters()):  # it may have diverged
            criterion = gnvpro.ReducedLoss(model, loss="multinomial", head_penalty=self.head_penalty)
            batches = list(zip(*(part.split(500) for part in train), strict=True))
            reading["phi"] = criterion.refit(batches, gnvpro.heads.NewtonCG())
            reading["eliminated"] = accuracy(model, test)
        return reading

    def state(self) -> dict[str, Any]:
        """Return the complete state."""
        parts = (self.model, self.criterion, self.optimizer)
        return {
            "parts": [p.state_dict() for p in parts],
            "epoch": self.epoch,
            "seconds": self.seconds,
            "read": self.readings,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        for part, saved in zip((self.model, self.criterion, self.optimizer), state["parts"], strict=True):
            part.load_state_dict(saved)  # type: ignore[arg-type]
        self.epoch, self.seconds, self.readings = state["epoch"], state["seconds"], state["read"]


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """Accuracy on the images of a set."""
    right = [model(x).argmax(1) == y for x, y in zip(*(part.split(500) for part in test), strict=True)]
    return float(torch.cat(right).double().mean())


def run(setting: Setting, everything: Data, out: Path | None, readings: list[int]) -> list[dict[str, float]]:
    """Start or continue a run."""
    train, test, network = everything
    loop = Loop(setting, network)
    file = None if out is None else out / f"{setting.name}.pt"
    if file is not None and file.exists():
        loop.load(torch.load(file, weights_only=False))
    while loop.epoch < setting.epochs:
        loop.run_epoch(train)
        eliminate = loop.epoch == setting.epochs or loop.epoch in readings
        loop.readings.append(loop.read(train, test, eliminate))
        show(setting, loop.readings[-1])
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(loop.state(), file.with_suffix(".part"))
            file.with_suffix(".part").rename(file)
            file.with_suffix(".json").write_text(json.dumps({**asdict(setting), "readings": loop.readings}, indent=1))
    return loop.readings


def show(setting: Setting, reading: dict[str, float]) -> None:
    """Print a row of the table."""
    more = ["", ""]
    if "phi" in reading:
        more = [f"{100 * reading['eliminated']:.2f}", f"{reading['phi']:.4f}"]
    name = f"{setting.method}, lr {setting.lr:g}, batch {setting.batch}, {setting.schedule}"
    cells = [name, setting.seed, f"{reading['epoch']} of {setting.epochs}", f"{100 * reading['own']:.2f}", *more]
    print("| " + " | ".join(map(str, cells)) + f" | {reading['seconds']:.1f} |", flush=True)


def plot(out: Path, problem: str, epochs: int, samples: int, path: Path) -> None:
    """Draw test errors during training against seconds, both axes logarithmic; means over the seeds."""
    runs: dict[str, list[list[dict[str, float]]]] = {}
    for file in sorted(out.glob(f"{problem}_*.json")):
        run = json.loads(file.read_text())
        if (run["epochs"], run["samples"], run["held_out"]) == (epochs, samples, "test"):
            runs.setdefault(f"{LABELS[run['method']]}, {run['lr']:g}, {run['batch']}", []).append(run["readings"])
    figure = new_figure(6.5, 4)
    axes = figure.add_subplot()
    every: dict[str, list[float]] = {"seconds": [], "own": []}
    for (name, seeds), colour in zip(runs.items(), (ORANGE, GREEN, VERMILION, BLUE), strict=False):
        seconds, right = ([fmean(r[key] for r in read) for read in zip(*seeds, strict=True)] for key in every)
        wrong = [100 * (1 - share) for share in right]
        axes.loglog(seconds, wrong, "o-", markersize=3, color=colour, label=f"{name}; {len(seeds)} run(s)")
        every["seconds"] += seconds
        every["own"] += wrong
    axes.set(title=f"{problem}, {epochs} epochs", xlabel="processor seconds", ylabel="test error, %")
    readable_log_axis(axes.xaxis, min(every["seconds"]), max(every["seconds"]))
    readable_log_axis(axes.yaxis, min(every["own"]), max(every["own"]))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, title="learning rate, samples per batch")
    figure.savefig(path)


def main() -> None:
    """One run, or the search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=["fashion", "cifar10"])
    parser.add_argument("--method", choices=["sgd", "adam", "adamw", "rotated", "vpro"], default="vpro")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch", type=int, nargs="+", default=[128])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--samples", type=int, default=0, help="training images; all by default")
    parser.add_argument("--schedule", choices=["cosine", "onecycle"], default="cosine")
    parser.add_argument("--held-out", choices=["test", "validation"], default="test")
    parser.add_argument(
        "--eliminate", type=int, nargs="*", default=[], help="epochs after which the head is eliminated"
    )
    parser.add_argument("--out", type=Path, help="directory of runs, to go on with")
    parser.add_argument("--plot", type=Path, help="a figure of the runs of so many epochs in --out, and no run")
    parser.add_argument("--search", nargs="*", choices=RATES, help="these methods, or all, at all rates")
    given = parser.parse_args()
    if given.plot is not None:
        plot(given.out, given.problem, given.epochs, given.samples, given.plot)
        return
    torch.set_num_threads(1)
    everything = data(given.problem, given.samples, given.held_out)
    head = ["method", "seed", "epoch", given.held_out, f"{given.held_out}, head eliminated", "Phi", "s"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    rates = [(given.method, given.lr)]
    if given.search is not None:
        rates = [(method, lr) for method in given.search or RATES for lr in RATES[method]]
    for (method, lr), batch, seed in itertools.product(rates, given.batch, given.seeds):
        setting = Setting(
            given.problem, method, lr, batch, given.epochs, seed, given.samples, given.schedule, given.held_out
        )  # fmt: skip
        run(setting, everything, given.out, given.eliminate)


if __name__ == "__main__":
    main()
