"""An automatic learning rate, lowered to zero along a cosine.

Rates are relative to the size of the weights that they change (see `gnvpro.methods.batch_steps`).

    schedule          rate(p) = rate * min(1, steps / WARM_UP) * (1 + cos(pi p)) / 2,        p: share of the budget spent
    least squares     rate = SQUARES * (batch / BATCH)^0.4 * (steps / STEPS)^-0.35           steps: of the whole run
    other losses      rate = USUAL

Small batches are noisy and need small steps; short runs need long steps. Constant and powers were chosen on three
regressions with batches of 1 to 512 and 320 to 40,000 steps; the best of a few rates, a factor of about two apart,
is within 1.5 times the rule. Short trials of several rates were no better: the best rate of 100 steps is not that of
a long run, and the loss of a small batch is no evidence, because the head fits it at any rate.
"""

from __future__ import annotations

import math

SQUARES, USUAL = 0.3, 0.1
BATCH, STEPS = 128, 1000
BY_BATCH, BY_STEPS = 0.4, -0.35
FEWEST, MOST = 200, 100_000  # steps: outside of the measured range the rate is constant
WARM_UP = 20  # steps, or fewer


def usual_rate(squares: bool, batch_size: int, steps: float) -> float:
    """Return the default rate of a run with this number of steps.

    >>> usual_rate(True, 128, 1000), usual_rate(False, 128, 1000)
    (0.3, 0.1)
    """
    if not squares:
        return USUAL
    steps = min(max(steps, FEWEST), MOST)
    return SQUARES * (batch_size / BATCH) ** BY_BATCH * (steps / STEPS) ** BY_STEPS


def cosine(rate: float, progress: float, steps: int, warm_up: int = WARM_UP) -> float:
    """Return the rate after a share `progress` of the budget, in step `steps` (from zero); it rises for a few steps.

    >>> cosine(0.1, 0.0, 1000), cosine(0.1, 0.5, 1000)
    (0.1, 0.05)
    """
    return rate * min(1.0, (steps + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
