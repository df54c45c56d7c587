"""A learning rate that nobody has to choose: found by short trials, then lowered to zero along a cosine.

    trial       a whole run in small: so many steps from the start, at a rate that falls to zero along a cosine;
                its score is the mean loss of the last batches, of which every trial sees the same
    found       trials at FIRST, FIRST * FACTOR, ... as long as the score betters, or in the other direction;
                SAFETY times the best of them, since a long run wants shorter steps than a short one
    schedule    rate(p) = found * min(1, steps / WARM_UP) * (1 + cos(pi p)) / 2,        p: share of the budget spent

What the trials reach is thrown away; what they cost is counted. Measured on a regression with 1443 parameters, the best
rate is 0.16 for 100 steps, 0.08 for 500 and 0.03 to 0.04 for 6000; trials of 30 steps ask for 0.3. A single run with a
rising rate would be cheaper and does not tell: with the head eliminated the loss of a batch goes on falling at rates
ten times too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable

FIRST, FACTOR = 2e-2, 2.5
TRIALS = 6  # at most
UNTRIED = 5e-3  # the rate where the budget has no room for trials
WARM_UP = 20  # steps
SAFETY = 0.25
LAST = 0.2  # of a trial's steps are its score


def find_rate(
    trial: Callable[[float], float], first: float = FIRST, factor: float = FACTOR, most: int = TRIALS
) -> float:
    """The rate with the lowest score near the first, the smaller of equals; a score that is not a number is the worst.

    >>> round(find_rate(lambda rate: abs(math.log(rate / 0.003))), 4)  # a quarter of 0.0032
    0.0008
    """
    scores: dict[int, float] = {}

    def score(k: int) -> float:
        if k not in scores:
            value = trial(first * factor**k)
            scores[k] = value if math.isfinite(value) else math.inf
        return scores[k]

    best, direction = 0, 1
    score(0)
    if score(1) >= score(0):  # so it is where neither is a number
        direction = -1
    while len(scores) < most:
        if score(best + direction) >= scores[best] and math.isfinite(scores[best]):
            break
        best += direction
    best = min(scores, key=lambda k: (scores[k], k))
    return SAFETY * first * factor**best


def score_of(losses: list[float]) -> float:
    """The mean of a trial's last losses.

    >>> score_of([5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5])
    0.5
    """
    last = losses[-max(1, round(LAST * len(losses))) :]
    return sum(last) / len(last)


def cosine(rate: float, progress: float, steps: int) -> float:
    """The rate after a share `progress` of the budget, in step number `steps`, counted from zero.

    >>> cosine(0.1, 0.0, 1000), cosine(0.1, 0.5, 1000)
    (0.1, 0.05)
    """
    return rate * min(1.0, (steps + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
