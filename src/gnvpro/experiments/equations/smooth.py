"""Smooth linear problems: Poisson and heat, as in the logs of f-dangel/kfac-pinns-experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gnvpro import pde
from gnvpro.experiments.equations.posed import PosedEquations, fresh, shallow

PI = math.pi
DEEP = (64, 64, 48, 48)


def poisson2d(seed: int, widths: Sequence[int] = (64,)) -> PosedEquations:
    """-lap u = f on the unit square, u = sin(pi x) sin(pi y)."""
    u, box = pde.Field(shallow(2, seed, widths)), pde.points.Box([0, 0], [1, 1])

    def exact(x: Tensor) -> Tensor:
        return torch.sin(PI * x).prod(1)

    equations = [
        pde.Equation(-pde.laplacian(u), box.inside(900, seed), lambda x: 2 * PI**2 * exact(x), name="inside"),
        pde.Equation(u, box.boundary(120, seed), 0.0, name="boundary"),
    ]
    return PosedEquations(u, equations, exact, fresh(box, seed), box)


def poisson5d(seed: int) -> PosedEquations:
    """-lap u = f on the unit cube of five dimensions, u = sum of cos(pi x_i)."""
    u, box = pde.Field(shallow(5, seed)), pde.points.Box([0] * 5, [1] * 5)

    def exact(x: Tensor) -> Tensor:
        return torch.cos(PI * x).sum(1)

    equations = [
        pde.Equation(-pde.laplacian(u), box.inside(3000, seed), lambda x: PI**2 * exact(x), name="inside"),
        pde.Equation(u, box.boundary(500, seed), exact, name="boundary"),
    ]
    return PosedEquations(u, equations, exact, fresh(box, seed), box)


def heat(seed: int, dimension: int, widths: Sequence[int] = (64,)) -> PosedEquations:
    """u_t = lap u / 4 on the unit cube for times from 0 to 1; half the conditions at t = 0, half on the boundary."""
    u, box = (
        pde.Field(shallow(1 + dimension, seed, widths)),
        pde.points.Box([0] * (1 + dimension), [1] * (1 + dimension)),
    )

    def exact(x: Tensor) -> Tensor:
        if dimension == 1:
            return torch.exp(-(PI**2) * x[:, 0] / 4) * torch.sin(PI * x[:, 1])
        return torch.exp(-x[:, 0]) * torch.sin(2 * x[:, 1:]).sum(1)

    inside, edge = (900, 60) if dimension == 1 else (3000, 250)
    space = list(range(1, 1 + dimension))
    faces = [(axis, side) for axis in space for side in ("low", "high")]
    equation = pde.d(u, 0) - 0.25 * pde.laplacian(u, axes=space)
    equations = [
        pde.Equation(equation, box.inside(inside, seed), 0.0, name="inside"),
        pde.Equation(u, box.face(0, "low", edge, seed + 1), exact, name="start"),
        pde.Equation(u, box.boundary(edge, seed + 2, faces), exact, name="boundary"),
    ]
    return PosedEquations(u, equations, exact, fresh(box, seed), box)
