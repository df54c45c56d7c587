"""Names of methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gnvpro.arguments import check_choice
from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.gnvpro import GaussNewton, GNvpro
from gnvpro.methods.lbfgs import LBFGSvpro
from gnvpro.methods.protocol import Method, Solver
from gnvpro.methods.stochastic import NESTEROV, TorchOptimizer

METHODS: dict[str, Callable[[], Method]] = {
    **{kind.name: kind for kind in (GNvpro, GaussNewton, LBFGSvpro, AdamVPro)},
    "adam": lambda: TorchOptimizer(torch.optim.Adam),
    "nesterov": lambda: TorchOptimizer(NESTEROV),
}


def as_method(method: str | Method, solver: str | Solver | None, seed: int | None = None) -> Method:
    """Return the method of that name with its defaults, or the object itself, with this solver and seed if they are given."""
    if seed is not None:
        chosen = as_method(method, solver)
        if chosen.seed not in (0, seed):
            raise ValueError(f"seed={seed!r} is given beside method={method!r}, which has one; give it in one place")
        return replace(chosen, seed=seed)
    given = method
    if isinstance(method, str):
        kind = METHODS[check_choice("method", method, METHODS)]
        if solver is not None and kind in (GNvpro, GaussNewton):
            return kind(solver=solver)  # type: ignore[arg-type]  # checked by the method
        method = kind()
    elif not isinstance(method, Method):
        raise TypeError(
            f"method must be one of {', '.join(map(repr, METHODS))} or an object such as gnvpro.methods.AdamVPro(lr=1e-2) "
            f"(your own: subclass gnvpro.extend.Method), got {method!r}"
        )
    if solver is None:
        return method
    if not isinstance(method, GNvpro | GaussNewton):
        raise ValueError(
            f"solver={solver!r} is for method='gnvpro', got method={given!r}, which makes its steps itself; "
            "leave solver out"
        )
    if method.solver != type(method)().solver:
        raise ValueError(f"solver={solver!r} is given beside method={method!r}, which has one; give it in one place")
    return replace(method, solver=solver)  # type: ignore[arg-type]  # checked by the method
