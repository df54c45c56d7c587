"""Seconds of the hand-written derivatives against autograd, side by side.

    python benchmarks/linearization.py [--repetitions 30] [--threads 2] [case ...]

Prints medians of interleaved repetitions, in ms, and as ratios: (jvp + vjp) over one forward and backward pass by
autograd (graph included), jvp and vjp over a plain forward pass, and the per-sample Jacobian for all features.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gnvpro.network.derivatives.chain import linearize
from gnvpro.networks import MLP, ConvNet, NeuralODE

CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "cdr": lambda: (NeuralODE(55, 8, depth=8, dtype=torch.float64), torch.randn(400, 55, dtype=torch.float64)),
    "dcr": lambda: (NeuralODE(3, 16, depth=8, dtype=torch.float64), torch.randn(8000, 3, dtype=torch.float64)),
    "indian-pines": lambda: (
        NeuralODE(200, 32, depth=16, dtype=torch.float64),
        torch.randn(2957, 200, dtype=torch.float64),
    ),
    "mlp": lambda: (MLP(3, [16, 16], dtype=torch.float64), torch.randn(400, 3, dtype=torch.float64)),
    "convnet": lambda: (ConvNet()[:-1], torch.randn(100, 3, 32, 32)),
}
# larger per-sample Jacobians would not fit in memory
MAX_JACOBIAN = 50_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", metavar="case", help=f"any of {', '.join(CASES)}")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    columns = ("forward", "backprop", "linearize", "jvp", "vjp", "jacobian")
    print(f"{'ms':14}" + "".join(f"{name:>11}" for name in columns) + f"{'(J+J^T)/bp':>12}{'J/fwd':>7}{'J^T/fwd':>8}")
    for name in arguments.cases or CASES:
        ms = measure(*CASES[name](), arguments.repetitions)
        ratios = (ms["jvp"] + ms["vjp"]) / ms["backprop"], ms["jvp"] / ms["forward"], ms["vjp"] / ms["forward"]
        times = "".join(f"{ms[column]:11.2f}" if column in ms else f"{'-':>11}" for column in columns)
        print(f"{name:14}{times}{ratios[0]:12.2f}{ratios[1]:7.2f}{ratios[2]:8.2f}")


def measure(module: nn.Module, inputs: Tensor, repetitions: int) -> dict[str, float]:
    """Median milliseconds of each task; the tasks take turns."""
    params = {name: p.detach() for name, p in module.named_parameters()}
    made = linearize(module, params, inputs)
    assert made is not None
    d_params = {name: torch.randn_like(p) for name, p in params.items()}
    cotangent = torch.randn_like(made.output)
    n, n_features = made.output.shape
    weights = list(module.parameters())

    @torch.no_grad()
    def forward() -> object:
        return module(inputs)

    def backprop() -> object:
        return torch.autograd.grad(module(inputs), weights, cotangent)

    tasks: dict[str, Callable[[], object]] = {
        "forward": forward,
        "backprop": backprop,
        "linearize": lambda: linearize(module, params, inputs),
        "jvp": lambda: made.jvp(d_params, None),
        "vjp": lambda: made.vjp(cotangent, False),
    }
    if sum(p.numel() for p in weights) * n * n_features <= MAX_JACOBIAN:
        seeds = torch.eye(n_features, dtype=inputs.dtype)[:, None].expand(-1, n, -1)
        tasks["jacobian"] = lambda: made.jacobian(seeds, False)
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repetition in range(repetitions + 2):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if repetition >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
