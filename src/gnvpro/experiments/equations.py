"""Equations to solve, as data: networks, points, what is known of the solution, and the published number beside it.

The first six are those of the logs of f-dangel/kfac-pinns-experiments (float64, a GPU, the best of about fifty tuned runs for
each optimiser): root mean square errors there, relative errors (L2) for the others. Where no solution is known in closed form
it is computed: Burgers by the formula of Cole and Hopf, Allen-Cahn by splitting with exact substeps, the rest by finite
elements (`equation_references`).

A problem may be solved in stages, each starting from the field of the one before: Burgers with less and less viscosity,
Allen-Cahn on longer and longer times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gnvpro import pde
from gnvpro.experiments import equation_references as references
from gnvpro.networks import MLP

PI = math.pi
DEEP = (64, 64, 48, 48)


@dataclass(frozen=True)
class Posed:
    """A problem with its network, ready to be solved."""

    field: pde.Field
    stages: Sequence[Sequence[pde.Equation]]  # the last one is the problem itself
    exact: Callable[[Tensor], Tensor]
    check: Tensor  # points for the error
    box: pde.points.Box  # for pictures: the first two coordinates vary, the others are in the middle
    belongs: Callable[[Tensor], Tensor] | None = None  # where the domain is not all of the box
    constants: dict[str, tuple[pde.Constant, float]] = field(
        default_factory=dict
    )  # unknown ones, and their true values


@dataclass(frozen=True)
class EquationProblem:
    """An entry of the catalogue."""

    name: str
    title: str
    summary: str
    pose: Callable[[int], Posed]
    seconds: float
    published: str
    relative: bool = False  # whether errors are relative to the solution
    axes: tuple[str, str] = ("x", "y")


def shallow(
    n_inputs: int,
    seed: int,
    widths: Sequence[int] = (64,),
    spread: Sequence[float] | None = None,
    activation: Callable[[], nn.Module] = nn.Tanh,
) -> nn.Module:
    """A network; `spread` multiplies the first weights of each input, the largest one the biases."""
    torch.manual_seed(seed)
    network = MLP(n_inputs, widths, activation, dtype=torch.float64)
    if spread is not None:
        with torch.no_grad():
            network[0].weight.mul_(torch.tensor(spread, dtype=torch.float64))
            network[0].bias.mul_(max(spread))
    return network


def fresh(box: pde.points.Box, seed: int, count: int = 9000) -> Tensor:
    """Points for the error, never trained on."""
    return box.inside(count, 10_000 + seed, "uniform").points


def poisson2d(seed: int, widths: Sequence[int] = (64,)) -> Posed:
    """-lap u = f on the unit square, u = sin(pi x) sin(pi y)."""
    u, box = pde.Field(shallow(2, seed, widths)), pde.points.Box([0, 0], [1, 1])

    def exact(x: Tensor) -> Tensor:
        return torch.sin(PI * x).prod(1)

    equations = [
        pde.Equation(-pde.laplacian(u), box.inside(900, seed), lambda x: 2 * PI**2 * exact(x), name="inside"),
        pde.Equation(u, box.boundary(120, seed), 0.0, name="boundary"),
    ]
    return Posed(u, [equations], exact, fresh(box, seed), box)


def poisson5d(seed: int) -> Posed:
    """-lap u = f on the unit cube of five dimensions, u = sum of cos(pi x_i)."""
    u, box = pde.Field(shallow(5, seed)), pde.points.Box([0] * 5, [1] * 5)

    def exact(x: Tensor) -> Tensor:
        return torch.cos(PI * x).sum(1)

    equations = [
        pde.Equation(-pde.laplacian(u), box.inside(3000, seed), lambda x: PI**2 * exact(x), name="inside"),
        pde.Equation(u, box.boundary(500, seed), exact, name="boundary"),
    ]
    return Posed(u, [equations], exact, fresh(box, seed), box)


def heat(seed: int, dimension: int, widths: Sequence[int] = (64,)) -> Posed:
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
    return Posed(u, [equations], exact, fresh(box, seed), box)


def convection(seed: int) -> Posed:
    """u_t + 40 u_x = 0, periodic, u = sin x at t = 0.

    Sine features: one of them, moved to the right frequencies, is the solution. With tanh 100 (spread 20 in time) the error
    is 2e-4 after a minute.
    """
    box = pde.points.Box([0, 0], [1, 2 * PI])
    u = pde.Field(shallow(2, seed, (64,), spread=(60.0, 3.0), activation=pde.Sine))
    left = box.face(1, "low", 200, seed).points
    right = left + torch.tensor([0.0, 2 * PI], dtype=torch.float64)
    equations = [
        pde.Equation(pde.d(u, 0) + 40 * pde.d(u, 1), box.inside(3000, seed), 0.0, name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: torch.sin(x[:, 1]), name="start"),
        pde.Equation(u.at(left) - u.at(right), None, 0.0, name="periodic"),
    ]
    return Posed(u, [equations], lambda x: torch.sin(x[:, 1] - 40 * x[:, 0]), fresh(box, seed), box)


def burgers(seed: int) -> Posed:
    """u_t + u u_x = .01/pi u_xx, u = -sin(pi x) at t = 0: a front forms at x = 0."""
    box, front = pde.points.Box([0, -1], [1, 1]), pde.points.Box([0, -0.1], [1, 0.1])
    u = pde.Field(shallow(2, seed, BURGERS_WIDTHS, spread=(2.0, 4.0)))
    stages = []
    for viscosity in (0.1, 0.05, 0.02, 0.01, 0.005, 0.01 / PI):
        equation = pde.d(u, 0) + u * pde.d(u, 1) - viscosity * pde.d(u, 1, 1)
        stages.append(
            [
                pde.Equation(equation, box.inside(3000, seed), 0.0, name="inside"),
                pde.Equation(equation, front.inside(1000, seed), 0.0, name="front"),
                pde.Equation(u, box.face(0, "low", 300, seed), lambda x: -torch.sin(PI * x[:, 1]), name="start"),
                pde.Equation(u, box.boundary(100, seed, [(1, "low"), (1, "high")]), 0.0, name="boundary"),
            ]
        )
    return Posed(u, stages, lambda x: references.burgers(x, 0.01 / PI), fresh(box, seed), box)


def allen_cahn(seed: int) -> Posed:
    """u_t = 1e-4 u_xx + 5 u - 5 u^3, periodic, u = x^2 cos(pi x) at t = 0."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [pde.Periodic(2, {1: 2.0})]
    width = 3
    for after in ALLEN_CAHN_WIDTHS:
        layers += [nn.Linear(width, after, dtype=torch.float64), nn.Tanh()]
        width = after
    with torch.no_grad():
        layers[1].weight.mul_(2.0)  # type: ignore[operator]
        layers[1].bias.mul_(2.0)  # type: ignore[operator]
    u = pde.Field(nn.Sequential(*layers))
    equation = pde.d(u, 0) - 1e-4 * pde.d(u, 1, 1) - 5 * u + 5 * u**3
    stages = []
    for until in (0.2, 0.4, 0.6, 0.8, 1.0):
        box = pde.points.Box([0, -1], [until, 1])
        stages.append(
            [
                pde.Equation(equation, box.inside(3000, seed), 0.0, name="inside"),
                pde.Equation(u, box.face(0, "low", 300, seed), _allen_cahn_start, name="start"),
            ]
        )
    return Posed(u, stages, references.allen_cahn, references.allen_cahn_points(seed), box)


