"""The two ways to treat the head, and the choice between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gnvpro
from equation_cases import ENDS, LINE
from gnvpro import pde
from gnvpro.pde.field_objective import EliminatedObjective, JointObjective
from gnvpro.pde.system import System
from gnvpro.pde.ways import Ways


def cubic(seed: int = 0, width: int = 10) -> tuple[pde.Field, list[pde.Equation]]:
    """u'' = 2 u^3 with u = 1 / (1 + x)."""
    torch.manual_seed(seed)
    u = pde.Field(gnvpro.networks.MLP(1, [width], nn.Tanh, dtype=torch.float64))
    values = torch.tensor([1.0, 0.5], dtype=torch.float64)
    return u, [pde.Equation(pde.d(u, 0, 0) - 2 * u**3, LINE.inside(60), 0.0), pde.Equation(u, ENDS, values)]


@pytest.mark.parametrize("kind", [EliminatedObjective, JointObjective])
def test_the_gradient_is_the_slope_of_the_objective(kind: type[EliminatedObjective | JointObjective]) -> None:
    u, equations = cubic(width=4)
    system = System(u, equations)
    objective = kind(system, 1e-6)
    W = 0.3 * torch.randn_like(u.W())
    point = objective.start(system.x(), W)
    if kind is EliminatedObjective:  # to the last digit, so that the envelope theorem holds
        for _ in range(20):
            point = objective.start(system.x(), point.W)
    d_x = torch.randn(len(point.x), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = 1e-4
    slope = (objective.at(point.x + h * d_x, point).value - objective.at(point.x - h * d_x, point).value) / (2 * h)
    assert float(point.gradient() @ d_x) == pytest.approx(slope, rel=1e-3)


def test_the_joint_jacobian_is_the_derivative_of_all_residuals() -> None:
    u, equations = cubic(width=4)
    system = System(u, equations)
    objective = JointObjective(system, 1e-3)
    point = objective.start(system.x(), torch.randn_like(u.W()))
    assert len(point.x) == system.n_theta + u.W().numel()
    d_x, h = torch.randn_like(point.x), 1e-6
    ahead, behind = (objective.at(point.x + s * d_x, point).fitted.residual for s in (h, -h))
    torch.testing.assert_close(point.jacobian @ d_x, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("head", ["eliminated", "together", "auto"])
def test_every_way_solves_a_nonlinear_equation(head: str) -> None:
    u, equations = cubic()
    result = pde.solve(u, equations, seconds=None, iterations=150, head=head)
    x = torch.rand(50, 1, dtype=torch.float64)
    assert float((u(x) - 1 / (1 + x)).detach().abs().max()) < 1e-5
    used = {record.solver for record in result.history}
    assert used <= {"newton rows", "joint rows"}
    if head != "auto":
        assert used == {{"eliminated": "newton rows", "together": "joint rows"}[head]}


def test_linear_equations_are_solved_with_the_head_eliminated() -> None:
    torch.manual_seed(0)
    u = pde.Field(gnvpro.networks.MLP(1, [5], dtype=torch.float64))
    result = pde.solve(u, [pde.Equation(u, LINE.inside(20), 1.0)], iterations=2, head="together")
    assert {record.solver for record in result.history} == {"rows"}


def test_the_head_is_eliminated_once_the_objective_is_small() -> None:
    ways = Ways.choose(linear=False, head="auto")
    assert ways.together
    assert ways.closer(2e-4, of_zero=1.0) is None
    closer = ways.closer(0.9e-4, of_zero=1.0)
    assert closer is not None
    assert not closer.together
    assert closer.closer(0.9e-4, of_zero=1.0) is None
    fixed = Ways.choose(linear=False, head="together")
    assert fixed.closer(0.0, of_zero=1.0) is None


def test_where_no_step_is_left_the_other_way_is_tried_once() -> None:
    ways = Ways.choose(linear=False, head="auto")
    other = ways.other(1.0)
    assert other is not None
    assert not other.together
    assert other.other(1.0) is None
    further = other.other(0.5)
    assert further is not None
    assert further.together
    assert Ways.choose(linear=False, head="eliminated").other(1.0) is None
    assert Ways.choose(linear=True, head="auto").other(1.0) is None
