"""Problems whose solution is known from finite elements: Helmholtz, a re-entrant corner, an unknown coefficient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gnvpro import pde
from gnvpro.experiments.equations import references
from gnvpro.experiments.equations.posed import PosedEquations, shallow

PI = math.pi


def helmholtz2d(seed: int) -> PosedEquations:
    """lap u + 28 u = f on [-1, 1]^2, u = 0 on the boundary, f a bell around (0.3, 0.2)."""
    box = pde.points.Box([-1, -1], [1, 1])
    u = pde.Field(shallow(2, seed, (100,), spread=(4.0, 4.0)))
    equation = pde.laplacian(u) + references.WAVE_NUMBER_SQUARED * u
    equations = [
        pde.Equation(equation, box.inside(2000, seed), references.source, name="inside"),
        pde.Equation(u, box.boundary(300, seed), 0.0, name="boundary"),
    ]
    return PosedEquations(u, equations, references.helmholtz, box.inside(4000, 10_000 + seed).points, box)


def corner(x: Tensor) -> Tensor:
    """Two harmonic functions, singular at the corner of the L, with the angle a from its bisector.

    r^(2/3) cos(2a/3) is zero on both re-entrant edges; r^2 (log r cos 2a - a sin 2a) is what a constant source adds.
    """
    along, across = -(x[:, 0] + x[:, 1]), x[:, 0] - x[:, 1]  # sqrt(2) times coordinates of the bisector
    a, square = torch.atan2(across, along), x.square().sum(1)
    edge = square ** (1 / 3) * torch.cos(2 / 3 * a)
    source = square * (0.5 * torch.log(square + 1e-300) * torch.cos(2 * a) - a * torch.sin(2 * a))
    return torch.stack([edge, source], 1)


def l_shape(seed: int) -> PosedEquations:
    """-lap u = 1 on [-1, 1]^2 without its upper right quarter; u = 0 on the re-entrant edges, no flux through the others.

    The solution is singular at the corner, like r^(2/3): that function is one of the features (`corner`).
    """
    box = pde.points.Box([-1, -1], [1, 1])
    network = shallow(2, seed, (60,), spread=(2.0, 2.0))
    u = pde.Field(pde.Beside(network, pde.Functions(corner)))

    def belongs(x: Tensor) -> Tensor:
        return ~((x[:, 0] > 0) & (x[:, 1] > 0))

    def on_edges(count: int, seed: int) -> Tensor:
        t = pde.points.unit(count, 1, seed)
        half = count // 2
        return torch.cat([torch.cat([t[:half], 0 * t[:half]], 1), torch.cat([0 * t[half:], t[half:]], 1)])

    def outer(count: int, seed: int) -> Tensor:
        points = box.boundary(2 * count + 8, seed).points
        kept = points[
            belongs(points) & ~((points[:, 0] == 1) & (points[:, 1] > 0)) & ~((points[:, 1] == 1) & (points[:, 0] > 0))
        ]
        return kept[torch.linspace(0, len(kept) - 1, count).long()]

    equations = [
        pde.Equation(-pde.laplacian(u), pde.points.within(box, belongs, 1500, seed), 1.0, name="inside"),
        pde.Equation(u, pde.points.drawn(on_edges, 150, seed), 0.0, name="fixed"),
        pde.Equation(pde.directional(u, box.normal), pde.points.drawn(outer, 200, seed), 0.0, name="no flux"),
    ]
    check = pde.points.within(box, belongs, 4000, 10_000 + seed).points
    return PosedEquations(u, equations, references.l_shape, check, box, belongs)


def inverse_diffusion(seed: int) -> PosedEquations:
    """-kappa lap u = 1 on the unit square, u = 0 on its boundary: kappa = 0.3 from sixteen values of u by finite elements."""
    box = pde.points.Box([0, 0], [1, 1])
    u, kappa = pde.Field(shallow(2, seed)), pde.Constant(1.0, "kappa")
    data = box.inside(16, seed + 3).points
    equations = [
        pde.Equation(-kappa * pde.laplacian(u), box.inside(900, seed), 1.0, name="inside"),
        pde.Equation(u, box.boundary(200, seed), 0.0, name="boundary"),
        pde.Equation(u, data, references.unit_source(data) / 0.3, name="data"),
    ]
    check = box.inside(4000, 10_000 + seed).points
    return PosedEquations(
        u, equations, lambda x: references.unit_source(x) / 0.3, check, box, constants={"kappa": (kappa, 0.3)}
    )
