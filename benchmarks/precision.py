"""Compare passes in float32 with passes of a copy in float64, for models whose parameters are in float32.

    python -m benchmarks.precision

For each model and number of samples: floating-point operations of one forward pass over all samples, processor seconds and
lowest objective of equal work in either precision. A copy in float64 pays if it reaches a lower objective for little more
time; the policy's row `double_flops` is the largest cost at which it is made, and `convolutions` weighs convolutions.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import gnvpro
from gnvpro.policy import Policy, PrecisionPolicy

WORK = 60.0


def mlp() -> nn.Module:
    """A tanh network of 10 inputs."""
    return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def convolutions() -> nn.Module:
    """A small convolutional network of 16 x 16 images."""
    layers = nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(72, 2))


def samples(model: nn.Module, n: int) -> tuple[Tensor, Tensor]:
    """Random inputs and smooth targets."""
    generator = torch.Generator().manual_seed(1)
    shape = (10,) if isinstance(model[0], nn.Linear) else (1, 16, 16)  # type: ignore[index]
    inputs = torch.randn(n, *shape, generator=generator)
    flat = inputs.flatten(1)
    return inputs, torch.stack([flat[:, :5].sum(1).sin(), flat[:, 5:10].prod(1).tanh()], 1)


def trained(make: Callable[[], nn.Module], n: int, double: bool) -> tuple[float, float, float]:
    """Operations of a forward pass, processor seconds of a training, and its lowest objective."""
    torch.manual_seed(0)
    model = make()
    inputs, targets = samples(model, n)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(inputs)
    rules = PrecisionPolicy(double_flops=float("inf") if double else 0.0, double_memory=1.0)
    start = time.process_time()
    result = gnvpro.train(
        model,
        inputs,
        targets,
        loss="mse",
        solver="hybrid",
        work=WORK,
        policy=Policy(precision=rules),
        listeners="silent",
    )
    return counter.get_total_flops(), time.process_time() - start, min(record.loss for record in result.history)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(
        f"{'model':14}{'samples':>9}{'operations':>12}{'s, float32':>12}{'float64':>9}{'loss, float32':>15}{'float64':>10}"
    )
    trained(mlp, 20, True)  # the first call imports libraries
    for make in (mlp, convolutions):
        for n in (200, 1000, 5000):
            flops, single, reached = trained(make, n, False)
            _, double, better = trained(make, n, True)
            print(f"{make.__name__:14}{n:9}{flops:12.1e}{single:12.2f}{double:9.2f}{reached:15.2e}{better:10.2e}")


if __name__ == "__main__":
    main()
