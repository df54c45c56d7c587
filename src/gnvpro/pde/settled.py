"""The end of a run without a budget.

    settled     the smallest misfit on fresh points has not halved in a window of the last iterations

The window is a quarter of all iterations, at least 200. A misfit that falls like k^-a with the iterations k halves
in a quarter of them if a > 2.4; such a run continues until rounding ends it. The rule depends on the history alone,
so a resumed run ends at the same iteration as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnvpro.pde.core import Record

LEAST, SHARE = 200, 0.25  # the window: minimum number of iterations, and share of all iterations
HALVED = 0.5


def is_settled(history: Sequence[Record]) -> bool:
    """Return True if the last window gained little; called after the last record."""
    begun = len(history) - 1 - max(LEAST, round(SHARE * len(history)))
    return begun > 0 and not _best(history) < HALVED * _best(history[: begun + 1])


def _best(history: Sequence[Record]) -> float:
    """Return the smallest misfit on fresh points so far."""
    seen = (record.validation_loss for record in history)
    return min((misfit for misfit in seen if misfit is not None and not math.isnan(misfit)), default=math.inf)
