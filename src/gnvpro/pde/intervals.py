"""Intervals of unknown constants: how far noise in the data and errors of the field may have moved them.

At the end of a run let A = [d rho / d theta, Z, d rho / d constants] be the rows' derivative in all unknowns. Noise e in
the values of an equation with given points, of standard deviation s, moves the least-squares solution by A^+ e. With h_i the
leverage of row i (the share of its own noise that the fit follows),

    s^2       =  |rho|^2 / sum(1 - h_i)                          over the rows of that equation
    var(c)    =  sum over those equations of s^2 |rows of A^+ for c|^2
    interval  =  c +- 1.96 sqrt(var(c))

Equations at drawn points have no noise: their residuals are errors of the field.

Legend: A -> A, A^+ -> inverse, h -> leverage.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gnvpro.pde.field_head import FieldFit
from gnvpro.pde.system import Carried, System

RIDGE = 1e-10  # relative to the columns: unknowns that hardly change the rows stay as they are
QUANTILE = 1.959963984540054  # of 95%


@torch.no_grad()
def intervals_of(system: System, carried: Carried, x: Tensor, fit: FieldFit) -> dict[str, tuple[float, float]]:
    """Return a 95% interval for each unknown constant, by name; a second one of a name has its number appended."""
    if not system.constants:
        return {}
    J = system.jacobian(carried, x, fit.W, fit.assembled.parts)
    A = torch.cat([J, fit.assembled.Z], 1)
    first = system.n_theta
    scale = A.norm(dim=0).clamp(min=torch.finfo(A.dtype).tiny)
    ridge = RIDGE * torch.eye(A.shape[1], dtype=A.dtype)
    Q, R = torch.linalg.qr(torch.cat([A / scale, ridge]))
    Q, own = Q[: len(A)], range(first, first + len(system.constants))
    chosen = torch.eye(A.shape[1], dtype=A.dtype)[:, own]
    inverse = (Q @ torch.linalg.solve_triangular(R.T, chosen, upper=False)).T / scale[own][:, None]  # rows of A^+
    variance = torch.zeros(len(system.constants), dtype=torch.float64)
    leverage = system.by_equation(Q.square().sum(1))
    residuals = system.by_equation(fit.assembled.residual)
    influence = inverse.split([e.rows for e in system.equations], 1)
    for equation, h, rho, moved in zip(system.equations, leverage, residuals, influence, strict=True):
        free = float((1 - h).sum())
        if equation.can_be_redrawn or not free > 0.5:
            continue
        variance += float(rho.square().sum()) / free * moved.square().sum(1)
    made = dict[str, tuple[float, float]]()
    for i, (constant, each) in enumerate(zip(system.constants, variance.tolist(), strict=True)):
        value, half = float(x[first + i]), QUANTILE * math.sqrt(each)
        name = f"{constant.name} {i}" if constant.name in made else constant.name
        made[name] = (value - half, value + half)
    return made
