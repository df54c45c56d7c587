"""Solvers of the steps of `GNvpro` and `GaussNewton`, for `train(solver=...)`.

Auto     cheap and exact steps in turn: the default
Dense    exact steps from the assembled Gauss-Newton matrix
Krylov   steps from a Krylov space of the Gauss-Newton matrix
Hybrid   quasi-Newton steps, and now and then a Krylov space
"""

from gnvpro.methods.auto import Auto
from gnvpro.methods.step_solvers import Dense, Hybrid, Krylov

__all__ = [
    "Auto",
    "Dense",
    "Hybrid",
    "Krylov",
]
