"""Compare a Dataset that is held in memory with one that is read again in every pass.

    python -m benchmarks.loaders

Processor seconds of equal work on a Dataset that decodes each sample in Python, and on plain tensors. The policy's row
`held_memory` is the largest share of the memory budget for which a Dataset is held.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import gnvpro
from gnvpro.policy import Policy, SamplePolicy

WORK = 60.0


class Decoded(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are computed at each access, like files that are decoded."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return self.inputs[k].clone(), self.targets[k].clone()


def seconds(data: tuple[Any, ...], share: float) -> float:
    """Processor seconds of a training that holds a Dataset below this share of memory."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    start = time.process_time()
    gnvpro.train(
        model, *data, loss="mse", solver="hybrid", work=WORK, policy=Policy(samples=SamplePolicy(held_memory=share)),
        listeners="silent",
    )  # fmt: skip
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'samples':>8}{'tensors, s':>12}{'held, s':>10}{'read again, s':>15}")
    seconds((torch.zeros(10, 10).double(), torch.zeros(10, 1).double()), 1.0)  # the first call imports libraries
    for n in (500, 2000, 8000):
        inputs = torch.randn(n, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        targets = inputs[:, :5].sum(1, keepdim=True).sin()
        data = Decoded(inputs, targets)
        print(f"{n:8}{seconds((inputs, targets), 1.0):12.2f}{seconds((data,), 1.0):10.2f}{seconds((data,), 0.0):15.2f}")


if __name__ == "__main__":
    main()
