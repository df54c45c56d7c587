"""When training uses random batches."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row


@dataclass(frozen=True)
class BatchPolicy:
    """When training uses random batches."""

    begin_from: int | None = row(10_000, "samples", "start on random batches; None: never", "python -m benchmarks.auto")
