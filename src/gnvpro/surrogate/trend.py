"""Polynomial trends: columns beside the kernel, with a coefficient that no prior holds back.

constant   1                 linear   1, x_e                 squares   1, x_e, x_e^2            quadratic   all x_e x_f too
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Protocol

import torch
from torch import Tensor

from gnvpro.surrogate.kernel import VALUES, Kind

TRENDS = ("constant", "linear", "squares", "quadratic")


def monomials(trend: str, inputs: int) -> tuple[Kind, ...]:
    """Return the inputs that each column multiplies.

    >>> monomials("quadratic", 2)
    ((), (0,), (1,), (0, 0), (0, 1), (1, 1))
    """
    linear = ((), *((e,) for e in range(inputs)))
    if trend == "constant":
        return linear[:1]
    if trend == "linear":
        return linear
    if trend == "squares":
        return linear + tuple((e, e) for e in range(inputs))
    return linear + tuple(combinations_with_replacement(range(inputs), 2))


class Below(Protocol):
    """The model of a cheaper simulator: row kinds at inner points, one after another, as one column."""

    def column(self, x: Tensor, kinds: Sequence[Kind]) -> Tensor:
        """Return values or derivatives."""


@dataclass(frozen=True)
class Trend:
    """Columns beside the kernel: monomials, and the model of a cheaper simulator."""

    terms: tuple[Kind, ...]
    below: Below | None = None

    def columns(self, x: Tensor, rows: Sequence[Kind] = VALUES) -> Tensor:
        """Return the columns, or their derivatives, at x: row kinds one after another."""
        own = columns(x, self.terms, rows)
        return own if self.below is None else torch.cat([own, self.below.column(x, rows)], 1)


def columns(x: Tensor, terms: Sequence[Kind], rows: Sequence[Kind] = VALUES) -> Tensor:
    """Return the columns, or their derivatives, at x: row kinds one after another."""
    return torch.cat([torch.stack([_column(x, term, kind) for term in terms], 1) for kind in rows])


def _column(x: Tensor, term: Kind, kind: Kind) -> Tensor:
    powers, factor = Counter(term), 1.0
    for e in kind:
        factor *= powers[e]
        powers[e] -= 1
    column = torch.full_like(x[:, 0], factor)
    if factor:
        for e, power in powers.items():
            column = column * x[:, e] ** power
    return column
