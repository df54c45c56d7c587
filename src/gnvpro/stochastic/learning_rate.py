"""A learning rate that nobody has to choose, lowered to zero along a cosine.

Rates are relative to the size of the weights that they change (see `gnvpro.methods.batch_steps`).

    schedule    rate(p) = rate * min(1, steps / WARM_UP) * (1 + cos(pi p)) / 2,        p: share of the budget spent

For losses other than least squares one rate, USUAL, serves all networks that were measured. With least squares, where there is
little noise, the best rate depends on the problem, and is found by short trials after a few hundred steps at FIRST:

    trial       a whole run in small: so many steps at a rate that falls to zero along a cosine;
                its score is the mean loss of the last batches, of which every trial sees the same
    found       trials at FIRST, FIRST * FACTOR, ... as long as the score betters by a tenth, or in the other direction

Training goes on from where the best trial ended. Measured on a regression with 1443 parameters, the best rate of the first 100
steps from the start is three times the best of 4000; after 200 steps at FIRST, trials of 100 steps ask for what is best in a
long run. A single run with a rising rate would be cheaper and does not tell: with the head eliminated the loss of a batch goes
on falling at rates ten times too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

FIRST, FACTOR = 0.15, 2.5
TRIALS = 6  # at most
WORTHWHILE = 0.9  # times the score of the trial before: another one follows
USUAL = 0.1  # of losses other than least squares
WARM_UP = 20  # steps
LAST = 0.2  # of a trial's steps are its score


def next_trial(scores: Mapping[int, float]) -> int | None:
    """Which of the rates FIRST * FACTOR**k to try next, after these scores; None where the search is over.

    A score that is not a number must be given as infinity.

    >>> next_trial({}), next_trial({0: 0.3}), next_trial({0: 0.3, 1: 0.2}), next_trial({0: 0.3, 1: 0.2, 2: 0.25})
    (0, 1, 2, None)
    """
    for k in (0, 1):
        if k not in scores:
            return k
    up = scores[1] < scores[0]  # not where neither is a number
    last, before = (max(scores), max(scores) - 1) if up else (min(scores), min(scores) + 1)
    betters = scores[last] <= WORTHWHILE * scores[before] or math.isinf(scores[before])
    return last + (1 if up else -1) if betters and len(scores) < TRIALS else None


def found_rate(scores: Mapping[int, float]) -> float:
    """The rate of a run, after trials with these scores; the smaller of equals.

    >>> found_rate({0: 0.3, 1: 0.2, 2: 0.25})
    0.375
    """
    return trial_rate(min(scores, key=lambda k: (scores[k], k)))


def trial_rate(k: int) -> float:
    """The rate of a trial."""
    return FIRST * FACTOR**k


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
