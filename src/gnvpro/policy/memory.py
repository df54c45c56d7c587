"""Numbers of samples and threads that a computation uses."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row


@dataclass(frozen=True)
class MemoryPolicy:
    """Numbers of samples and threads that a computation uses."""

    one_thread: int = row(
        200_000, "numbers", "train on one thread if the inputs hold fewer", "python -m benchmarks.race run"
    )
    looked_at: int = row(
        5000, "samples", "most samples that `inspect` and counts of parameters look at", "python -m benchmarks.tables"
    )
