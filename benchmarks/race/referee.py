"""The referee keeps a contender's clock, evaluates its model from time to time, and ends the run.

Seconds are processor seconds of the process, which is pinned to one core; wall-clock seconds are recorded too. The
clock stops while the referee evaluates, and starts at `start`, so imports, loading data and building the network do
not count. Compilation counts and is also reported separately; the time limit starts after it, so that no contender
runs out of time while compiling.

An evaluation costs the contender nothing, but it costs the benchmark time. So evaluations are at least 3% of the
elapsed time apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torch import Tensor

from .problems import Problem

SPACING = 1.03
Outputs = Callable[[Tensor], Tensor]  # of a network, from inputs


class TimeUp(Exception):
    """The time limit is reached."""


class Referee:
    """Records (seconds, wall seconds, validation error, work) of one run."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem, self.limit = problem, limit
        self.looks: list[tuple[float, float, float, float | None]] = []
        self.compile_seconds = 0.0
        self._due = 0.0
        self._paused = (0.0, 0.0)  # processor and wall seconds that do not count

    def start(self) -> None:
        """Start the clock."""
        self._begin = (time.process_time(), time.perf_counter())

    def seconds(self) -> tuple[float, float]:
        """Processor and wall seconds so far."""
        now = (time.process_time(), time.perf_counter())
        cpu, wall = (t - b - p for t, b, p in zip(now, self._begin, self._paused, strict=True))
        return cpu, wall

    def compiled(self) -> None:
        """Mark everything until now as compilation."""
        self.compile_seconds = self.seconds()[0]

    def look(self, outputs: Callable[[], Outputs], work: float | None = None, last: bool = False) -> None:
        """Evaluate the model if it is time to, or at the last look; `outputs` returns its network. End the run when
        time is up.
        """
        seconds, wall = self.seconds()
        up = seconds >= self.limit + self.compile_seconds
        if seconds < self._due and not up and not last:
            return
        before = (time.process_time(), time.perf_counter())
        error = self.problem.error(outputs())
        self.looks.append((seconds, wall, error if math.isfinite(error) else math.inf, work))
        self._due = max(seconds * SPACING, seconds + 1e-3)
        after = (time.process_time(), time.perf_counter())
        self._paused = tuple(p + a - b for p, a, b in zip(self._paused, after, before, strict=True))  # type: ignore[assignment]
        if up:
            raise TimeUp
