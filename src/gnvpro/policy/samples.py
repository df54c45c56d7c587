"""When samples that could be read again in every pass are held in memory."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row


@dataclass(frozen=True)
class SamplePolicy:
    """When samples that could be read again in every pass are held in memory."""

    held_memory: float = row(
        0.25,
        "share of the memory budget",
        "read the samples of a Dataset or DataLoader once and hold them if they take at most this share",
        "python -m benchmarks.loaders",
    )
