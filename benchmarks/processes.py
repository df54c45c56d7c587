"""Compare two processes of one thread each with one process of one thread: seconds, speed-up, bytes per iteration.

    python -m benchmarks.processes [--iterations 3] [--rounds 3] [--only indian-pines] [--messages]

Steps from Krylov spaces of 20 dimensions (the CIFAR network: 5) on random data of the paper's sizes. The same two
processes time both ways in turn; the output has medians over the rounds. Wall-clock times are reliable on two free
cores only. On a busy machine use the ratio of processor seconds (one process over the larger of the two), which
excludes waiting for messages. Goal: 1.8.

With --messages: the seconds of single sums of growing size, on which the estimates of docs/lab/processes.md are
based.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from benchmarks.cost import convnet_case, indian_pines_case
from torch import Tensor, nn

import gnvpro


@dataclass(frozen=True)
class Timed:
    """Cost of one call of train, without set-up."""

    seconds: float  # wall-clock seconds per iteration
    cpu: float  # processor seconds per iteration of this process
    bytes: float  # bytes per iteration that this process sent to the group
    messages: float


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "indian-pines": (lambda: indian_pines_case(2957), 20),
    "indian-pines x 10": (lambda: indian_pines_case(29_570), 20),
    "cifar10": (lambda: convnet_case(2000), 5),
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count messages and their bytes."""
    seen: list[int] = []

    def counting(function: Callable[..., Any], which: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            sent = args[which]
            seen.append(sent.numel() * sent.element_size())
            return function(*args, **kwargs)

        return call

    places = {"all_reduce": 0, "broadcast": 0, "send": 0, "recv": 0, "all_gather": 1}
    patches = [patch.object(dist, name, counting(getattr(dist, name), which)) for name, which in places.items()]
    for each in patches:
        each.start()
    try:
        yield seen
    finally:
        for each in patches:
            each.stop()


def timed(model: nn.Module, x: Tensor, y: Tensor, rank: int, iterations: int, penalty: float, group: Any) -> Timed:
    """Time some iterations; the time of a run without iterations is subtracted."""
    taken = []
    for count in (0, iterations):
        solver = gnvpro.solvers.Krylov(max_rank=rank, rtol=0.0)
        with counted() as seen:
            begun = time.process_time()
            result = gnvpro.train(
                copy.deepcopy(model),  # all runs start from the same weights
                x,
                y,
                loss="multinomial",
                solver=solver,
                iterations=count,
                theta_penalty=penalty,
                head_penalty=penalty,
                process_group=group,
            )
            taken.append((result.history[-1].seconds, time.process_time() - begun, sum(seen), len(seen)))
    return Timed(*((last - first) / iterations for first, last in zip(*taken, strict=True)))


def work(rank: int, folder: str, names: list[str], iterations: int, rounds: int, messages: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    if messages:
        time_messages(rank)
    for name in [] if messages else names:
        make, dimensions = CASES[name]
        torch.manual_seed(0)
        case = make()
        half = len(case.inputs) // 2
        part = slice(0, half) if rank == 0 else slice(half, None)
        two, one = [], []
        for _ in range(rounds):
            dist.barrier()
            arguments = dimensions, iterations, case.penalty
            two.append(timed(case.model, case.inputs[part], case.targets[part], *arguments, dist.group.WORLD))
            dist.barrier()
            if rank == 0:
                one.append(timed(case.model, case.inputs, case.targets, *arguments, None))
            dist.barrier()
        show(rank, name, two, one)
    dist.barrier()
    dist.destroy_process_group()


def show(rank: int, name: str, two: list[Timed], one: list[Timed]) -> None:
    cpu: list[Any] = [None, None]
    dist.all_gather_object(cpu, statistics.median(each.cpu for each in two))
    if rank == 0:
        seconds = [statistics.median(each.seconds for each in runs) for runs in (one, two)]
        alone = statistics.median(each.cpu for each in one)
        print(
            f"{name:18} seconds per iteration: one {seconds[0]:.3f}, two {seconds[1]:.3f}, ratio {seconds[0] / seconds[1]:.2f};"
            f" processor seconds: one {alone:.3f}, two {cpu[0]:.3f} and {cpu[1]:.3f}, ratio {alone / max(cpu):.2f};"
            f" {two[0].messages:.0f} messages, {two[0].bytes / 1e6:.2f} MB per iteration",
            flush=True,
        )


def time_messages(rank: int) -> None:
    for numbers in (1, 1000, 10_000, 100_000, 1_000_000, 10_000_000):
        part, taken = torch.zeros(numbers, dtype=torch.float64), []
        for _ in range(20 if numbers < 1e6 else 5):
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(part)
            taken.append(time.perf_counter() - begun)
        if rank == 0:
            print(f"sum of {8 * numbers:>9} bytes: {1e3 * statistics.median(taken):8.3f} ms", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--messages", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, given.only or list(CASES), given.iterations, given.rounds, given.messages)
        mp.spawn(work, arguments, nprocs=2)
