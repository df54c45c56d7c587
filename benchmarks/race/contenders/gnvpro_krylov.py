"""gnvpro.train with solver="krylov"."""

from __future__ import annotations

from functools import partial
from typing import Any

from gnvpro.solvers import SOLVERS

from ..problems import Spec
from . import gnvpro

TITLE = "gnvpro, krylov"


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Defaults, for classification."""
    return [{}] if "krylov" in SOLVERS and spec.loss == "multinomial" else []


fit = partial(gnvpro.fit, solver="krylov")
