"""When training uses random batches, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row

STOCHASTIC = "python -m benchmarks.stochastic"


@dataclass(frozen=True)
class BatchPolicy:
    """When training uses random batches, and for how long."""

    begin_from: int | None = row(10_000, "samples", "start on random batches; None: never", "python -m benchmarks.auto")
    steps: int = row(8000, "steps", "length of the training on batches", STOCHASTIC)
    least_passes: float = row(40.0, "passes", "shortest training on batches", STOCHASTIC)
    most_passes: float = row(600.0, "passes", "longest training on batches", STOCHASTIC)
    alone: float = row(4.0, "times", "longer training on batches if no exact steps can follow", STOCHASTIC)
