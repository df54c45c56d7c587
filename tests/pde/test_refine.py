"""Points are added in regions of the largest residuals."""

from __future__ import annotations

import math

import torch
from torch import nn

import gnvpro
from gnvpro import pde
from gnvpro.pde.field_head import eliminate
from gnvpro.pde.refine import Refinement
from gnvpro.pde.residuals import Seen
from gnvpro.pde.system import System

LINE = pde.points.Box([-1.0], [1.0])


def steep(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(40 * x[:, 0])


def fitted() -> tuple[System, Refinement, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    u = pde.Field(gnvpro.networks.MLP(1, [12], nn.Tanh, dtype=torch.float64))
    equations = [pde.Equation(u, LINE.inside(40), steep, name="fit"), pde.Equation(u, LINE.inside(30).points, steep)]
    system = System(u, equations)
    x = system.x()
    fit = eliminate(system, system.carry(x), x, u.W(), 1e-12)
    assert fit is not None
    return system, Refinement(equations, 0), x, fit.W


def test_new_points_are_drawn_where_the_residual_is_large_and_the_given_ones_stay() -> None:
    system, refinement, x, W = fitted()
    refined = refinement.refined(system, x, W, [0], look=10)
    points, given = refined.equations[0].compiled.sites[0].points, refinement.given[0].compiled.sites[0].points
    assert len(points) == 2 * len(given)
    assert torch.equal(points[: len(given)], given)
    near = (points[len(given) :].abs() < 0.15).double().mean()
    assert near > 0.3  # 0.15 of an even draw
    assert refined.weights == system.weights
    again = refinement.refined(refined, x, W, [0], look=20)
    assert again.equations[0].rows == 80
    assert not torch.equal(again.equations[0].compiled.sites[0].points, points)
    restored = refinement.restored(system, refinement.added(again))
    assert torch.equal(restored.equations[0].compiled.sites[0].points, again.equations[0].compiled.sites[0].points)


def test_only_equations_that_were_drawn_and_overfit_are_refined() -> None:
    system, refinement, x, W = fitted()
    fit = eliminate(system, system.carry(x), x, W, 1e-12)
    assert fit is not None
    own = [float(rows.square().sum()) for rows in system.by_equation(fit.assembled.residual)]

    def needing(first: float, second: float, peaked: float = 1.3, slow: bool = False) -> list[int]:
        seen = [Seen(first * own[0], math.sqrt(first * own[0]) / peaked), Seen(second * own[1], 1.0)]
        return refinement.needing(system, fit, seen, slow)

    assert needing(2.0, 2.0) == []
    assert needing(2.5, 2.5) == [0]  # the points of the other were given
    assert needing(2.5, 2500.0) == []  # it is not what matters
    assert needing(1.0, 1.0, peaked=2.1, slow=True) == [0]
    assert needing(1.0, 1.0, peaked=1.9, slow=True) == []
    assert needing(1.0, 1.0, peaked=2.1, slow=False) == []
