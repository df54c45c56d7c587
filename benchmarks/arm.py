"""Compare the default call on many samples with tuned ADAM: error against processor seconds.

    python -m benchmarks.arm --seconds 30                     "arm", n = 20,000, MLP 8-32-32-3, float64
    python -m benchmarks.arm --large --seconds 60             n = 200,000, width 64, float32
    python -m benchmarks.arm --seconds 30 --plot arm.png      with a figure

ADAM is a plain loop on all parameters with a cosine schedule that ends at the time limit. It runs with every
learning rate and batch size below. At each reading its head is eliminated over all samples; neither this nor the
reading counts in its seconds. gnvpro is `gnvpro.train(model, X, Y, loss="least_squares", validation=...,
seconds=...)`, and everything counts, including the validation. Seconds are processor seconds, because others may use
the machine.

The error is the relative RMSE on 5000 other samples. The second table has the seconds to each error, for ADAM those
of its fastest setting at that error. Goal: half of them.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.stochastic import Bench, arm

import gnvpro
from gnvpro.drawing import BLUE, new_figure, readable_log_axis

RATES = {False: (1e-2, 2e-2, 4e-2), True: (1e-2, 2e-2)}  # small and large problem
BATCHES = {False: (256, 512, 1024), True: (512, 1024)}
ERRORS = (0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.22, 0.2, 0.18, 0.16, 0.14, 0.12, 0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04)
FIRST_READING, DENSITY = 0.1, 1.1  # seconds, and the ratio between the times of consecutive readings


@dataclass(frozen=True)
class Curve:
    """Errors, and the times of their readings."""

    seconds: list[float]
    errors: list[float]

    def time_to(self, error: float) -> float:
        """Seconds until the error was this small; infinite if it never was."""
        return next((s for s, e in zip(self.seconds, self.errors, strict=True) if e <= error), math.inf)

    def at(self, seconds: float) -> float:
        """The last error read by then."""
        read = [e for s, e in zip(self.seconds, self.errors, strict=True) if s <= seconds]
        return read[-1] if read else math.nan


def adam(bench: Bench, rate: float, batch: int, seconds: float, seed: int) -> Curve:
    """Train with a plain loop; readings do not count in its seconds."""
    torch.manual_seed(seed)
    model, (inputs, targets) = bench.network(), bench.train
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    random, curve = torch.Generator().manual_seed(seed), Curve([], [])
    begun, next_reading = time.process_time(), FIRST_READING
    while True:
        for samples in torch.randperm(len(inputs), generator=random).split(batch):
            spent = time.process_time() - begun
            if spent >= min(next_reading, seconds):
                curve.seconds.append(spent)
                curve.errors.append(error_with_eliminated_head(bench, model))
                if spent >= seconds:
                    return curve
                next_reading *= DENSITY
                begun = time.process_time() - spent
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * spent / seconds))
            optimizer.zero_grad()
            (0.5 * (model(inputs[samples]) - targets[samples]).square().sum(1).mean()).backward()
            optimizer.step()


def error_with_eliminated_head(bench: Bench, model: torch.nn.Module) -> float:
    """Error of a copy of the model whose head is eliminated over all samples."""
    model = copy.deepcopy(model)
    inputs, targets = bench.train
    criterion = gnvpro.ReducedLoss(model, loss=bench.loss, head_penalty=bench.penalties[1])
    criterion.refit(zip(inputs.split(10_000), targets.split(10_000), strict=True))
    return bench.score(model)


def ours(bench: Bench, seconds: float | None, seed: int, **settings: object) -> tuple[Curve, gnvpro.Result]:
    """Train with one call of `gnvpro.train`."""
    torch.manual_seed(seed)
    model, begun, curve = bench.network(), time.process_time(), Curve([], [])
    spread = float(bench.held_out[1].double().var(0, unbiased=False).sum())

    def note(record: gnvpro.extend.Record) -> None:
        assert record.validation_loss is not None
        curve.seconds.append(time.process_time() - begun)
        curve.errors.append(math.sqrt(2 * record.validation_loss / spread))

    result = gnvpro.train(
        model, *bench.train, loss=bench.loss, validation=bench.held_out, seconds=seconds, listeners=note, **settings
    )  # type: ignore[arg-type]
    return curve, result


def main() -> None:
    """Run everything and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--samples", type=int, help="20,000, or 200,000 of the large one")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ours", action="store_true", help="without ADAM")
    parser.add_argument("--rates", type=float, nargs="+", help="of ADAM; some are tried by default")
    parser.add_argument("--batches", type=int, nargs="+", help="samples per batch of ADAM")
    parser.add_argument("--plot", type=Path, help="a figure of the first seed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    time.perf_counter = time.process_time  # `seconds` of train
    n = given.samples or (200_000 if given.large else 20_000)
    bench = arm(n, 64, torch.float32) if given.large else arm(n, 32, torch.float64)
    for seed in given.seeds:
        curves: dict[str, Curve] = {}
        curves["gnvpro"], result = ours(bench, given.seconds, seed)
        steps = [
            f"{len(list(group))} {kind}"
            for kind, group in itertools.groupby(r.solver for r in result.history[1:] if r.note is None)
        ]
        print(f"\nn = {n}, seed {seed}: {result.status.name}, {result.work:.0f} WU; iterations: {', '.join(steps)}\n")
        if not given.ours:
            rates, batches = given.rates or RATES[given.large], given.batches or BATCHES[given.large]
            for rate, batch in itertools.product(rates, batches):
                curves[f"ADAM {rate:g}, {batch}"] = curve = adam(bench, rate, batch, given.seconds, seed)
                print(f"ADAM {rate:g}, {batch}: {curve.errors[-1]:.4f}", flush=True)
        show(curves, given.seconds)
        if given.plot is not None and seed == given.seeds[0]:
            plot(curves, f"n = {n:,}", given.plot)


def plot(curves: dict[str, Curve], title: str, path: Path) -> None:
    """Draw error against seconds, both axes logarithmic."""
    figure = new_figure(7.5, 4)
    axes = figure.add_subplot()
    for k, (name, curve) in enumerate(sorted(curves.items(), key=lambda pair: pair[0] != "gnvpro")):
        drawn = {"color": BLUE, "linewidth": 2.2, "zorder": 3} if k == 0 else {"color": f"C{k}", "linewidth": 1}
        axes.loglog(curve.seconds, curve.errors, label=name, **drawn)
    axes.set(title=title, xlabel="processor seconds", ylabel="relative RMSE, validation")
    errors = [error for curve in curves.values() for error in curve.errors]
    readable_log_axis(axes.yaxis, min(errors), max(errors))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8, title="learning rate,\nsamples per batch")
    figure.savefig(path)


def show(curves: dict[str, Curve], seconds: float) -> None:
    """Print errors at some times, and times to some errors."""
    times = [seconds / 2**k for k in range(6, -1, -1)]
    print(f"| method | {' | '.join(f'{t:.2g} s' for t in times)} |\n|---|{'---|' * len(times)}")
    for name, curve in curves.items():
        print(f"| {name} | {' | '.join(f'{curve.at(t * 1.02):.4f}' for t in times)} |")
    print("\n| error | gnvpro | ADAM | ratio |\n|---|---|---|---|")
    for error in ERRORS:
        own = curves["gnvpro"].time_to(error)
        best = min((c.time_to(error) for name, c in curves.items() if name != "gnvpro"), default=math.inf)
        if own < math.inf:
            print(f"| {error:g} | {own:.2f} | {best:.2f} | {own / best:.2f} |")


if __name__ == "__main__":
    main()
