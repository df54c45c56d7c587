"""The automatic learning rate."""

from __future__ import annotations

import math

import pytest

from gnvpro.stochastic.learning_rate import WARM_UP, cosine, usual_rate


def test_least_squares_takes_longer_steps_on_larger_batches_and_in_shorter_runs() -> None:
    by_batch = [usual_rate(True, size, 2000) for size in (1, 16, 128, 512)]
    assert by_batch == sorted(set(by_batch))
    by_steps = [usual_rate(True, 128, steps) for steps in (40_000, 4000, 400)]
    assert by_steps == sorted(set(by_steps))
    assert usual_rate(True, 128, math.inf) > 0  # without a budget


@pytest.mark.parametrize(
    ("batch", "steps", "best", "worse"),
    [
        (1, 40_000, (0.0096, 0.024), 0.06),
        (10, 4000, (0.024, 0.06), 0.15),
        (4, 10_000, (0.02, 0.048), 0.096),
        (16, 2500, (0.048, 0.096), 0.3),
        (512, 2400, (0.3, 0.54), 0.8),
    ],
)
def test_the_rule_is_near_the_best_of_the_rates_that_were_measured(
    batch: int, steps: int, best: tuple[float, float], worse: float
) -> None:
    """Relative errors of the best rates and of one that is too large: docs/lab/batches.md."""
    assert best[0] / 1.5 < usual_rate(True, batch, steps) < min(1.5 * best[1], worse)


def test_the_rate_rises_for_a_few_steps_and_falls_to_zero_with_the_budget() -> None:
    rising = [cosine(1.0, 0.0, step) for step in range(WARM_UP)]
    assert rising == sorted(rising)
    assert rising[-1] == 1
    falling = [cosine(1.0, k / 10, WARM_UP) for k in range(11)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == cosine(1.0, 1.5, WARM_UP) == 0
