"""Distributions of the inputs, independent of each other: uniform over the samples' box unless others are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnvpro.arguments import has_method
from gnvpro.surrogate.likelihood import Array


@dataclass(frozen=True)
class Inputs:
    """One distribution per input: an object with `ppf` (scipy.stats), or (low, high) for a uniform one."""

    each: tuple[Any, ...]

    @classmethod
    def of(cls, given: Any, low: Array, high: Array) -> Inputs:
        """Return the distributions; None stands for uniform ones between low and high."""
        box = list(zip(low.tolist(), high.tolist(), strict=True))
        if given is None:
            return cls(tuple(box))
        if not isinstance(given, Sequence) or len(given) != len(box):
            raise ValueError(f"distribution must be a list with one entry for each of {len(box)} inputs, got {given!r}")
        for i, one in enumerate(given):
            if not (one is None or has_method(one, "ppf") or _is_interval(one)):
                raise ValueError(
                    f"distribution[{i}] must have a method ppf (such as scipy.stats.norm(0, 1)), be (low, high) for a uniform "
                    f"one, or None for the samples' range; got {one!r}"
                )
        return cls(tuple(box[i] if one is None else one for i, one in enumerate(given)))

    def __len__(self) -> int:
        return len(self.each)

    def at(self, unit: Array) -> Array:
        """Return the quantiles of points of the unit cube."""
        inside = np.clip(unit, 1e-12, 1 - 1e-12)
        columns = [
            one[0] + (one[1] - one[0]) * inside[:, i] if isinstance(one, tuple) else one.ppf(inside[:, i])
            for i, one in enumerate(self.each)
        ]
        return np.stack(columns, 1)


def _is_interval(one: object) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and all(isinstance(v, int | float) for v in one) and one[0] < one[1]


@dataclass(frozen=True)
class Propagated:
    """What a distribution of the inputs makes of the outputs."""

    mean: Any
    std: Any  # of the outputs, caused by the inputs
    surrogate_std: Any  # root mean square of the surrogate's own standard deviation
    samples: Array  # outputs at points drawn from the distribution

    def quantile(self, level: Any) -> Any:
        """Return quantiles of the outputs."""
        return np.quantile(self.samples, level, axis=0)
