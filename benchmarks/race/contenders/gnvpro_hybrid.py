"""gnvpro.train with solver="hybrid"."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.race.problems import Spec

from gnvpro.methods.choose_solver import SOLVERS

from . import gnvpro


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults, where this version of gnvpro has it."""
    return [{}] if "hybrid" in SOLVERS else []


fit = partial(gnvpro.fit, solver="hybrid")
