"""Clocks that run wildly, for tests that a run does not decide by them."""

from __future__ import annotations

import itertools
import time

import pytest

from gnvpro.network import passes

CLOCKS = ("time", "perf_counter", "process_time", "monotonic", "thread_time")


def run_wildly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every clock of the process run forward by uneven amounts, up to hours at a call."""
    ticks = itertools.count(1)
    now = {"s": 1e6}

    def read() -> float:
        k = next(ticks)
        now["s"] += 1e4 * ((k * 7919) % 101) / 101 if k % 3 else 1e-6
        return now["s"]

    for name in CLOCKS:
        monkeypatch.setattr(time, name, read)
    monkeypatch.setattr(passes, "perf_counter", read)  # imported by name
