"""A few of the random tables; `make soak` tries hundreds."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")

from tests.sklearn import random_tables


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(7, 12))
def test_an_estimator_is_not_behind_simple_models(seed: int) -> None:
    random_tables.check(seed)
