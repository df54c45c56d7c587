"""The learning rate that nobody has to choose."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gnvpro.stochastic.learning_rate import FIRST, TRIALS, WARM_UP, cosine, found_rate, next_trial, trial_rate


def searched(score: Callable[[float], float]) -> tuple[float, list[float]]:
    """The rate that is found, and those that were tried."""
    scores: dict[int, float] = {}
    while (k := next_trial(scores)) is not None:
        assert k not in scores
        scores[k] = score(trial_rate(k))
    return found_rate(scores), [trial_rate(k) for k in scores]


@pytest.mark.parametrize("best", [FIRST / 20, FIRST, FIRST * 20])
def test_the_rate_is_found_by_climbing_and_what_is_no_number_loses(best: float) -> None:
    found, tried = searched(lambda rate: math.inf if rate > 3 * best else abs(math.log(rate / best)))
    assert 1 / 1.6 < found / best < 1.6
    assert len(tried) <= TRIALS


def test_trials_without_a_number_end_with_the_smallest_rate() -> None:
    found, tried = searched(lambda rate: math.inf)
    assert found == min(tried)
    assert len(tried) == TRIALS


def test_the_rate_rises_for_a_few_steps_and_falls_to_zero_with_the_budget() -> None:
    rising = [cosine(1.0, 0.0, step) for step in range(WARM_UP)]
    assert rising == sorted(rising)
    assert rising[-1] == 1
    falling = [cosine(1.0, k / 10, WARM_UP) for k in range(11)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == cosine(1.0, 1.5, WARM_UP) == 0