def _allen_cahn_start(x: Tensor) -> Tensor:
    return x[:, 1] ** 2 * torch.cos(PI * x[:, 1])


BURGERS_WIDTHS: tuple[int, ...] = (60,)
ALLEN_CAHN_WIDTHS: tuple[int, ...] = (80,)


def helmholtz2d(seed: int) -> Posed:
    """lap u + u = f on [-1, 1]^2, u = 0 on the boundary, f from sin(pi x) sin(4 pi y); checked by finite elements too."""
    box = pde.points.Box([-1, -1], [1, 1])
    u = pde.Field(shallow(2, seed, (100,), spread=(2.0, 6.0)))

    def exact(x: Tensor) -> Tensor:
        return torch.sin(PI * x[:, 0]) * torch.sin(4 * PI * x[:, 1])

    equations = [
        pde.Equation(
            pde.laplacian(u) + u, box.inside(2000, seed), lambda x: (1 - 17 * PI**2) * exact(x), name="inside"
        ),
        pde.Equation(u, box.boundary(300, seed), 0.0, name="boundary"),
    ]
    return Posed(u, [equations], exact, fresh(box, seed), box)


def l_shape(seed: int) -> Posed:
    """-lap u = 1 on [-1, 1]^2 without its upper right quarter; u = 0 on the re-entrant edges, no flux through the others."""
    box = pde.points.Box([-1, -1], [1, 1])
    u = pde.Field(shallow(2, seed, (100,), spread=(2.0, 2.0)))

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
    return Posed(u, [equations], references.l_shape, check, box, belongs)


