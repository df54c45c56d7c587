"""Convection, diffusion and reaction of a concentration on the unit square, bilinear elements and backward Euler.

    du/dt = div(D grad u) - v . grad u + f + rbar(x) sum_k y_k r_k(u),   D grad u . n = 0,   u(0) = 0,   0 < t <= 0.5
    v = (4.5 (1 + 0.8 sin 2 pi x1), 5.5 (0.5 - x2)),   D = 0.5
    r_ij(u) = logistic(ln C^-2 ((u - u_i)/(u_j - u_i) - 1/2)),  u_i = 5 + 6 (i - 1),   C = 1e-3/(1 - 1e-3),  i < j <= 11

(the paper's C e^z/(1 + C e^z) is the logistic function of z + ln C). The source f is three pulsating Gaussians.

Bilinear elements are products of linear elements on a line, D is constant and v_i depends on x_i alone. So with the
mass matrix M, stiffness K and convection V of a line, and L_i = M^-1 (D K + V_i), a backward Euler step reads

    (I + dt (L_1 x I + I x L_2)) u = u_old + dt s(t) + dt rbar r(u)

where s solves M s = load of f, and the reaction is taken at the nodes (second order, as the elements are). The linear
part never changes and L_i = S_i Lambda_i S_i^-1, so its exact inverse is four small matrix products for every sample:

    (I + dt L)^-1 F = S_1 [ (S_1^-1 F S_2^-T) / (1 + dt (lambda_1 + lambda_2')) ] S_2^T         fast diagonalisation

The step is solved by fixed-point (chord) iteration on that inverse, many samples at a time. The reaction's slope is at
most about 0.25/dt and diffusion damps it further, so an iteration gains about one digit.
A sample's reaction is one function of u: it is tabulated once and read by cubic Hermite interpolation, to 1e-11.

Legend: y -> inputs;  rbar -> heterogeneity;  sum y_k r_k -> Reaction;  S, Lambda -> Line.vectors, .values;  f -> pulses
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnvpro.extras import need
from gnvpro.network.evaluation import one_thread

Array = NDArray[np.float64]
Velocity = Callable[[Array], Array]

DIFFUSION = 0.5
DT, STEPS, KEPT = 0.01, 50, 12
N_INPUTS = 55
RTOL = 1e-11  # of a step: change in its last iteration over largest concentration; the residual is smaller
MAX_ITERATIONS = 100
BLOCK = 4  # samples advanced together: enough to fill the matrix products, few enough to stay in cache

# amplitude, centre, modulation in time
SOURCES: tuple[tuple[float, tuple[float, float], Callable[[float], float]], ...] = (
    (1000.0, (0.2, 0.2), lambda t: 1.0 + 0.3 * np.cos(2 * np.pi * t)),
    (800.0, (0.6, 0.8), lambda t: 1.2 + 0.4 * np.sin(4 * np.pi * t)),
    (900.0, (0.3, 0.6), lambda t: 0.9 + 0.2 * np.sin(6 * np.pi * t)),
)
# our choice: nodes of every allowed mesh, downstream of the sources on the way to (1, 0.5)
OBSERVED = ((0.4, 0.3), (0.5, 0.6), (0.7, 0.4), (0.8, 0.7), (0.9, 0.3), (0.9, 0.5))


def velocity1(x1: Array) -> Array:
    """First component of the velocity, a function of x1."""
    return 4.5 * (1.0 + 0.8 * np.sin(2 * np.pi * x1))


def velocity2(x2: Array) -> Array:
    """Second component of the velocity, a function of x2."""
    return 5.5 * (0.5 - x2)


def bump(centre: float, x: Array) -> Array:
    """One factor of a source's Gaussian."""
    return np.exp(-200.0 * (x - centre) ** 2)


def check_mesh(mesh: int) -> None:
    """Refuse meshes that miss the observation points or cannot resolve the sources."""
    if isinstance(mesh, bool) or not isinstance(mesh, int):
        raise TypeError(f"mesh must be an int, the number of nodes in each direction, got {mesh!r}")
    if mesh < 21 or mesh % 10 != 1:
        raise ValueError(
            f"mesh must be 21, 31, 41, ... nodes in each direction, got {mesh}: the observation points then are nodes "
            "and the sources, 0.05 wide, are resolved; 151 is the paper's"
        )


