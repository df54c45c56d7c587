"""Processes of a gloo group, started once for many cases: starting one takes seconds."""

from __future__ import annotations

import datetime
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = 60  # seconds of the group

Keep = Callable[[str, Any], None]


def run_in_group(
    work: Callable[..., None], *arguments: Any, size: int = 2, timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """Results that `work(rank, keep, ...)` kept by name in each process; an exception is kept as "error"."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            mp.get_context("spawn").Process(target=_begin, args=(rank, size, folder, timeout, work, arguments))
            for rank in range(size)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(10 * timeout)
            if process.is_alive():
                process.kill()
        kept: list[dict[str, Any]] = [{} for _ in range(size)]
        for file in sorted(Path(folder).glob("*.pt"), key=lambda path: path.stat().st_mtime_ns):
            rank, name, value = torch.load(file, weights_only=False)
            kept[rank][name] = value
        return kept


def _begin(rank: int, size: int, folder: str, timeout: float, work: Callable[..., None], arguments: Any) -> None:
    def keep(name: str, value: Any) -> None:
        count[0] += 1
        torch.save((rank, name, value), f"{folder}/{rank}_{count[0]}.pt")

    count = [0]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    try:
        work(rank, keep, *arguments)
    except BaseException:
        keep("error", traceback.format_exc())
