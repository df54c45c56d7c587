"""The referee: keeps a contender's clock, looks at its model from time to time, and ends the run.

Seconds are processor seconds of the process, which is pinned to one core: on a quiet machine those of the clock on the
wall, on a busy one still the contender's own. Both are kept. Neither runs while the referee looks, nor before `start`:
imports, loading data and making the network are not counted. Compilation is, and its seconds are also told; the time limit
begins after it, so that nobody runs out of time while compiling.

A look costs the contender nothing, but it costs the benchmark time, so looks are spaced by at least 3% of the time so far.
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
        """The clock runs from here."""
        self._begin = (time.process_time(), time.perf_counter())

    def seconds(self) -> tuple[float, float]:
        """Processor and wall seconds so far."""
        now = (time.process_time(), time.perf_counter())
        cpu, wall = (t - b - p for t, b, p in zip(now, self._begin, self._paused, strict=True))
        return cpu, wall

    def compiled(self) -> None:
        """Everything until now was compilation."""
        self.compile_seconds = self.seconds()[0]

    def look(self, outputs: Callable[[], Outputs], work: float | None = None, last: bool = False) -> None:
        """Measure the model if it is time to, or the last look; `outputs` gives its network. Ends the run when time is up."""
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
