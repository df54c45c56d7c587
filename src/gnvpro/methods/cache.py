"""Values that the steps of a run can compute again: evaluated points, local models, factors.

The run owns the cache. One law holds: dropping a cache at any time changes no bit of the result. What is then
computed again does not count as work, because it was counted the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, TypeVar

from gnvpro.network.work import WorkMeter

T = TypeVar("T")


class Cache:
    """Values by name, each kept for the objects that it was computed from.

    Args:
        meter: the meter of the run, whose count stays the same if a value is computed again.

    >>> cache, owner = Cache(WorkMeter(1)), object()
    >>> cache.keep("square", 4, owner)
    >>> cache.recall("square", lambda: 5, owner), cache.recall("square", lambda: 5, object())
    (4, 5)
    """

    def __init__(self, meter: WorkMeter) -> None:
        self._meter = meter
        self._kept: dict[str, tuple[tuple[object, ...], Any]] = {}

    def keep(self, name: str, value: object, *owners: object) -> None:
        """Store a value for these owners; drop the last value of this name."""
        self._kept[name] = owners, value

    def recall(self, name: str, make: Callable[[], T], *owners: object) -> T:
        """Return the value kept for these very owners; otherwise make it again, without counting work."""
        kept = self._kept.get(name)
        if kept is not None and all(map(is_, kept[0], owners)):
            value: T = kept[1]
            return value
        value = self.again(make)
        self.keep(name, value, *owners)
        return value

    def again(self, make: Callable[[], T]) -> T:
        """Make a value again, without counting work."""
        meter = self._meter
        passes, inner_seconds = meter.sample_passes, meter.inner_seconds
        try:
            return make()
        finally:
            meter.sample_passes, meter.inner_seconds = passes, inner_seconds

    def forget(self, name: str) -> None:
        """Free the value of this name."""
        self._kept.pop(name, None)

    def drop(self) -> None:
        """Free everything."""
        self._kept.clear()
