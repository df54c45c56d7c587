"""Solving: exact if the solution is representable, quadratic convergence of Newton's method, equal results after a resume."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from equation_cases import ENDS, LINE, SQUARE, network
from gnvpro import pde
from gnvpro.minimize.row_model import RowModel
from gnvpro.pde import field_head as elimination
from gnvpro.pde.field_objective import EliminatedObjective
from gnvpro.pde.residuals import Check
from gnvpro.pde.system import System


def poisson(seed: int = 0, width: int = 20) -> tuple[pde.Field, list[pde.Equation]]:
    u = pde.Field(network(2, [width], seed))
    f = lambda x: 2 * math.pi**2 * (math.pi * x).sin().prod(1)  # noqa: E731
    return u, [
        pde.Equation(-pde.laplacian(u), SQUARE.inside(150), f, name="inside"),
        pde.Equation(u, SQUARE.boundary(60), 0.0, name="edge"),
    ]


def test_poisson_to_six_digits_with_the_check_reported() -> None:
    u, equations = poisson(width=30)
    result = pde.solve(u, equations, seconds=None, iterations=100)
    points = torch.rand(500, 2, dtype=torch.float64)
    error = float((u(points)[:, 0].detach() - (math.pi * points).sin().prod(1)).square().mean().sqrt())
    assert error < 1e-5
    assert result.status is gnvpro.Status.ITERATIONS_SPENT
    assert [r.name for r in result.residuals] == ["inside", "edge"]
    assert all(r.how == "on fresh points" for r in result.residuals)
    again = torch.rand(2000, 2, dtype=torch.float64).requires_grad_()
    (first,) = torch.autograd.grad(u(again).sum(), again, create_graph=True)
    laplacian = sum(torch.autograd.grad(first[:, i].sum(), again, retain_graph=True)[0][:, i] for i in range(2))
    mean = (laplacian + 2 * math.pi**2 * (math.pi * again).sin().prod(1)).square().mean().sqrt()
    assert 1 / 3 < float(result.residuals[0]) / float(mean.detach()) < 3  # other fresh points
    assert any(record.validation_loss is not None for record in result.history)
    assert {record.solver for record in result.history} == {"rows"}


def test_a_solution_in_the_span_of_the_features_is_found_exactly() -> None:
    """u = a tanh of the first feature and of the last: nothing is left but rounding."""
    u = pde.Field(network(2, [12], seed=3))
    W = torch.zeros(1, 13, dtype=torch.float64)
    W[0, 0], W[0, 7], W[0, -1] = 1.5, -0.5, 0.25
    u.store_head(W)
    inside, edge = SQUARE.inside(200).points, SQUARE.boundary(80).points
    moving = inside.clone().requires_grad_()
    value = u(moving)[:, 0]
    (first,) = torch.autograd.grad(value.sum(), moving, create_graph=True)
    second = sum(torch.autograd.grad(first[:, i].sum(), moving, retain_graph=True)[0][:, i] for i in range(2))
    f = (second + value).detach()
    g = u(edge)[:, 0].detach()
    points = torch.rand(100, 2, dtype=torch.float64)
    want = u(points).detach()
    u.store_head(torch.zeros_like(W))
    equations = [pde.Equation(pde.laplacian(u) + u, inside, f), pde.Equation(u, edge, g)]
    result = pde.solve(u, equations, iterations=0, head_penalty=0.0)
    assert float((u(points) - want).detach().abs().max()) < 1e-12
    assert all(r < 1e-12 for r in result.residuals)
    assert all(r.how == "left out" for r in result.residuals)


def test_no_digits_are_lost_to_a_gram_matrix() -> None:
    """Two features that differ by 1e-9: normal equations would see one."""
    x = torch.linspace(0, 1, 30, dtype=torch.float64)[:, None]

    class Nearly(nn.Module):
        n_inputs = 1

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x + 1e-9 * x**2], 1)

    u = pde.Field(Nearly())
    pde.solve(u, [pde.Equation(u, x, x[:, 0] ** 2)], head_penalty=0.0)
    assert float((u(x)[:, 0] - x[:, 0] ** 2).detach().abs().max()) < 1e-6


def test_newton_in_the_head_converges_quadratically(monkeypatch: pytest.MonkeyPatch) -> None:
    """u + u^3 = f with the solution in the span of the features: the error is squared at every step."""
    u = pde.Field(network(1, [6], seed=1))
    x = LINE.inside(60).points
    truth = torch.randn(1, 7, dtype=torch.float64)
    u.store_head(truth)
    value = u(x)[:, 0].detach()
    system = System(u, [pde.Equation(u + u**3, x, value + value**3)])
    monkeypatch.setattr(elimination, "ENOUGH", 0.0)
    errors = []
    for steps in range(7):
        monkeypatch.setattr(elimination, "MOST_TRIALS", steps)
        at = system.x()
        fit = elimination.eliminate(system, system.carry(at), at, truth + 0.3, 0.0)
        assert fit is not None
        values = u.features(x) @ fit.W[0, :-1] + fit.W[0, -1]
        errors.append(float((values - value).detach().abs().max()))
    falling = [e for e in errors if e > 1e-14]
    assert len(falling) >= 4
    assert errors[-1] < 1e-13
    ratios = [after / before**2 for before, after in pairwise(falling)]
    assert all(ratio < 10 for ratio in ratios)


def test_an_unknown_constant_is_found() -> None:
    """kappa u'' = -sin(pi x) with u known at some points."""
    u = pde.Field(network(1, [12], seed=0))
    kappa = pde.Constant(1.0, "kappa")
    x = LINE.inside(40).points
    data = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)[:, None]
    exact = lambda y: (math.pi * y[:, 0]).sin() / (0.3 * math.pi**2)  # noqa: E731
    equations = [
        pde.Equation(kappa * pde.d(u, 0, 0), x, lambda y: -(math.pi * y[:, 0]).sin()),
        pde.Equation(u, ENDS, 0.0),
        pde.Equation(u, data, exact),
    ]
    pde.solve(u, equations, seconds=None, iterations=60)
    assert float(kappa) == pytest.approx(0.3, abs=1e-6)


def test_a_system_of_two_outputs() -> None:
    """u' = v, v' = -u, u(0) = 0, v(0) = 1: sine and cosine."""
    w = pde.Field(network(1, [12], seed=0), outputs=2)
    time = pde.points.Box([0.0], [2.0])
    zero = torch.zeros(1, 1, dtype=torch.float64)
    equations = [
        pde.Equation(pde.d(w[0], 0) - w[1], time.inside(60), 0.0),
        pde.Equation(pde.d(w[1], 0) + w[0], time.inside(60), 0.0),
        pde.Equation(w[0], zero, 0.0),
        pde.Equation(w[1], zero, 1.0),
    ]
    pde.solve(w, equations, seconds=None, iterations=40)
    t = 2 * torch.rand(50, 1, dtype=torch.float64)
    assert float((w(t) - torch.cat([t.sin(), t.cos()], 1)).detach().abs().max()) < 1e-7


def test_a_network_without_formulas_is_solved_by_autodiff() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 8, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return torch.atan(self.inner(x)) * x

    torch.manual_seed(0)
    u = pde.Field(Own())
    equations = [
        pde.Equation(pde.d(u, 0, 0) + u, LINE.inside(16), 0.0),
        pde.Equation(u, ENDS, torch.tensor([0.0, 1.0])),
    ]
    pde.solve(u, equations, seconds=None, iterations=5)
    x = torch.rand(30, 1, dtype=torch.float64)
    assert float((u(x) - x.sin() / math.sin(1.0)).detach().abs().max()) < 1e-4


def test_conditions_can_be_built_in() -> None:
    """u = x (1 - x) v + x is 0 at one end and 1 at the other, whatever v is."""
    v = pde.Field(network(1, [10], seed=0))
    u = (lambda x: x[:, 0] * (1 - x[:, 0])) * v + (lambda x: x[:, 0])
    equation = pde.Equation(pde.d(u, 0, 0) - u, LINE.inside(50), 0.0)
    assert equation.linear
    pde.solve(v, [equation], seconds=None, iterations=40)
    x = torch.rand(50, 1, dtype=torch.float64)
    found = x * (1 - x) * v(x) + x
    assert float((found - x.sinh() / math.sinh(1.0)).detach().abs().max()) < 1e-8


def test_mean_value_instead_of_a_boundary_value() -> None:
    """u' = 1 with integral 0: u = x - 1/2."""
    u = pde.Field(network(1, [6], seed=0))
    nodes = (torch.arange(20, dtype=torch.float64)[:, None] + 0.5) / 20
    equations = [
        pde.Equation(pde.d(u, 0), LINE.inside(40), 1.0),
        pde.Equation(pde.integral(u, nodes, 1 / 20), None, 0.0),
    ]
    pde.solve(u, equations, seconds=None, iterations=30)
    x = torch.rand(30, 1, dtype=torch.float64)
    assert float((u(x) - (x - 0.5)).detach().abs().max()) < 1e-6


