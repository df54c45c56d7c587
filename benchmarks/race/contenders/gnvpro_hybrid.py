"""gnvpro.train with solver="hybrid"."""

from __future__ import annotations

from functools import partial
from typing import Any

from gnvpro.solvers import SOLVERS

from ..problems import Spec
from . import gnvpro

TITLE = "gnvpro, hybrid"


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults, for classification."""
    return [{}] if "hybrid" in SOLVERS and spec.loss == "multinomial" else []


fit = partial(gnvpro.fit, solver="hybrid")
