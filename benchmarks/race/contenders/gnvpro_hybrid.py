"""gnvpro.train with solver="hybrid"."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.race.problems import Spec

from . import gnvpro


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults."""
    return [{}]


fit = partial(gnvpro.fit, solver="hybrid")
