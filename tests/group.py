"""Two processes of a gloo group, started once for many cases: starting one takes seconds."""

from __future__ import annotations

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = 60  # seconds


def run_in_group(work: Callable[..., Any], *arguments: Any, size: int = 2, timeout: float = TIMEOUT) -> list[Any]:
    """What `work(rank, ...)` returns in each process; whatever it raises is returned as text."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _begin, (work, arguments, size, folder, timeout), nprocs=size, join=False, start_method="spawn"
        )
        try:
            while not context.join(timeout=2 * timeout):
                pass
        except mp.ProcessExitedException:
            pass  # a process that the case kills: the others say what they saw of it
        return [_result(Path(folder) / f"{rank}.pt") for rank in range(size)]


def _result(path: Path) -> Any:
    return torch.load(path, weights_only=False) if path.exists() else None


def _begin(
    rank: int, work: Callable[..., Any], arguments: tuple[Any, ...], size: int, folder: str, timeout: float
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    try:
        made = work(rank, *arguments)
    except BaseException:
        made = traceback.format_exc()
    path = os.path.join(folder, f"{rank}.pt")
    torch.save(made, path + ".part")
    os.replace(path + ".part", path)
