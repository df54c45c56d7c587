"""The geodesic correction: the second derivative of the outputs along a step, and the steps that it bends."""

from __future__ import annotations

import pytest
import torch

from dense_cases import CASES, F64, make, relative
from gnvpro.minimize.dense_model import DenseModel
from gnvpro.minimize.step_rules import Step
from gnvpro.objectives.gauss_newton_matrix import GaussNewtonMatrix
from gnvpro.objectives.geodesic import Geodesic
from gnvpro.objectives.reduced import ReducedObjective, ReducedPoint


def bent_parts(name: str) -> tuple[ReducedObjective, ReducedPoint, GaussNewtonMatrix, DenseModel]:
    builder, point = make(CASES[name], residual_term=True)
    local = builder.build(point)
    gradient = local.subspace.reduce(local.gradient)
    return (
        point.problem.reduced,
        point,
        local,
        DenseModel(local.matrix, gradient, torch.ones_like(gradient), local.subspace.expand),
    )


@pytest.mark.parametrize("name", ["neural ode", "least squares, fewer targets", "multinomial, few classes"])
def test_acceleration_is_that_of_central_differences(name: str) -> None:
    objective, point, local_matrix, model = bent_parts(name)
    step = model.solve_damped(1e-1 * model.scale)
    got = Geodesic(point.problem.reduced, point, local_matrix, probe=1e-3).acceleration(model, step)
    h, v = 1e-3, step.d_x
    ahead, behind = objective.at(point.x + h * v, point), objective.at(point.x - h * v, point)
    second_X = (ahead.outputs - 2 * point.outputs + behind.outputs) / h**2
    second_W = (ahead.W - 2 * point.W + behind.W) / h**2
    local = point.sensitivity
    J = point.jacobian()
    J_W = torch.stack(
        [local.head_jacobian.mv(point.linearization.jvp(e)).reshape(-1) for e in torch.eye(v.numel(), dtype=F64)]
    )
    hessian = point.problem.misfit.hessian(point.outputs)
    pulled = J.rmv(hessian(second_X)) + point.problem.head_penalty * J_W @ second_W.reshape(-1)
    damped = point.curvature().dense() + step.damping * torch.eye(v.numel(), dtype=F64)
    assert got is not None
    assert relative(model.expand(got), -torch.linalg.solve(damped, pulled)) < 2e-2


def test_bent_step_keeps_the_outputs_nearer_to_a_line() -> None:
    objective, point, local_matrix, model = bent_parts("neural ode")
    straight = model.solve_damped(1e-1 * model.scale)
    bent = Geodesic(point.problem.reduced, point, local_matrix).bend(model, straight)
    assert bent.norm == straight.norm

    def off_the_line(step: Step) -> float:
        """Distance of the outputs from the linear model's, projected on the tangents."""
        there, local = objective.at(point.x + step.d_x, point), local_matrix
        moved = local.pull_back(there.outputs - point.outputs, there.W - point.W)
        y = local.subspace.reduce(straight.d_x)
        return float((local.subspace.reduce(moved) - (local.matrix - local.penalty) @ y).norm())

    assert off_the_line(bent) < 0.8 * off_the_line(straight)
    never = Geodesic(point.problem.reduced, point, local_matrix, limit=0.0).bend(model, straight)
    assert torch.equal(never.d_x, straight.d_x)
