"""Calls inside the package, counted: small problems spend their time in them, not in arithmetic."""

from __future__ import annotations

import pytest
from benchmarks.calls import count, typical

SETUP = {"hybrid": 600, "dense": 710}  # most calls from `train` to the first record


@pytest.mark.parametrize(
    ("solver", "kind", "calls", "changes"),
    [("auto", "hybrid", 150, 100), ("hybrid", "hybrid", 130, 90), ("dense", "dense", 250, 130)],
)
def test_a_step_makes_few_calls(solver: str, kind: str, calls: int, changes: int) -> None:
    steps = count(12, solver=solver)
    made, changed = typical(steps, kind)
    assert made <= calls
    assert changed <= changes


@pytest.mark.parametrize("solver", SETUP)
def test_the_set_up_makes_few_calls_and_runs_the_model_at_most_three_times(solver: str) -> None:
    count(1, solver=solver)  # imports and caches
    first = count(1, solver=solver)[0]
    assert first.calls <= SETUP[solver]
    assert 1 <= first.runs <= 3
