"""Share of the budget that a run on batches has spent; its learning rate falls with it.

    progress  =  max(passes spent / passes given, seconds spent / seconds given)

Rates must follow from what a checkpoint holds, not from the clock at every step. So the clock is looked at once per
iteration: progress then, and how many more passes fit into the budget, at the pace so far. In between,
progress grows evenly with the passes. Without a budget it stays at zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gnvpro.methods.protocol import Budget
from gnvpro.processes import Processes
from gnvpro.state import State


@dataclass(frozen=True)
class Pace(State):
    """The progress of a run by its work and its seconds, when the clock was last read."""

    begun_work: float
    begun_seconds: float
    limit: float  # of the budget
    end: float  # of its seconds
    progress: float  # when the clock was last read
    looked: float  # work then
    left: float  # passes that fitted into the budget then

    @staticmethod
    def begun(budget: Budget) -> Pace:
        """The pace before the first pass."""
        work = budget.meter.work
        return Pace(work, budget.clock(), budget.limit, budget.seconds, 0.0, work, budget.passes_left)

    def now(self, budget: Budget) -> float:
        """Progress, from zero to one."""
        passes = (budget.meter.work - self.looked) / budget.share
        return min(1.0, self.progress + (1 - self.progress) * passes / max(self.left, 1e-12))

    def within(self, budget: Budget, processes: Processes) -> Pace:
        """The pace in a budget that may have grown since the clock was read."""
        if (self.limit, self.end) == (budget.limit, budget.seconds):
            return self
        return replace(self, limit=budget.limit, end=budget.seconds).looked_at(budget, processes)

    def looked_at(self, budget: Budget, processes: Processes) -> Pace:
        """Return the pace after a reading of the clock and the meter."""
        work, seconds = self.begun_work, self.begun_seconds
        spent = budget.meter.work - work
        by_clock = processes.largest((budget.clock() - seconds) / max(budget.seconds - seconds, 1e-12))
        progress = min(1.0, max(spent / max(budget.limit - work, 1e-12), by_clock))
        left = self._left(budget, processes, spent / budget.share)
        return replace(self, progress=progress, looked=budget.meter.work, left=left)

    def _left(self, budget: Budget, processes: Processes, passes: float) -> float:
        """Passes that fit into the budget, after this number of them."""
        if not passes or budget.seconds == math.inf:
            return budget.passes_left
        each = (budget.clock() - self.begun_seconds) / passes
        return min(budget.passes_left, -processes.largest(-budget.seconds_left / max(each, 1e-12)))

    @property
    def total(self) -> float:
        """Passes of the whole run."""
        return self.left / max(1 - self.progress, 1e-12)