@dataclass(frozen=True)
class Line:
    """Linear elements on [0, 1] for one direction: nodes, load -> nodal values, and L = M^-1 (D K + V) diagonalised."""

    nodes: Array
    mass: Array
    operator: Array
    values: Tensor
    vectors: Tensor
    inverse: Tensor

    @staticmethod
    def of(n_nodes: int, diffusion: float, velocity: Velocity) -> Line:
        """Assemble and diagonalise."""
        skfem = need("skfem", "pde")
        basis = _basis(n_nodes)
        mass = skfem.BilinearForm(lambda u, v, w: u * v).assemble(basis).toarray()
        transport = skfem.BilinearForm(
            lambda u, v, w: diffusion * u.grad[0] * v.grad[0] + velocity(w.x[0]) * u.grad[0] * v
        ).assemble(basis)
        operator = np.linalg.solve(mass, transport.toarray())
        values, vectors = np.linalg.eig(operator)
        if np.iscomplexobj(values) and np.abs(values.imag).max() > 0:
            raise ValueError(f"mesh must be finer than {n_nodes} nodes: velocity outweighs diffusion within an element")
        inverse = np.linalg.inv(vectors.real)
        real = (torch.from_numpy(np.ascontiguousarray(a.real)) for a in (values, vectors, inverse))
        return Line(basis.mesh.p[0], mass, operator, *real)

    def project(self, function: Callable[[Array], Array]) -> Array:
        """Nodal values of the L2 projection: M^-1 times the load vector."""
        skfem = need("skfem", "pde")
        load = skfem.LinearForm(lambda v, w: function(w.x[0]) * v).assemble(_basis(len(self.nodes)))
        return np.linalg.solve(self.mass, load)


def _basis(n_nodes: int) -> Any:
    """Linear elements with a quadrature that is exact far beyond the discretisation error."""
    skfem = need("skfem", "pde")
    return skfem.Basis(skfem.MeshLine(np.linspace(0.0, 1.0, n_nodes)), skfem.ElementLineP1(), intorder=8)


@dataclass(frozen=True)
class Transport:
    """Convection and diffusion on the square: L u = L_1 u + u L_2^T for states u (..., nodes, nodes), x1 first."""

    line1: Line
    line2: Line

    def implicit_step(self, dt: float) -> Callable[[Tensor], Tensor]:
        """The exact inverse of I + dt L."""
        scale = 1.0 / (1.0 + dt * (self.line1.values[:, None] + self.line2.values[None, :]))
        left, left_inverse = self.line1.vectors, self.line1.inverse
        right, right_inverse = self.line2.vectors.T.contiguous(), self.line2.inverse.T.contiguous()
        return lambda F: left @ (left_inverse @ F @ right_inverse * scale) @ right


def march(
    transport: Transport,
    source: Callable[[float], Tensor],
    reaction: Callable[[Tensor], Tensor],
    start: Tensor,
    dt: float,
) -> Iterator[Tensor]:
    """States (samples, nodes, nodes) after 1, 2, ... backward Euler steps from `start`, each solved to RTOL."""
    invert = transport.implicit_step(dt)
    states = [start]
    for step in range(1, 10**9):
        known = states[0] + dt * source(step * dt)
        # quadratic extrapolation in time saves two iterations
        trial = states[0] if step < 3 else 3 * (states[0] - states[1]) + states[2]
        for _ in range(MAX_ITERATIONS):
            last, trial = trial, invert(known + dt * reaction(trial))
            change = (trial - last).abs().amax((1, 2))
            if bool((change <= RTOL * trial.abs().amax((1, 2))).all()):
                break
        else:
            raise ArithmeticError(
                f"step {step} did not reach {RTOL:.0e} in {MAX_ITERATIONS} iterations; take a smaller dt"
            )
        states = [trial, *states[:2]]
        yield trial


def reaction_functions(u: Array) -> tuple[Array, Array]:
    """The 55 sigmoids at concentrations u, and their slopes: each (len(u), 55), pairs (1,2), (1,3), ..., (10,11)."""
    i, j = np.triu_indices(11, 1)
    start, width = 5.0 + 6.0 * i, 6.0 * (j - i)
    steepness = 2.0 * np.log((1 - 1e-3) / 1e-3)
    r = 1.0 / (1.0 + np.exp(-steepness * ((u[:, None] - start) / width - 0.5)))
    return r, r * (1.0 - r) * steepness / width


