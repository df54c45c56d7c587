"""A value that is computed at its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Calls `make` at the first use.

    >>> value = Once(lambda: 3)
    >>> value.made, value(), value.made
    (False, 3, True)
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self.value: T  # once it is made
        self.made = False  # True once the value exists

    def __call__(self) -> T:
        """Return the value."""
        if self._make is not None:
            self.value, self._make, self.made = self._make(), None, True
        return self.value
