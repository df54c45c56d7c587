"""Thresholds of the trials in which `pde.solve` chooses the features of a field."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row

FEATURES = "python -m benchmarks.features"


@dataclass(frozen=True)
class EquationPolicy:
    """Thresholds of the trials in which `pde.solve` chooses the features of a field."""

    trial_share: float = row(0.3, "of the seconds", "for trials of features, and for all times before slabs", FEATURES)
    trial_operations: float = row(3e10, "operations", "the same if no seconds are given", FEATURES)
    operations_per_second: float = row(4e9, "operations", "of trials, on one core", FEATURES)
    first_steps: int = row(8, "steps", "of the cheapest candidate in the first round of trials", FEATURES)
    longer: float = row(3.0, "times", "operations of a round relative to the one before", FEATURES)
    march_above: float = row(1e-6, "of the zero field's misfit", "march in time if trials end above", FEATURES)
    first_slabs: int = row(8, "slabs", "length of the first slab of time, as a share of all", FEATURES)
    most_slabs: int = row(4000, "slabs", "shortest slab, as a share of all", FEATURES)
    slab_growth: float = row(1.5, "times", "length of a slab relative to the last that was solved", FEATURES)
    slab_error: float = row(1e-8, "relative error", "halve a slab whose estimated error is above", FEATURES)
    worst_slab: float = row(1e-3, "relative error", "stop at a shortest slab whose estimated error is above", FEATURES)
    slab_steps: int = row(60, "steps", "most steps on a slab", FEATURES)
    keep_within: float = row(10.0, "times the best misfit", "candidates that go on to the next round", FEATURES)

    def operations_in(self, seconds: float) -> float:
        """Operations that fit into the share of the seconds that trials may take."""
        return self.trial_share * seconds * self.operations_per_second