# -- the pieces


@pytest.mark.parametrize("damping", [1e-10, 0.1])
@pytest.mark.parametrize(("rows", "variables"), [(12, 5), (5, 12), (6, 6)])
def test_a_step_minimises_the_damped_sum_of_squares(rows: int, variables: int, damping: float) -> None:
    torch.manual_seed(0)
    J, r = torch.randn(rows, variables, dtype=torch.float64), torch.randn(rows, dtype=torch.float64)
    model = RowModel(J, r, scaling=0.5)
    made = model.solve_damped(damping)
    step, norm, promised, used = made.d_x, made.norm, made.predicted_reduction, made.damping
    assert used == damping
    stationary = J.T @ (J @ step + r) + damping * model.metric * step
    assert float(stationary.abs().max()) < 1e-12
    assert norm == pytest.approx(math.sqrt(float(model.metric @ step.square())))
    assert promised == pytest.approx(0.5 * float(r @ r) - 0.5 * float((J @ step + r).square().sum()))


def test_the_gradient_is_that_of_the_reduced_objective() -> None:
    u, equations = poisson(width=5)
    system = System(u, equations)
    objective = EliminatedObjective(system, 1e-6)
    x = system.x()
    point = objective.at(x, None)
    d_x = torch.randn(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = 1e-5
    slope = (objective.at(x + h * d_x, None).value - objective.at(x - h * d_x, None).value) / (2 * h)
    assert float(point.gradient() @ d_x) == pytest.approx(slope, rel=1e-6)


def test_left_out_residuals_are_those_of_solving_without_the_point() -> None:
    u, _ = poisson(width=8)
    inside, edge = SQUARE.inside(20).points, SQUARE.boundary(12).points

    def residuals(keep: Tensor) -> tuple[float, float]:
        equations = [
            pde.Equation(-pde.laplacian(u), inside, 1.0, weight=20.0),
            pde.Equation(u, edge[keep], 0.3, weight=float(len(keep))),
        ]
        result = pde.solve(u, equations, iterations=0, head_penalty=1e-8)
        return float(result.residuals[1]), float(u(edge[:1])[0, 0].detach()) - 0.3

    left_out = residuals(torch.arange(1, 12))[1]
    system = System(
        u, [pde.Equation(-pde.laplacian(u), inside, 1.0, weight=20.0), pde.Equation(u, edge, 0.3, weight=12.0)]
    )
    x = system.x()
    fit = elimination.eliminate(system, system.carry(x), x, u.W(), 1e-8)
    assert fit is not None
    leverage = float(fit.Q[20].square().sum())
    assert float(fit.assembled.residual[20]) / (1 - leverage) == pytest.approx(left_out, rel=1e-5)


def test_a_point_that_nothing_else_determines_is_not_left_out() -> None:
    """The mean of a Neumann problem: without it there is no solution, and its residual over 1 - h is noise."""
    u = pde.Field(network(1, [6], seed=0))
    nodes = (torch.arange(20, dtype=torch.float64)[:, None] + 0.5) / 20
    system = System(
        u,
        [pde.Equation(pde.d(u, 0), LINE.inside(40), 1.0), pde.Equation(pde.integral(u, nodes, 1 / 20), None, 1e-3)],
        [1.0, 1e-6],
    )
    x = system.x()
    fit = elimination.eliminate(system, system.carry(x), x, u.W(), 1e-14)
    assert fit is not None
    own = float(system.by_equation(fit.assembled.residual)[1]) / system.roots[1]
    seen = Check(system, 0).seen(x, fit)[1]
    assert math.sqrt(seen.mean_square) == pytest.approx(abs(own))


def test_weights_are_balanced_in_units_of_the_field() -> None:
    u, equations = poisson()
    inside, edge = System(u, equations).weights
    assert edge == 1.0
    assert inside == pytest.approx(1 / (2 * math.pi**2), rel=0.05)  # the points do not quite fill the square
    assert System(u, [pde.Equation(u, SQUARE.inside(5), 0.0, weight=7.0)]).weights == [7.0]


# -- runs


def front(seed: int = 0) -> tuple[pde.Field, list[pde.Equation]]:
    """A nonlinear equation with too few points for its front: points are drawn again, and the head is treated both ways."""
    u = pde.Field(network(1, [8, 8], seed))
    inside = lambda x: 1 + 20 / torch.cosh(20 * (x[:, 0] - 0.5)) ** 2  # noqa: E731
    return u, [
        pde.Equation(pde.d(u, 0) + u**2, LINE.inside(20), inside, name="inside"),
        pde.Equation(u, ENDS[:1], -1.0, name="start"),
    ]


@pytest.mark.parametrize(("problem", "iterations"), [(poisson, 36), (front, 64)])
def test_a_run_that_was_interrupted_goes_on_to_the_last_bit(problem: Any, iterations: int, tmp_path: Path) -> None:
    def parameters(u: pde.Field) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in u.parameters()])

    u, equations = problem()
    whole = pde.solve(u, equations, seconds=None, iterations=iterations)
    want = parameters(u)
    if problem is front:  # what there is to be resumed
        assert {record.solver for record in whole.history} == {"newton rows", "joint rows"}
        assert any("points: inside 40" in (record.note or "") for record in whole.history[: iterations - 13])
    u, equations = problem()
    file = tmp_path / "run.pt"

    def stop(record: gnvpro.extend.Record) -> None:
        if record.iteration == iterations - 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pde.solve(
            u,
            equations,
            seconds=None,
            iterations=iterations,
            checkpoint=gnvpro.Checkpoint(file, every=7),
            listeners=[stop],
        )
    u, equations = problem()
    result = pde.solve(u, equations, seconds=None, iterations=iterations, checkpoint=file, resume=True)
    assert torch.equal(parameters(u), want)
    assert [r.loss for r in result.history] == [r.loss for r in whole.history]
    assert [r.note for r in result.history] == [r.note for r in whole.history]
    assert [float(r) for r in result.residuals] == [float(r) for r in whole.residuals]


