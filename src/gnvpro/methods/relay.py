"""Random batches first, Gauss-Newton steps afterwards: how `auto` begins where the samples are many.

A pass over many samples is better spent on many short steps, each with the head eliminated on its batch (`adam_vpro`), until
the features are good. What is left then is to follow long curved valleys, for which Gauss-Newton steps are made.
How long the batches last, with c the cost of an exact step and D the budget, both in seconds or both in work units:

    D < 60 c              all of it: there would be few exact steps, and the learning rate should fall to zero until D
    D larger              two thirds of D, at most 60 c
    no budget             8000 steps, no less than 20 and no more than 300 epochs; four times as many without exact steps

At the end of that the learning rate is zero and a batch gains nothing more. What the clock decided is part of the state.

Legend: c -> exact_cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gnvpro.methods.protocol import Budget, HandsOn, Running, Start, State
from gnvpro.methods.running_adam_vpro import RunningAdamVPro
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport

NAME = "adam-vpro"  # of steps on batches, in the history
FEW_EXACT_STEPS = 60  # in the whole budget, for which the batches would not be left
SHARE = 2 / 3  # of the budget for batches, where it is larger
STEPS = 8000  # without a budget
LEAST_PASSES, MOST_PASSES = 40.0, 600.0
NO_EXACT_STEPS = 4  # times as many steps
LEAST_TO_FOLLOW = 6  # passes: a point, its gradient, a product, a trial


def part_for_batches(budget: Budget, kind: str, exact_cost: float, batch_share: float) -> Budget:
    """The part of a budget for batches, each a share of the samples; an exact step costs infinity where none can be."""
    by_clock = kind == "seconds" and math.isfinite(budget.seconds)
    now = budget.clock() if by_clock else 0.0
    given = budget.seconds - now if by_clock else budget.passes_left
    if math.isinf(given):
        more = NO_EXACT_STEPS if math.isinf(exact_cost) else 1
        part = min(max(2 * more * STEPS * batch_share, LEAST_PASSES), MOST_PASSES)
    elif given < FEW_EXACT_STEPS * exact_cost:
        part = given
    else:
        part = min(SHARE * given, FEW_EXACT_STEPS * exact_cost)
    if by_clock:
        return replace(budget, seconds=now + part)
    return replace(budget, limit=budget.meter.work + part * budget.share, seconds=math.inf)


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
