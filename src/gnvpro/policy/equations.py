"""Thresholds of the trials in which `pde.solve` chooses the features of a field."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row

FEATURES = "python -m benchmarks.features"


@dataclass(frozen=True)
class EquationPolicy:
    """Thresholds of the trials in which `pde.solve` chooses the features of a field."""

    trial_share: float = row(0.3, "of the seconds", "most that trials of features may take", FEATURES)
    trial_operations: float = row(3e10, "operations", "the same if no seconds are given", FEATURES)
    operations_per_second: float = row(4e9, "operations", "of trials, on one core", FEATURES)
    first_steps: int = row(8, "steps", "of the cheapest candidate in the first round of trials", FEATURES)
    longer: float = row(3.0, "times", "operations of a round relative to the one before", FEATURES)
    keep_within: float = row(10.0, "times the best misfit", "candidates that go on to the next round", FEATURES)