def test_the_field_with_the_smallest_residuals_on_fresh_points_is_kept(tmp_path: Path) -> None:
    """This run is a hundred times worse on fresh points after 34 iterations than after 30."""
    fields: dict[int, Tensor] = {}
    u, equations = front(seed=2)

    def look(record: gnvpro.extend.Record) -> None:
        fields[record.iteration] = u.W()

    file = tmp_path / "run.pt"
    result = pde.solve(u, equations, seconds=None, iterations=34, listeners=[look], checkpoint=file)
    assert "after iteration 30" in result.notes[-1]
    assert torch.equal(u.W(), fields[30])
    assert not torch.equal(u.W(), fields[34])
    again, equations = front(seed=2)
    resumed = pde.solve(again, equations, seconds=None, iterations=34, checkpoint=file, resume=True)
    assert torch.equal(again.W(), fields[30])
    assert resumed.notes == result.notes
    assert [float(r) for r in resumed.residuals] == [float(r) for r in result.residuals]


def test_another_run_is_not_resumed(tmp_path: Path) -> None:
    u, equations = poisson()
    pde.solve(u, equations, iterations=3, checkpoint=tmp_path / "run.pt")
    u2, (inside, edge) = poisson()
    with pytest.raises(ValueError, match="values 1"):
        pde.solve(u2, [inside, pde.Equation(u2, edge.set, 1.0)], checkpoint=tmp_path / "run.pt", resume=True)