class Reaction:
    """sum_k y_k r_k(u) for many samples: a table on a uniform grid in u, one row per sample, cubic in between."""

    low, spacing, size = -8.0, 1.0 / 128, 24 * 1024  # up to u = 184: beyond 65 all reactions are saturated

    def __init__(self, inputs: Array) -> None:
        grid = self.low + self.spacing * np.arange(self.size, dtype=np.float64)
        values, slopes = (torch.from_numpy(inputs @ r.T) for r in reaction_functions(grid))
        slopes *= self.spacing
        rise = values[:, 1:] - values[:, :-1]
        first, second = slopes[:, :-1], slopes[:, 1:]
        # the cubic on each interval, constant term first, so that one index finds all four numbers
        self.cubics = torch.stack([values[:, :-1], first, 3 * rise - 2 * first - second, first + second - 2 * rise], -1)

    def __call__(self, u: Tensor) -> Tensor:
        """Values at states u (samples, ...)."""
        position = (u - self.low).mul_(1.0 / self.spacing)
        # saturated (or dormant) beyond the table: its last (first) interval is constant to 1e-16
        position.clamp_(0.0, self.size - 1.5)
        interval = position.long()
        t = position.sub_(interval)
        interval += (torch.arange(len(u)) * (self.size - 1)).view(-1, *[1] * (u.ndim - 1))
        a, b, c, d = self.cubics.view(-1, 4)[interval.view(-1)].view(*u.shape, 4).unbind(-1)
        return d.mul(t).add_(c).mul_(t).add_(b).mul_(t).add_(a)


@dataclass(frozen=True)
class Discretisation:
    """Everything that depends on the mesh alone: transport, spatial parts of the sources, heterogeneity, observed nodes."""

    transport: Transport
    pulses: Tensor  # (3, nodes, nodes)
    heterogeneity: Tensor
    observed: tuple[list[int], list[int]]

    def source(self, t: float) -> Tensor:
        """Nodal values of f at time t."""
        strength = torch.tensor([modulation(t) for _, _, modulation in SOURCES], dtype=torch.float64)
        return torch.tensordot(strength, self.pulses, 1)

    def states(self, inputs: Array) -> Iterator[Tensor]:
        """States of all samples after 1, 2, ..., STEPS steps."""
        reaction = Reaction(inputs)
        start = torch.zeros(len(inputs), *self.heterogeneity.shape, dtype=torch.float64)
        steps = march(self.transport, self.source, lambda u: reaction(u).mul_(self.heterogeneity), start, DT)
        return islice(steps, STEPS)


@lru_cache(maxsize=4)
def problem(mesh: int) -> Discretisation:
    """The discretised problem on mesh x mesh nodes, built once per process."""
    check_mesh(mesh)
    line1, line2 = Line.of(mesh, DIFFUSION, velocity1), Line.of(mesh, DIFFUSION, velocity2)
    pulses = [
        amplitude * np.outer(line1.project(partial(bump, c1)), line2.project(partial(bump, c2)))
        for amplitude, (c1, c2), _ in SOURCES
    ]
    x1, x2 = line1.nodes[:, None], line2.nodes[None, :]
    heterogeneity = 500.0 * (0.8 + 0.2 * np.sin(2 * np.pi * x1) * np.cos(2 * np.pi * x2) + x2)
    rows, columns = ([round(point[axis] * (mesh - 1)) for point in OBSERVED] for axis in (0, 1))
    return Discretisation(
        Transport(line1, line2), torch.from_numpy(np.stack(pulses)), torch.from_numpy(heterogeneity), (rows, columns)
    )


def simulate(mesh: int, inputs: Array) -> Array:
    """Data (samples, 72) for inputs (samples, 55): the six points (fastest) at each of the last twelve steps."""
    check_inputs(inputs)
    discrete = problem(mesh)
    rows, columns = discrete.observed
    blocks = []
    with one_thread():  # parallelism is over samples
        for block in np.split(inputs, range(BLOCK, len(inputs), BLOCK)):
            kept = islice(discrete.states(block), STEPS - KEPT, None)
            blocks.append(torch.stack([u[:, rows, columns] for u in kept], 1).flatten(1).numpy())
    return np.concatenate(blocks)


def check_inputs(inputs: Array) -> None:
    """Refuse inputs that cannot be reaction coefficients."""
    if inputs.ndim != 2 or inputs.shape[1] != N_INPUTS:
        raise ValueError(
            f"inputs must have shape (samples, {N_INPUTS}), one coefficient per reaction; got {inputs.shape}"
        )
    if not np.isfinite(inputs).all() or (inputs < 0).any():
        raise ValueError(f"inputs, the reaction coefficients, must be finite and non-negative, got {inputs.min()}")
