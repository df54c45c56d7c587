"""How far a run on batches is in its budget: what its learning rate falls with.

    progress  =  max(passes spent / passes given, seconds spent / seconds given)

Rates must follow from what a checkpoint holds, not from the clock at every step. So the clock is looked at once per
iteration: progress then, and how many passes will fit into what is left, at the pace of the passes so far. In between,
progress grows evenly with the passes. Without a budget it stays at zero.
"""

from __future__ import annotations

import math

from gnvpro.methods.protocol import Budget
from gnvpro.processes import Processes


class Pace:
    """The progress of a run, by its work and its seconds."""

    def __init__(self, budget: Budget, processes: Processes, state: list[float] | None = None) -> None:
        self.budget, self.processes = budget, processes
        if state is None:
            self.begun = [budget.meter.work, budget.clock()]
            self.progress, self.looked, self.left = 0.0, budget.meter.work, self._left(0.0)
            return
        work, seconds, limit, end, self.progress, self.looked, self.left = state
        self.begun = [work, seconds]
        if (limit, end) != (budget.limit, budget.seconds):  # a larger budget goes on
            self.look()

    def now(self) -> float:
        """Progress, from zero to one."""
        passes = (self.budget.meter.work - self.looked) / self.budget.share
        return min(1.0, self.progress + (1 - self.progress) * passes / max(self.left, 1e-12))

    def look(self) -> None:
        """At the clock and the meter."""
        budget, (work, seconds) = self.budget, self.begun
        spent = budget.meter.work - work
        by_clock = self.processes.largest((budget.clock() - seconds) / max(budget.seconds - seconds, 1e-12))
        self.progress = min(1.0, max(spent / max(budget.limit - work, 1e-12), by_clock))
        self.looked, self.left = budget.meter.work, self._left(spent / budget.share)

    def _left(self, passes: float) -> float:
        """Passes that fit into the budget, after so many."""
        budget = self.budget
        if not passes or budget.seconds == math.inf:
            return budget.passes_left
        each = (budget.clock() - self.begun[1]) / passes
        return min(budget.passes_left, -self.processes.largest(-budget.seconds_left / max(each, 1e-12)))

    @property
    def total(self) -> float:
        """Passes of the whole run."""
        return self.left / max(1 - self.progress, 1e-12)

    def state(self) -> list[float]:
        """What it was begun with, and when it was last looked at."""
        return [*self.begun, self.budget.limit, self.budget.seconds, self.progress, self.looked, self.left]
