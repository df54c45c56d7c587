"""Measure time per iteration and memory over a long run: neither may grow with the history.

    python benchmarks/long_run.py [--iterations 20000]

Trains a small problem with ADAM, one step per iteration, in three ways: plainly, with a checkpoint and with
patience. Each row is a fifth of the run: processor milliseconds per iteration, and megabytes that the process holds.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import gnvpro

PARTS = 5


def run(iterations: int, **options: Any) -> list[tuple[float, float]]:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    marks: list[tuple[float, float]] = [(time.process_time(), held())]

    def mark(record: gnvpro.extend.Record) -> None:
        if record.iteration and record.iteration % (iterations // PARTS) == 0:
            marks.append((time.process_time(), held()))

    gnvpro.train(
        model,
        x,
        torch.sin(3 * x),
        loss="least_squares",
        method=gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-4, batch_size=50),
        work=1e9,
        iterations=iterations,
        listeners=mark,
        **options,
    )
    pairs = itertools.pairwise(marks)
    return [(1e3 * (b[0] - a[0]) * PARTS / iterations, b[1]) for a, b in pairs]


def held() -> float:
    """Memory in use, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20_000)
    iterations = parser.parse_args().iterations
    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    held_out = {"validation": (x, torch.sin(3 * x))}
    with tempfile.TemporaryDirectory() as folder:
        for title, options in (
            ("plain", {}),
            ("checkpoint", {"checkpoint": Path(folder) / "run"}),
            ("patience", {**held_out, "patience": iterations + 1}),
        ):
            parts = run(iterations, **options)
            times = "  ".join(f"{ms:.2f}" for ms, _ in parts)
            print(f"{title:12} ms per iteration: {times}   MB: {'  '.join(f'{mb:.0f}' for _, mb in parts)}")
            assert parts[-1][0] < 1.5 * parts[0][0], "an iteration takes longer the longer the history is"


if __name__ == "__main__":
    main()