def test_too_few_points_are_noticed_on_fresh_ones_and_grown() -> None:
    u = pde.Field(network(1, [20], seed=0))
    steep = lambda x: torch.tanh(20 * (x[:, 0] - 0.5))  # noqa: E731
    equations = [pde.Equation(u, LINE.inside(24), steep)]
    result = pde.solve(u, equations, seconds=None, iterations=80)
    assert any(record.note and "points: equation 0 48" in record.note for record in result.history)
    u = pde.Field(network(1, [20], seed=0))
    fixed = pde.solve(u, [pde.Equation(u, LINE.inside(24), steep)], seconds=None, iterations=80, grow=False)
    assert fixed.residuals[0].rows == 24


def test_listeners_hear_of_every_record() -> None:
    heard = []

    class Listens:
        def begin(self, history: gnvpro.extend.History, budget: float) -> None:
            heard.append("begin")

        def record(self, record: gnvpro.extend.Record) -> None:
            heard.append(str(record.iteration))

        def end(self, status: gnvpro.Status) -> None:
            heard.append(status.name)

    u, equations = poisson(width=5)
    pde.solve(u, equations, iterations=2, listeners=[Listens()])
    assert heard == ["begin", "0", "1", "2", "ITERATIONS_SPENT"]


def test_the_budget_of_seconds_ends_the_run() -> None:
    ticks = iter(range(1000))
    u, equations = poisson(width=5)
    result = pde.solve(u, equations, seconds=20.0, clock=lambda: float(next(ticks)))
    assert (
        f"the run ended because: {gnvpro.Status.SECONDS_SPENT}" in result.notes
    )  # its error is of the order of the solution
    assert 5 <= len(result.history) <= 15


@pytest.mark.parametrize("nonlinear", [False, True])
def test_the_gradient_in_both_variables_is_that_of_the_sum_of_squares(nonlinear: bool) -> None:
    u = pde.Field(network(2, [5, 4], seed=2))
    kappa = pde.Constant(0.5)
    expression = kappa * pde.laplacian(u) + (u**2 if nonlinear else u)
    system = System(u, [pde.Equation(expression, SQUARE.inside(20), 1.0), pde.Equation(u, SQUARE.boundary(8), 0.5)])
    x, W = system.x(), torch.randn(1, 5, dtype=torch.float64)
    _, in_x, in_W = system.gradient(x, W)
    d_x, d_W, h = torch.randn_like(x), torch.randn_like(W), 1e-6
    ahead, behind = (system.gradient(x + s * d_x, W + s * d_W)[0] for s in (h, -h))
    assert float(in_x @ d_x + (in_W * d_W).sum()) == pytest.approx((ahead - behind) / (2 * h), rel=1e-6)