def inverse_diffusion(seed: int) -> Posed:
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
    return Posed(
        u, [equations], lambda x: references.unit_source(x) / 0.3, check, box, constants={"kappa": (kappa, 0.3)}
    )


GPU = "second-order optimisers on a GPU"

EQUATIONS: dict[str, EquationProblem] = {
    problem.name: problem
    for problem in (
        EquationProblem(
            "poisson2d",
            "Poisson, 2 dimensions",
            "tanh 64, 900 + 120 points",
            poisson2d,
            10.0,
            f"6.1e-8 in 468 s ({GPU})",
        ),
        EquationProblem(
            "poisson2d-deep",
            "Poisson, 2 dimensions, deep",
            "tanh 64-64-48-48, 900 + 120 points",
            lambda seed: poisson2d(seed, DEEP),
            60.0,
            f"7.9e-7 in 1000 s ({GPU})",
        ),
        EquationProblem(
            "heat1d",
            "Heat, 1 dimension",
            "tanh 64, 900 + 120 points",
            lambda seed: heat(seed, 1),
            15.0,
            f"2.8e-8 in 923 s ({GPU})",
            axes=("t", "x"),
        ),
        EquationProblem(
            "heat1d-deep",
            "Heat, 1 dimension, deep",
            "tanh 64-64-48-48, 900 + 120 points",
            lambda seed: heat(seed, 1, DEEP),
            100.0,
            f"4.3e-8 in 1000 s ({GPU})",
            axes=("t", "x"),
        ),
        EquationProblem(
            "poisson5d",
            "Poisson, 5 dimensions",
            "tanh 64, 3000 + 500 points",
            poisson5d,
            100.0,
            f"6.4e-7 at 100 s, 5.6e-8 at 3000 s ({GPU})",
        ),
        EquationProblem(
            "heat4d",
            "Heat, 4 dimensions",
            "tanh 64, 3000 + 500 points",
            lambda seed: heat(seed, 4),
            300.0,
            f"7.4e-7 in 3000 s ({GPU})",
            axes=("t", "x"),
        ),
        EquationProblem(
            "convection",
            "Convection u_t + 40 u_x = 0",
            "sine 64, 3000 + 200 + 200 points",
            convection,
            60.0,
            "about 2e-3 (reported for ADAM, L-BFGS and NNCG)",
            relative=True,
            axes=("t", "x"),
        ),
        EquationProblem(
            "burgers",
            "Burgers, viscosity .01/pi",
            "tanh, 4000 + 400 points, viscosity lowered in six stages",
            burgers,
            120.0,
            "2e-5 to 5e-4 (GPU)",
            relative=True,
            axes=("t", "x"),
        ),
        EquationProblem(
            "allen-cahn",
            "Allen-Cahn, 1 dimension",
            "tanh on a periodic layer, 3000 + 300 points, five stages of time",
            allen_cahn,
            120.0,
            "5.4e-5 (jaxpi), 2.2e-5 (PirateNet), GPU",
            relative=True,
            axes=("t", "x"),
        ),
        EquationProblem(
            "helmholtz2d",
            "Helmholtz with a source",
            "tanh 100, 2000 + 300 points",
            helmholtz2d,
            30.0,
            "-",
            relative=True,
        ),
        EquationProblem(
            "l-shape",
            "Poisson on an L, mixed conditions",
            "tanh 100, 1500 + 350 points",
            l_shape,
            30.0,
            "-",
            relative=True,
        ),
        EquationProblem(
            "inverse-diffusion",
            "A diffusion coefficient from data",
            "tanh 64, 900 + 200 + 16 points",
            inverse_diffusion,
            20.0,
            "-",
            relative=True,
        ),
    )
}
