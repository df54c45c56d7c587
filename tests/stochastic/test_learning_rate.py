"""The learning rate that nobody has to choose."""

from __future__ import annotations

import math

import pytest

from gnvpro.stochastic.learning_rate import SAFETY, TRIALS, WARM_UP, cosine, find_rate


@pytest.mark.parametrize("best", [1e-3, 2e-2, 4e-1])
def test_the_rate_is_found_by_climbing_and_what_is_no_number_loses(best: float) -> None:
    tried: list[float] = []

    def trial(rate: float) -> float:
        tried.append(rate)
        return math.nan if rate > 3 * best else abs(math.log(rate / best))

    assert 1 / 1.6 < 4 * find_rate(trial) / best < 1.6  # a quarter of the best
    assert len(tried) == len(set(tried)) <= TRIALS


def test_trials_without_a_number_end_with_the_smallest_rate() -> None:
    tried: list[float] = []
    assert find_rate(lambda rate: (tried.append(rate), math.nan)[1]) == SAFETY * min(tried)
    assert len(tried) == TRIALS


def test_the_rate_rises_for_a_few_steps_and_falls_to_zero_with_the_budget() -> None:
    rising = [cosine(1.0, 0.0, step) for step in range(WARM_UP)]
    assert rising == sorted(rising)
    assert rising[-1] == 1
    falling = [cosine(1.0, k / 10, WARM_UP) for k in range(11)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == cosine(1.0, 1.5, WARM_UP) == 0
