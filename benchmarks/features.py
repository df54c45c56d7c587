"""Fields given by their domain: which features are chosen, and what they reach.

    python -m benchmarks.features [--seconds 20] [--seed 0] [NAME ...]

Prints, per problem, the true and the estimated relative error, processor seconds and the features. The first half of the
problems chose the candidates and the policy's rows, the second half confirms them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from gnvpro import pde

PI = math.pi
SQUARE, UNIT = pde.points.Box([-1, -1], [1, 1]), pde.points.Box([0, 0], [1, 1])


@dataclass(frozen=True)
class Case:
    """A domain, what is known of it, the equations, and the solution."""

    domain: pde.points.Box
    pose: Callable[[pde.Field], list[pde.Equation]]
    exact: Callable[[Tensor], Tensor]
    outputs: int = 1
    time: int | None = None


def helmholtz(a: int, b: int, k: float = 1.0) -> Case:
    def exact(x: Tensor) -> Tensor:
        return torch.sin(a * PI * x[:, 0]) * torch.sin(b * PI * x[:, 1])

    def pose(u: pde.Field) -> list[pde.Equation]:
        factor = k * k - (a * a + b * b) * PI**2
        return [
            pde.Equation(pde.laplacian(u) + k * k * u, SQUARE.inside(2000), lambda x: factor * exact(x)),
            pde.Equation(u, SQUARE.boundary(200), exact),
        ]

    return Case(SQUARE, pose, exact)


def wave(c: float, mode: int) -> Case:
    def exact(x: Tensor) -> Tensor:
        t, y = x[:, 0], x[:, 1]
        return torch.sin(PI * y) * torch.cos(c * PI * t) + 0.5 * torch.sin(mode * PI * y) * torch.cos(mode * c * PI * t)

    def pose(u: pde.Field) -> list[pde.Equation]:
        start, sides = UNIT.face(0, "low", 100, 1), UNIT.boundary(100, 2, faces=[(1, "low"), (1, "high")])
        return [
            pde.Equation(pde.d(u, 0, 0) - c * c * pde.d(u, 1, 1), UNIT.inside(1500)),
            pde.Equation(u, start, exact),
            pde.Equation(pde.d(u, 0), start, 0.0),
            pde.Equation(u, sides, 0.0),
        ]

    return Case(UNIT, pose, exact, time=0)


def given_laplacian(domain: pde.points.Box, exact: Callable[[Tensor], Tensor], square: float = 0.0) -> Case:
    """lap u + square u = f for a solution that is written down."""

    def source(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(exact(x).sum(), x, create_graph=True)
        second = [
            torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0][:, i] for i in range(domain.dimension)
        ]
        return (torch.stack(second).sum(0) + square * exact(x)).detach()

    def pose(u: pde.Field) -> list[pde.Equation]:
        return [
            pde.Equation(pde.laplacian(u) + square * u, domain.inside(2000), source),
            pde.Equation(u, domain.boundary(200), exact),
        ]

    return Case(domain, pose, exact)


def oscillator(rates: Callable, start: list[float], end: float) -> Case:
    """y' = f(y) from a start; the reference by scipy's Radau with tolerances of 1e-11."""
    span, zero = pde.points.Box([0.0], [end]), torch.zeros(1, 1, dtype=torch.float64)
    reference = solve_ivp(
        lambda t, y: [float(rate) for rate in rates(y)], (0, end), start, method="Radau", rtol=1e-11, atol=1e-11,
        dense_output=True,
    )  # fmt: skip

    def pose(u: pde.Field) -> list[pde.Equation]:
        points = span.inside(400)
        change = rates([u[i] for i in range(len(start))])
        return [pde.Equation(pde.d(u[i], 0) - rate, points) for i, rate in enumerate(change)] + [
            pde.Equation(u[i], zero, value) for i, value in enumerate(start)
        ]

    return Case(span, pose, lambda x: torch.tensor(reference.sol(np.asarray(x)[:, 0]).T), len(start), time=0)


def chirp(x: Tensor) -> Tensor:
    return torch.sin(6 * x[:, 0] ** 2 + 3 * x[:, 1]) * torch.exp(-x[:, 1])


def ridge(x: Tensor) -> Tensor:
    return torch.tanh(8 * (x[:, 0] + x[:, 1])) + 0.1 * torch.cos(9 * x[:, 1])


CASES: dict[str, Callable[[], Case]] = {
    "helmholtz-6-6": lambda: helmholtz(6, 6),
    "wave-2-4": lambda: wave(2.0, 4),
    "chirp": lambda: given_laplacian(SQUARE, chirp, 4.0),
    "predators": lambda: oscillator(
        lambda y: [1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]], [1.0, 1.0], 20.0
    ),
    # confirming
    "helmholtz-1-4": lambda: helmholtz(1, 4),
    "helmholtz-5-3": lambda: helmholtz(5, 3, 2.0),
    "wave-1.5-5": lambda: wave(1.5, 5),
    "ridge": lambda: given_laplacian(SQUARE, ridge),
    "van-der-pol": lambda: oscillator(
        lambda y: [y[1], 10.0 * (1.0 - y[0] * y[0]) * y[1] - y[0]], [2.0, 0.0], 20.0
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'problem':14} {'error':>8} {'estimate':>8} {'seconds':>7}  features, status")
    for name in arguments.names:
        case = CASES[name]()
        u = pde.Field(case.domain, outputs=case.outputs, time=case.time)
        began = time.process_time()
        result = pde.solve(u, case.pose(u), seconds=arguments.seconds, seed=arguments.seed, clock=time.process_time)
        spent = time.process_time() - began
        points = case.domain.inside(3000, 777, "uniform").points
        exact = case.exact(points).detach().reshape(len(points), -1)
        error = float((u(points).detach() - exact).norm() / exact.norm())
        width, status = u.head.in_features, result.status.name
        print(
            f"{name:14} {error:8.1e} {result.error:8.1e} {spent:7.1f}  {u.kind}; {width} at the end; {status}",
            flush=True,
        )


if __name__ == "__main__":
    main()
