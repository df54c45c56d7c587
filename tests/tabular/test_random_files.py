"""A few of the random files; `make soak` tries hundreds."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")
pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from tests.tabular import random_files


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 100])
def test_damaged_files_are_answered_in_one_line(first: int) -> None:
    for seed in range(first, first + 60):
        random_files.check(seed)
