"""Fronts and waves: convection, Burgers, Allen-Cahn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gnvpro import pde
from gnvpro.experiments.equations import references
from gnvpro.experiments.equations.posed import PosedEquations, fresh, shallow, xavier

PI = math.pi


def convection(seed: int, spread: Sequence[float] | None = (60.0, 3.0)) -> PosedEquations:
    """u_t + 40 u_x = 0, periodic, u = sin x at t = 0.

    Sine features: one of them, moved to the right frequencies, is the solution. `spread` multiplies the first weights along t
    and x, so that frequencies of 40 are within reach; without it every run ends far from the solution.
    """
    box = pde.points.Box([0, 0], [1, 2 * PI])
    u = pde.Field(shallow(2, seed, (64,), spread, activation=pde.Sine))
    left = box.face(1, "low", 200, seed).points
    right = left + torch.tensor([0.0, 2 * PI], dtype=torch.float64)
    equations = [
        pde.Equation(pde.d(u, 0) + 40 * pde.d(u, 1), box.inside(3000, seed), 0.0, name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: torch.sin(x[:, 1]), name="start"),
        pde.Equation(u.at(left) - u.at(right), None, 0.0, name="periodic"),
    ]
    return PosedEquations(u, equations, lambda x: torch.sin(x[:, 1] - 40 * x[:, 0]), fresh(box, seed), box)


def burgers(seed: int) -> PosedEquations:
    """u_t + u u_x = 0.01/pi u_xx, u = -sin(pi x) at t = 0: a front forms at x = 0.

    Three layers: one hidden layer of sixty units, with the viscosity lowered in stages, never came below a relative error of
    .3, because a feature tanh(a t + b x + c) is as steep at t = 0 as it is at the front.
    """
    box = pde.points.Box([0, -1], [1, 1])
    u = pde.Field(xavier(2, seed, (20, 20, 20)))
    viscosity = 0.01 / PI
    equation = pde.d(u, 0) + u * pde.d(u, 1) - viscosity * pde.d(u, 1, 1)
    equations = [
        pde.Equation(equation, box.inside(1000, seed), 0.0, name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: -torch.sin(PI * x[:, 1]), name="start"),
        pde.Equation(u, box.boundary(60, seed, [(1, "low"), (1, "high")]), 0.0, name="boundary"),
    ]
    return PosedEquations(u, equations, lambda x: references.burgers(x, viscosity), fresh(box, seed), box)


def allen_cahn(seed: int) -> PosedEquations:
    """u_t = 1e-4 u_xx + 5 u - 5 u^3, periodic by its first layer, u = x^2 cos(pi x) at t = 0.

    Around u = 0 an error grows like e^(5 t): a residual at time t is worth e^(-5 t) of one at the start, and is weighted so.
    Where the period ends the start has a kink, which no smooth network has: `diffused_kink` stands beside it.
    """
    box = pde.points.Box([0, -1], [1, 1])
    network = xavier(3, seed, (20, 20, 20), pde.Periodic(2, {1: 2.0}))
    u = pde.Field(pde.Beside(network, pde.Functions(diffused_kink)))
    equation = pde.d(u, 0) - 1e-4 * pde.d(u, 1, 1) - 5 * u + 5 * u**3
    equations = [
        pde.Equation((lambda x: torch.exp(-5 * x[:, 0])) * equation, box.inside(1000, seed), 0.0, name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: x[:, 1] ** 2 * torch.cos(PI * x[:, 1]), name="start"),
    ]
    return PosedEquations(u, equations, references.allen_cahn, fresh(box, seed), box)


def diffused_kink(x: Tensor) -> Tensor:
    """|s| at t = 0, and what diffusion by 1e-4 makes of it: s erf(s / w) + w / sqrt(pi) e^-(s / w)^2, w = sqrt(4e-4 t).

    s is the distance from x = -1 and 1, bent so that it is smooth in between.
    """
    s, width = 2 / PI * torch.cos(PI / 2 * x[:, 1:]), torch.sqrt(4e-4 * (x[:, :1] + 1e-6))
    return s * torch.erf(s / width) + width / math.sqrt(PI) * torch.exp(-((s / width) ** 2))
