"""When a run has learnt all that more work would teach it.

    gradient    |g| <= tolerance * |g| at the first record
    settled     Phi fell by less than a fraction in a window of the last passes; where the run has no cap, also by less than
                another fraction per 100 passes
    turned up   the validation score was best in the first half of the work, and its loss has risen since (`scores.Rise`);
                only where the run has no cap

The window is a share of all passes since the first record: a run that needed 1000 may rest for longer than one that needed
50. So where Phi falls like W^-a with the work W, the first rule asks for the exponent, whatever the units of Phi, and may
never end the run: a cap does. Without a cap the second ends it at about W = 130 a / fraction: who says nothing wants the model
when it is good, not when nothing can make it better.

All are asked of the history alone, so a resumed run ends where the run never interrupted would have ended. The first record
holds the objective at hand: another level, or other penalties, make it another one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gnvpro.minimize.status import Status
from gnvpro.training.history import Record


@dataclass(frozen=True)
class Settling:
    """The window, and how much Phi must fall in it."""

    share: float = 0.25  # of the work since the first record
    least_work: float = 100.0
    least_iterations: int = 20
    fall: float = 0.01  # of Phi
    pays: float = 0.05  # of Phi, per 100 work units, without a cap
    gradient: float = 1e-9  # times the first gradient norm

    def status(self, history: Sequence[Record], first: int = 0, capped: bool = True) -> Status | None:
        """Why the run is over, asked after its last record; None where it is not."""
        norm = history[-1].gradient_norm
        if norm is not None and self.gradient > 0:
            known = (record.gradient_norm for record in islice(history, first, None))
            if norm <= self.gradient * next(value for value in known if value is not None):
                return Status.CONVERGED
        return Status.SETTLED if self.is_settled(history, first, capped) else None

    def is_settled(self, history: Sequence[Record], first: int = 0, capped: bool = True) -> bool:
        """Whether Phi fell by less than is asked for in the last window."""
        last = history[-1]
        window = max(self.least_work, self.share * (last.work - history[first].work))
        begun = bisect_right(history, last.work - window, key=lambda record: record.work) - 1
        begun = min(begun, len(history) - 1 - self.least_iterations)
        if begun < first:
            return False
        asked = self.fall if capped else max(self.fall, self.pays * (last.work - history[begun].work) / 100)
        return history[begun].loss - last.loss < asked * abs(last.loss)

    def rests(self, history: Sequence[Record], best: int) -> bool:
        """Whether the best record lies in the first half of the work, and far enough back."""
        last = history[-1]
        since = last.work - history[best].work
        return since >= max(self.least_work, last.work / 2) and len(history) - 1 - best >= self.least_iterations


def first_record(history: Sequence[Record], first: int, start: int) -> int:
    """The first record of the last objective, known to be `first` before the records from `start` on."""

    def objective(k: int) -> tuple[int, float | None, float | None]:
        return history[k].level, history[k].theta_penalty, history[k].head_penalty

    for k in range(start, len(history)):
        if objective(k) != objective(first):
            first = k
    return first


RULE = Settling()
