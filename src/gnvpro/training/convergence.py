"""When a run has learnt all that more work would teach it.

    gradient    |g| <= gradient * |g| at the first record
    settled     Phi fell by less than `fall` in a window of the last passes; in a run without any limit, also by less than
                `pays` per 100 passes
    turned up   the validation score was best in the first half of the work, and its loss has risen since (`scores.Rise`);
                only in a run without any limit

    seen rests  the smallest misfit on fresh points has not halved in a quarter of all iterations, at least 200: how runs of
                `pde.solve` without any limit end. A misfit that falls like k^-a with the iterations k passes if a > 2.4

The window is a share of all passes since the first record: a run that needed 1000 may rest for longer than one that needed
50. So if Phi falls like W^-a with the work W, the first rule tests the exponent, whatever the units of Phi, and may never end
the run: a limit does. Without a limit the second rule ends it at about W = 130 a / pays: training stops once the model is good
enough, not at full convergence.

The rules read the history alone, so a resumed run ends where the run never interrupted would have ended. A standstill counts
only if the method says that no better kind of steps is still to come (`MethodState.settles`). The first record holds the
objective at hand: another level, or other penalties, make it another one.

Legend: gradient, fall, pays, window -> `gnvpro.policy.StoppingPolicy`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

from gnvpro.minimize.status import Status
from gnvpro.policy import StoppingPolicy
from gnvpro.training.history import Record

WORK = attrgetter("work")
LEAST, SHARE = 200, 0.25  # window of `seen_rests`: minimum number of iterations, and share of all iterations
HALVED = 0.5


def end(rules: StoppingPolicy, history: Sequence[Record], first: int, settles: bool, capped: bool) -> Status | None:
    """Return how the objective came to rest; `settles` is False if at a standstill better steps are still to come."""
    if has_converged(rules, history, first):
        return Status.CONVERGED
    return Status.SETTLED if settles and has_settled(rules, history, first, capped) else None


def has_converged(rules: StoppingPolicy, history: Sequence[Record], first: int = 0) -> bool:
    """Return whether the last gradient is below its tolerance."""
    norm = history[-1].gradient_norm
    if norm is None or rules.gradient <= 0:
        return False
    for record in islice(history, first, None):
        if record.gradient_norm is not None:
            return norm <= rules.gradient * record.gradient_norm
    return False


def has_settled(rules: StoppingPolicy, history: Sequence[Record], first: int = 0, capped: bool = True) -> bool:
    """Return whether Phi fell by less than the rules require in the last window."""
    last = history[-1]
    window = max(rules.least_work, rules.window * (last.work - history[first].work))
    begun = bisect_right(history, last.work - window, key=WORK) - 1
    begun = min(begun, len(history) - 1 - rules.least_iterations)
    if begun < first:
        return False
    asked = rules.fall if capped else max(rules.fall, rules.pays * (last.work - history[begun].work) / 100)
    return history[begun].loss - last.loss < asked * abs(last.loss)


def rests(rules: StoppingPolicy, history: Sequence[Record], best: int) -> bool:
    """Return whether the best record lies in the first half of the work, and far enough back."""
    last = history[-1]
    since = last.work - history[best].work
    return since >= max(rules.least_work, last.work / 2) and len(history) - 1 - best >= rules.least_iterations


def first_record(history: Sequence[Record], first: int, start: int) -> int:
    """The first record of the last objective, known to be `first` before the records from `start` on."""

    for k in range(start, len(history)):
        last, old = history[k], history[first]
        if (last.level, last.theta_penalty, last.head_penalty) != (old.level, old.theta_penalty, old.head_penalty):
            first = k
    return first


def seen_rests(history: Sequence[Record]) -> bool:
    """Return whether the misfit on fresh points has gained little in the last window; called after the last record."""
    begun = len(history) - 1 - max(LEAST, round(SHARE * len(history)))
    return begun > 0 and not _least_seen(history) < HALVED * _least_seen(history[: begun + 1])


def _least_seen(history: Sequence[Record]) -> float:
    """Return the smallest misfit on fresh points so far."""
    seen = (record.validation_loss for record in history)
    return min((misfit for misfit in seen if misfit is not None and not math.isnan(misfit)), default=math.inf)
