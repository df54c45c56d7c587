"""A value that is computed at its first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Once(Generic[T]):
    """Calls `make` at the first use.

    >>> value = Once(lambda: 3)
    >>> value.made, value(), value.made
    (False, 3, True)
    """

    make: Callable[[], T] | None
    value: T = field(init=False)  # once it is made
    made: bool = field(default=False, init=False)

    def __call__(self) -> T:
        """Return the value."""
        if self.make is not None:
            self.value, self.make, self.made = self.make(), None, True
        return self.value
