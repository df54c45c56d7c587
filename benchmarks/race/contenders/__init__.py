"""One adapter per contender, and its display name: `grid(spec)` and `fit(problem, settings, referee)`.

`grid` lists the settings that the search tries for a problem; an empty list means that the contender cannot run it.
`fit` starts the referee's clock, trains, and lets the referee evaluate the model during training; it returns, or the
referee ends it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

OURS = {"gnvpro": "**gnvpro**", "gnvpro_krylov": "**gnvpro**, krylov", "gnvpro_hybrid": "**gnvpro**, hybrid"}
PEERS = {
    "adam": "ADAM",
    "torch_lbfgs": "torch L-BFGS",
    "reduced_lbfgs": "reduced L-BFGS, ten lines",
    "sklearn_mlp": "scikit-learn MLP, lbfgs",
    "torch_lm": "torch-levenberg-marquardt",
    "optimistix_cg": "optimistix LM, NormalCG",
    "optimistix_qr": "optimistix LM, QR",
    "scipy_least_squares": "scipy least_squares",
    "pytorch_minimize": "pytorch-minimize",
    "optax_lbfgs": "optax L-BFGS",
}
TITLES = OURS | PEERS


def module(name: str) -> ModuleType:
    """Import and return the adapter, together with the contender's library."""
    return import_module(f"{__name__}.{name}")
