"""Every threshold that selects an algorithm, as data.

One frozen dataclass per subject. Each field carries its unit, what it decides and the command that measured it, so that the
whole policy can be printed, compared and overridden:

    train(..., policy=replace(Policy(), batches=BatchPolicy(begin_from=None)))

Code elsewhere receives a policy and compares with its fields; it holds no threshold of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gnvpro.policy.batches import BatchPolicy
from gnvpro.policy.rows import Row, rows_of

__all__ = ["BatchPolicy", "Policy", "Row", "rows_of"]


@dataclass(frozen=True)
class Policy:
    """All thresholds, subject by subject."""

    batches: BatchPolicy = field(default_factory=BatchPolicy)
