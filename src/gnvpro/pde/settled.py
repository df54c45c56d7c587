"""When a run without a budget has come as far as it will soon.

    settled     the smallest misfit on fresh points has not halved in a window of the last iterations

The window is a quarter of all iterations, and 200 at least. A misfit that falls like k^-a with the iterations k is halved in
a quarter of them as long as a > 2.4: such a run goes on, at the latest until rounding ends it. It is asked of the history
alone, so a resumed run ends where the run never interrupted would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnvpro.pde.core import Record

LEAST, SHARE = 200, 0.25  # the window: iterations, and of all iterations
HALVED = 0.5


def is_settled(history: Sequence[Record]) -> bool:
    """Whether little was gained in the last window, asked after its last record."""
    begun = len(history) - 1 - max(LEAST, round(SHARE * len(history)))
    return begun > 0 and not _best(history) < HALVED * _best(history[: begun + 1])


def _best(history: Sequence[Record]) -> float:
    """The smallest misfit on fresh points so far."""
    seen = (record.validation_loss for record in history)
    return min((misfit for misfit in seen if misfit is not None and not math.isnan(misfit)), default=math.inf)
