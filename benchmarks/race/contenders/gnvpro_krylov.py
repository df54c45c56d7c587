"""gnvpro.train with solver="krylov"."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.race.problems import Spec

from . import gnvpro


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults, for classification."""
    return [{}] if spec.loss == "multinomial" else []


fit = partial(gnvpro.fit, solver="krylov")
