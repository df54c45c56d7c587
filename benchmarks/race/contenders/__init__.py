"""One adapter a contender: `TITLE`, `grid(spec)` and `fit(problem, settings, referee)`.

`grid` lists the settings that the search tries for a problem, none where the contender cannot run it. `fit` starts the
referee's clock, trains, and lets the referee look at the model along the way; it returns or the referee ends it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

OURS = ("gnvpro", "gnvpro_krylov", "gnvpro_hybrid")
PEERS = (
    "adam",
    "torch_lbfgs",
    "reduced_lbfgs",
    "sklearn_mlp",
    "torch_lm",
    "optimistix_cg",
    "optimistix_qr",
    "scipy_least_squares",
    "pytorch_minimize",
    "optax_lbfgs",
)
NAMES = (*OURS, *PEERS)


def module(name: str) -> ModuleType:
    """The adapter; importing it imports the contender's library."""
    return import_module(f"{__name__}.{name}")
