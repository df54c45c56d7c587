"""Random batches first, Gauss-Newton steps afterwards: how `auto` begins on many samples.

A pass over many samples is better spent on many short steps, each with the head eliminated on its batch (`adam_vpro`), until
the features are good. What is left then is to follow long curved valleys, for which Gauss-Newton steps are made.
The batches last 8000 steps, no less than 20 and no more than 300 epochs; four times as many without exact steps. A smaller
budget shortens them: the learning rate is zero at the end of the budget, or of these steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gnvpro.methods.protocol import Budget, HandsOn, Running, Start, State
from gnvpro.methods.running_adam_vpro import RunningAdamVPro
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.policy import BatchPolicy

NAME = "adam-vpro"  # of steps on batches, in the history
LEAST_TO_FOLLOW = 6  # passes of a point, its gradient, a product and a trial


def part_for_batches(budget: Budget, rules: BatchPolicy, batch_share: float, exact_follow: bool) -> Budget:
    """Return the part of a budget for batches, each a share of the samples."""
    steps = rules.steps * (1.0 if exact_follow else rules.alone)
    passes = min(max(2 * steps * batch_share, rules.least_passes), rules.most_passes)
    return replace(budget, limit=min(budget.limit, budget.meter.work + passes * budget.share))


class Relay(HandsOn):
    """A method on batches within its part of the budget, and what follows it."""

    def __init__(
        self,
        batches: RunningAdamVPro | None,
        follow: Callable[[Start, float, State | None], Running],
        budget: Budget,
        state: State | None,
    ) -> None:
        self.batches, self.follow, self.budget = batches, follow, budget
        self.after: Running | None = None
        self.first_value = math.inf if state is None else state["first_value"]
        if batches is not None:
            self.first_value = batches.first.value
        else:
            assert state is not None
            self.after = follow(Start(state["after"]["x"]), self.first_value, state["after"])
        self.current = self.after or batches

    def iterate(self) -> StepReport | None:
        """An epoch or a few, or a step."""
        if self.after is None:
            assert self.batches is not None
            report = None if self.batches.is_over else self.batches.iterate()
            if report is not None:
                return replace(report, solver=NAME)
            late = self.batches.problem.processes.all(self.budget.seconds_left <= self.batches.reserved)
            if self.budget.passes_left < LEAST_TO_FOLLOW or late:
                self._status = Status.SECONDS_SPENT if late else Status.WORK_SPENT
                return None
            last = self.batches.point
            self.current = self.after = self.follow(Start(last.theta, last.W), self.first_value, None)
        return self.after.iterate()

    def state(self) -> State:
        """Of the method at work, and how much of the budget the batches have."""
        if self.after is None:
            assert self.batches is not None
            return {
                "batches": self.batches.state(),
                "part": [self.batches.given.limit, self.batches.given.seconds],
                "first_value": self.first_value,
            }
        return {"after": self.current.state(), "first_value": self.first_value}
