"""Work: one unit is one pass, forward or backward, over all training samples. It is counted here and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

FIRST_PRODUCT = 6.0  # seconds of a product with J over those of one with its transpose, as long as none was made


@dataclass
class WorkMeter:
    """Counts passes over samples, and the seconds that eliminating the head took."""

    total_samples: int
    sample_passes: int = 0
    inner_seconds: float = 0.0
    made_again: int = 0  # samples linearised a second time because memory is short: not counted as work, see `passes`

    seconds_per_sample: dict[str, float] = field(default_factory=dict)  # of the last "forward", "jvp" and "vjp"

    def count(self, samples: int, passes: int = 1) -> None:
        """A number of passes over that many samples."""
        self.sample_passes += samples * passes

    def timed(self, kind: str, samples: int, seconds: float) -> None:
        """Count one pass over `samples` that took `seconds`."""
        self.sample_passes += samples
        self.seconds_per_sample[kind] = seconds / max(samples, 1)

    def seconds_of(self, products: float, points: float) -> float:
        """Predict the seconds of products with J' J and of points with their gradients, over all samples, by the last ones."""
        known = self.seconds_per_sample
        back = known.get("vjp", known.get("forward", 0.0))
        pair = known.get("jvp", FIRST_PRODUCT * back) + back
        return self.total_samples * (products * pair + points * (known.get("forward", 0.0) + back))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Passes in here are not counted."""
        before = self.sample_passes
        try:
            yield
        finally:
            self.sample_passes = before

    @contextmanager
    def inner_clock(self) -> Iterator[None]:
        """Counts the seconds in here as spent on the head."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.inner_seconds += time.perf_counter() - start

    @property
    def work(self) -> float:
        """Work units so far."""
        return self.sample_passes / self.total_samples
