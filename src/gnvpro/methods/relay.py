"""Random batches first, Gauss-Newton steps afterwards: how `auto` begins on many samples.

A pass over many samples is better spent on many short steps, each with the head eliminated on its batch (`adam_vpro`), until
the features are good. Then Gauss-Newton steps follow the long curved valleys that remain.
The batches last 8000 steps, no less than 20 and no more than 300 epochs; four times as many without exact steps. A smaller
budget shortens them: the learning rate is zero at the end of the budget, or of these steps.
"""

from __future__ import annotations

from dataclasses import replace

from gnvpro.methods.protocol import Budget
from gnvpro.policy import BatchPolicy

LEAST_TO_FOLLOW = 6  # passes of a point, its gradient, a product and a trial


def part_for_batches(budget: Budget, rules: BatchPolicy, batch_share: float, exact_follow: bool) -> Budget:
    """Return the part of a budget for batches, each a share of the samples."""
    steps = rules.steps * (1.0 if exact_follow else rules.alone)
    passes = min(max(2 * steps * batch_share, rules.least_passes), rules.most_passes)
    return replace(budget, limit=min(budget.limit, budget.meter.work + passes * budget.share))
