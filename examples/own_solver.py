# %% [markdown]
# # Your own solver
#
# A solver computes the steps of GNvpro. You write how to model the objective around a point; the trust-region loop, the
# work budget, history and checkpoints are shared. This example is Steihaug's truncated conjugate gradients. CG from
# zero visits points of growing length, so the step for any radius lies on its path:
#
#     x_k       minimises   g'x + 1/2 x'Ax   over span(g, Ag, ..., A^(k-1) g)
#     step      the path up to the point whose length is the radius, or its last point if it is shorter

# %%
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import gnvpro

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


# %% [markdown]
# The model. It is built once per accepted point; after a rejected trial the loop requests a shorter step, at no cost in
# passes.


# %%
@dataclass(frozen=True)
class CGPath:
    """The points of CG, each with its product with A."""

    gradient: Tensor
    points: list[tuple[Tensor, Tensor]]
    first_radius: float = math.inf  # unlimited: the whole path is the first step

    @property
    def rank(self) -> int:
        """Number of products with A."""
        return len(self.points) - 1

    def solve_within(self, radius: float) -> gnvpro.extend.Step:
        """Return the last point within the ball, or the point at which the path leaves it."""
        x, Ax = self.points[0]
        for y, Ay in self.points[1:]:
            if y.norm() > radius:
                t = until_the_boundary(x, y - x, radius)
                return self.step(x + t * (y - x), Ax + t * (Ay - Ax), damping=math.nan)
            x, Ax = y, Ay
        return self.step(x, Ax, damping=0.0)

    def step(self, x: Tensor, Ax: Tensor, damping: float) -> gnvpro.extend.Step:
        """Return a step with its predicted reduction; damping is 0 if the radius does not bind."""
        return gnvpro.extend.Step(x, float(x.norm()), -float(self.gradient @ x + 0.5 * x @ Ax), damping)


def until_the_boundary(x: Tensor, d: Tensor, radius: float) -> float:
    """Return the t >= 0 with |x + t d| = radius."""
    dd, xd, room = float(d @ d), float(x @ d), radius**2 - float(x @ x)
    return (math.sqrt(xd**2 + dd * room) - xd) / dd


def cg_path(gradient: Tensor, A: Callable[[Tensor], Tensor], steps: int, rtol: float) -> CGPath:
    """Run conjugate gradients for A x = -gradient."""
    x = Ax = torch.zeros_like(gradient)
    residual = direction = -gradient
    points = [(x, Ax)]
    for _ in range(steps):
        product = A(direction)
        curvature = direction @ product
        if not curvature > 0:  # A is positive semi-definite: only rounding is left
            break
        length = (residual @ residual) / curvature
        x, Ax = x + length * direction, Ax + length * product
        points.append((x, Ax))
        after = residual - length * product
        if after.norm() <= rtol * gradient.norm():
            break
        direction = after + (after @ after) / (residual @ residual) * direction
        residual = after
    return CGPath(gradient, points)


# %% [markdown]
# The solver: a frozen dataclass of settings. A checkpoint compares them.


# %%
@dataclass(frozen=True)
class SteihaugCG(gnvpro.extend.ModelSolver):
    """Truncated conjugate gradients."""

    max_steps: int = 20
    rtol: float = 1e-2
    name: ClassVar[str] = "steihaug-cg"

    def model(self, point, passes_left: float) -> CGPath:
        """Build the path with products of two passes each; two passes remain for the trial and its gradient."""
        steps = int(min(self.max_steps, max(1.0, (passes_left - 2) // 2)))
        return cg_path(point.gradient(), point.curvature().mv, steps, self.rtol)


# %% [markdown]
# Pass it as `solver`.

# %%
x = torch.linspace(-1, 1, 100)[:, None]
y = torch.sin(4 * x) * torch.exp(x)


def train(solver: str | gnvpro.extend.Solver) -> gnvpro.Result:
    torch.manual_seed(0)
    model = gnvpro.networks.MLP(1, [8, 8], n_outputs=1)
    return gnvpro.train(model, x, y, loss="least_squares", solver=solver, work=300)


own, krylov = train(SteihaugCG()), train("krylov")
for result in (own, krylov):
    record = result.history[-1]
    print(
        f"{record.solver:12} loss {record.loss:.2e} after {len(result.history) - 1} iterations, {result.work:g} work units"
    )

assert {record.solver for record in own.history[1:]} == {"steihaug-cg"}
assert own.work <= 300
assert own.history[-1].loss < 1e-2 * own.history[0].loss
