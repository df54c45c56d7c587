"""Elimination of the head for losses other than least squares, and its exact uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row


@dataclass(frozen=True)
class HeadPolicy:
    """Elimination of the head for losses other than least squares, and its exact uncertainty."""

    newton_entries: int = row(
        1500,
        "entries",
        "eliminate heads up to this size by Newton's method with the whole Hessian",
        "python -m benchmarks.heads",
    )
    evidence_below: float = row(
        1.5,
        "s",
        "predicted cost of the joint matrix of theta and head up to which it is assembled",
        "python -m benchmarks.penalties",
    )
