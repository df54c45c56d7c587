"""Problems whose network `pde.solve` chooses: the field is given by its domain (`pde.Field(box)`).

Each entry makes domain, equations and solution for a seed, which draws the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gnvpro import pde
from gnvpro.experiments.equations import references
from gnvpro.experiments.equations.posed import PosedEquations, fresh
from gnvpro.pde.points import Box

PI = math.pi
Function = Callable[[Tensor], Tensor]
SQUARE, UNIT = Box([-1, -1], [1, 1]), Box([0, 0], [1, 1])


def derivatives(exact: Function, *axes: tuple[int, ...]) -> Callable[[Tensor], list[Tensor]]:
    """Derivatives of a solution that is written down, for the right-hand side of its equation."""

    def at(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_(True)
        made = []
        with torch.enable_grad():
            for each in axes:
                value = exact(x)
                for axis in each:
                    value = torch.autograd.grad(value.sum(), x, create_graph=True)[0][:, axis]
                made.append(value.detach())
        return made

    return at


def posed(u: pde.Field, equations: Sequence[pde.Equation], exact: Function, box: Box, seed: int) -> PosedEquations:
    """The problem with points for its error."""
    return PosedEquations(u, equations, exact, fresh(box, seed), box)


# -- elliptic


def helmholtz(seed: int, a: int, b: int, k: float) -> PosedEquations:
    """lap u + k^2 u = f on [-1, 1]^2, u = sin(a pi x) sin(b pi y)."""
    u = pde.Field(SQUARE)

    def exact(x: Tensor) -> Tensor:
        return torch.sin(a * PI * x[:, 0]) * torch.sin(b * PI * x[:, 1])

    factor = k * k - (a * a + b * b) * PI**2
    equations = [
        pde.Equation(
            pde.laplacian(u) + k * k * u, SQUARE.inside(2000, seed), lambda x: factor * exact(x), name="inside"
        ),
        pde.Equation(u, SQUARE.boundary(200, seed), exact, name="boundary"),
    ]
    return posed(u, equations, exact, SQUARE, seed)


def chirp(seed: int) -> PosedEquations:
    """lap u + 4 u = f, u = sin(6 x^2 + 3 y) exp(-y): no sum of a few sines."""
    u = pde.Field(SQUARE)

    def exact(x: Tensor) -> Tensor:
        return torch.sin(6 * x[:, 0] ** 2 + 3 * x[:, 1]) * torch.exp(-x[:, 1])

    second = derivatives(exact, (0, 0), (1, 1))
    equations = [
        pde.Equation(
            pde.laplacian(u) + 4 * u, SQUARE.inside(2000, seed), lambda x: sum(second(x)) + 4 * exact(x), name="inside"
        ),
        pde.Equation(u, SQUARE.boundary(200, seed), exact, name="boundary"),
    ]
    return posed(u, equations, exact, SQUARE, seed)


def nonlinear_helmholtz(seed: int) -> PosedEquations:
    """lap u - 100 u + 10 cosh(u) = f on [0, 1.5]^2, the solution of Dong and Yang."""
    box = Box([0, 0], [1.5, 1.5])
    u = pde.Field(box)

    def exact(x: Tensor) -> Tensor:
        return 4 * torch.cos(PI * x**2).prod(1)

    second = derivatives(exact, (0, 0), (1, 1))
    expression = pde.laplacian(u) - 100 * u + 5 * (pde.exp(u) + pde.exp(-u))
    equations = [
        pde.Equation(
            expression,
            box.inside(2000, seed),
            lambda x: sum(second(x)) - 100 * exact(x) + 10 * torch.cosh(exact(x)),
            name="inside",
        ),
        pde.Equation(u, box.boundary(200, seed), exact, name="boundary"),
    ]
    return posed(u, equations, exact, box, seed)


# -- evolution


def wave(seed: int, c: float, mode: int) -> PosedEquations:
    """u_tt = c^2 u_xx, one half-wave and half as much of another."""

    def exact(x: Tensor) -> Tensor:
        t, y = x[:, 0], x[:, 1]
        return torch.sin(PI * y) * torch.cos(c * PI * t) + 0.5 * torch.sin(mode * PI * y) * torch.cos(mode * c * PI * t)

    u, start = pde.Field(UNIT, time=0), UNIT.face(0, "low", 100, seed + 1)
    equations = [
        pde.Equation(pde.d(u, 0, 0) - c * c * pde.d(u, 1, 1), UNIT.inside(1500, seed), name="inside"),
        pde.Equation(u, start, exact, name="start"),
        pde.Equation(pde.d(u, 0), start, 0.0, name="velocity"),
        pde.Equation(u, UNIT.boundary(100, seed + 2, faces=[(1, "low"), (1, "high")]), 0.0, name="ends"),
    ]
    return posed(u, equations, exact, UNIT, seed)


def klein_gordon(seed: int) -> PosedEquations:
    """u_tt - u_xx + u^3 = f on the unit square, u = x cos(5 pi t) + (t x)^3."""

    def exact(x: Tensor) -> Tensor:
        return x[:, 1] * torch.cos(5 * PI * x[:, 0]) + (x[:, 0] * x[:, 1]) ** 3

    u = pde.Field(UNIT, time=0)
    return _forced(seed, u, u**3, lambda x: exact(x) ** 3, exact, UNIT)


def sine_gordon(seed: int) -> PosedEquations:
    """u_tt - u_xx + sin u = 0: a breather, u = 4 atan(cos(t / sqrt 2) / cosh(x / sqrt 2))."""

    def exact(x: Tensor) -> Tensor:
        s = x / math.sqrt(2)
        return 4 * torch.atan(torch.cos(s[:, 0]) / torch.cosh(s[:, 1]))

    box = Box([0, -5], [5, 5])
    u = pde.Field(box, time=0)
    return _forced(seed, u, pde.sin(u), lambda x: torch.sin(exact(x)), exact, box)


def _forced(
    seed: int, u: pde.Field, term: pde.Expression, values: Function, exact: Function, box: Box
) -> PosedEquations:
    """u_tt - u_xx + term = f, with the solution at the first time and at both ends."""
    second, first = derivatives(exact, (0, 0), (1, 1)), derivatives(exact, (0,))

    def source(x: Tensor) -> Tensor:
        in_time, in_space = second(x)
        return in_time - in_space + values(x)

    start = box.face(0, "low", 100, seed + 1)
    equations = [
        pde.Equation(pde.d(u, 0, 0) - pde.d(u, 1, 1) + term, box.inside(1500, seed), source, name="inside"),
        pde.Equation(u, start, exact, name="start"),
        pde.Equation(pde.d(u, 0), start, lambda x: first(x)[0], name="velocity"),
        pde.Equation(u, box.boundary(100, seed + 2, faces=[(1, "low"), (1, "high")]), exact, name="ends"),
    ]
    return posed(u, equations, exact, box, seed)


def burgers(seed: int, viscosity: float) -> PosedEquations:
    """u_t + u u_x = viscosity u_xx, periodic, u = -sin(pi x) at t = 0."""
    box = Box([0, -1], [1, 1])
    u = pde.Field(box, time=0, periodic=[1])
    equations = [
        pde.Equation(pde.d(u, 0) + u * pde.d(u, 1) - viscosity * pde.d(u, 1, 1), box.inside(2000, seed), name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: -torch.sin(PI * x[:, 1]), name="start"),
    ]
    return posed(u, equations, lambda x: references.burgers(x, viscosity), box, seed)


def allen_cahn(seed: int) -> PosedEquations:
    """u_t = 1e-4 u_xx + 5 u - 5 u^3, periodic, u = x^2 cos(pi x) at t = 0."""
    box = Box([0, -1], [1, 1])
    u = pde.Field(box, time=0, periodic=[1])
    equations = [
        pde.Equation(pde.d(u, 0) - 1e-4 * pde.d(u, 1, 1) - 5 * u + 5 * u**3, box.inside(2000, seed), name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: x[:, 1] ** 2 * torch.cos(PI * x[:, 1]), name="start"),
    ]
    return posed(u, equations, references.allen_cahn, box, seed)


def korteweg_de_vries(seed: int) -> PosedEquations:
    """u_t + u u_x + 0.022^2 u_xxx = 0, periodic, u = cos(pi x) at t = 0."""
    box = Box([0, -1], [1, 1])
    u = pde.Field(box, time=0, periodic=[1])
    equation = pde.d(u, 0) + u * pde.d(u, 1) + references.DISPERSION * pde.d(u, 1, 1, 1)
    equations = [
        pde.Equation(equation, box.inside(2000, seed), name="inside"),
        pde.Equation(u, box.face(0, "low", 200, seed), lambda x: torch.cos(PI * x[:, 1]), name="start"),
    ]
    return posed(u, equations, references.korteweg_de_vries, box, seed)


# -- ordinary differential equations


def lotka_volterra(seed: int) -> PosedEquations:
    """u' = 1.5 u - u v, v' = u v - 3 v from (1, 1) to t = 20."""
    return _system(seed, references.lotka_volterra, [1.0, 1.0], 20.0)


def van_der_pol(seed: int) -> PosedEquations:
    """u' = v, v' = 10 (1 - u^2) v - u from (2, 0) to t = 20."""
    return _system(seed, references.van_der_pol, [2.0, 0.0], 20.0)


def robertson(seed: int) -> PosedEquations:
    """A stiff reaction of three species, with rates from 0.04 to 3e7, to t = 40; the second is counted in units of 1e-4."""
    return _system(seed, references.robertson, [1.0, 0.0, 0.0], 40.0)


def _system(seed: int, rates: references.Rates, start: list[float], end: float) -> PosedEquations:
    box = Box([0.0], [end])
    u, points = pde.Field(box, outputs=len(start), time=0), box.inside(400, seed)
    change = rates([u[i] for i in range(len(start))])
    zero = torch.zeros(1, 1, dtype=torch.float64)
    equations = [pde.Equation(pde.d(u[i], 0) - rate, points, name=f"rate {i}") for i, rate in enumerate(change)]
    equations += [pde.Equation(u[i], zero, value, name=f"start {i}") for i, value in enumerate(start)]
    return posed(u, equations, references.path(rates, tuple(start), end), box, seed)


# -- flow


def kovasznay(seed: int) -> PosedEquations:
    """Stationary Navier-Stokes at Re = 40 behind a grid: velocity given on the boundary, pressure in a corner."""
    box, reynolds = Box([-0.5, -0.5], [1.0, 1.5]), 40.0
    rate = reynolds / 2 - math.sqrt(reynolds**2 / 4 + 4 * PI**2)

    def exact(x: Tensor) -> Tensor:
        decay, angle = torch.exp(rate * x[:, 0]), 2 * PI * x[:, 1]
        return torch.stack(
            [1 - decay * torch.cos(angle), rate / (2 * PI) * decay * torch.sin(angle), (1 - decay**2) / 2], 1
        )

    w = pde.Field(box, outputs=3)
    u, v, p = w[0], w[1], w[2]
    inside, sides = box.inside(1500, seed), box.boundary(200, seed + 1)
    corner = torch.tensor([[-0.5, -0.5]], dtype=torch.float64)

    def moved(a: pde.Expression, axis: int) -> pde.Expression:
        return u * pde.d(a, 0) + v * pde.d(a, 1) + pde.d(p, axis) - pde.laplacian(a) / reynolds

    equations = [
        pde.Equation(moved(u, 0), inside, name="momentum x"),
        pde.Equation(moved(v, 1), inside, name="momentum y"),
        pde.Equation(pde.d(u, 0) + pde.d(v, 1), inside, name="mass"),
        pde.Equation(u, sides, lambda x: exact(x)[:, 0], name="u on the boundary"),
        pde.Equation(v, sides, lambda x: exact(x)[:, 1], name="v on the boundary"),
        pde.Equation(p, corner, exact(corner)[:, 2], name="pressure"),
    ]
    return posed(w, equations, exact, box, seed)


# -- inverse


def inverse_burgers(seed: int) -> PosedEquations:
    """Both coefficients of u_t + a u u_x = b u_xx from 200 values with 1% noise: a = 1, b = 0.01/pi."""
    box = Box([0, -1], [1, 1])
    u, a, b = pde.Field(box, periodic=[1]), pde.Constant(0.5, "a"), pde.Constant(0.02, "b")
    where = box.inside(200, 100 + seed).points
    noise = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values = references.burgers(where, 0.01 / PI)
    values = values + 0.01 * values.std() * noise
    equations = [
        pde.Equation(pde.d(u, 0) + a * u * pde.d(u, 1) - b * pde.d(u, 1, 1), box.inside(2000, seed), name="inside"),
        pde.Equation(u, where, values, name="data"),
    ]
    made = posed(u, equations, lambda x: references.burgers(x, 0.01 / PI), box, seed)
    return PosedEquations(
        *(made.field, made.equations, made.exact, made.check, box), constants={"a": (a, 1.0), "b": (b, 0.01 / PI)}
    )
