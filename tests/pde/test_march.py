"""Long times are solved slab by slab: each begins with the end of the last, and inherited errors are reported."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
import torch
from torch import Tensor

from gnvpro import Status, pde
from gnvpro.extend import History
from gnvpro.pde.features import Kind
from gnvpro.pde.march import March, SlabFeatures, can_march, march, restricted
from gnvpro.pde.verdict import estimated_error
from gnvpro.policy import EquationPolicy, Policy

F64 = torch.float64
ZERO = torch.zeros(1, 1, dtype=F64)
QUICK = Policy(equations=EquationPolicy(trial_operations=5e8, march_above=0.0, slab_error=1e-6))


def pendulum(end: float, count: int = 80) -> tuple[pde.Field, list[pde.Equation]]:
    """u' = v, v' = -u from (1, 0): the cosine."""
    u = pde.Field(pde.points.Box([0.0], [end]), outputs=2, time=0)
    times = pde.points.Box([0.0], [end]).inside(count)
    return u, [
        pde.Equation(pde.d(u[0], 0) - u[1], times),
        pde.Equation(pde.d(u[1], 0) + u[0], times),
        pde.Equation(u[0], ZERO, 1.0),
        pde.Equation(u[1], ZERO, 0.0),
    ]


def relative_error(u: pde.Field, end: float) -> float:
    t = torch.linspace(0, end, 500, dtype=F64)[:, None]
    exact = torch.cat([t.cos(), -t.sin()], 1)
    return float((u(t).detach() - exact).norm() / exact.norm())


def test_many_periods_are_solved_and_the_estimate_is_near_the_error() -> None:
    u, equations = pendulum(40.0)
    result = pde.solve(u, equations, policy=QUICK)
    true = relative_error(u, 40.0)
    assert true < 1e-4
    assert true / 10 < result.error < 10 * true
    assert result.solved
    assert result.status is Status.CONVERGED
    assert len(result.residuals) == 4
    assert sum("time" in (record.note or "") for record in result.history) == len(result.history)
    assert any("marched in time" in note for note in result.notes)


def test_the_field_hardly_jumps_between_slabs() -> None:
    u, equations = pendulum(20.0)
    pde.solve(u, equations, policy=QUICK)
    assert isinstance(u.features, SlabFeatures)
    assert len(u.features.edges) > 2
    edges = u.features.edges[:, None]
    assert torch.allclose(u(edges - 1e-9), u(edges + 1e-9), rtol=0, atol=1e-5)


def test_a_second_derivative_in_time_continues_value_and_slope() -> None:
    u = pde.Field(pde.points.Box([0.0], [30.0]), time=0)
    times = pde.points.Box([0.0], [30.0]).inside(80)
    equations = [
        pde.Equation(pde.d(u, 0, 0) + u, times),
        pde.Equation(u, ZERO, 1.0),
        pde.Equation(pde.d(u, 0), ZERO, 0.0),
    ]
    result = pde.solve(u, equations, policy=QUICK)
    t = torch.linspace(0, 30, 300, dtype=F64)[:, None]
    assert float((u(t).detach() - t.cos()).norm() / t.cos().norm()) < 1e-4
    assert result.solved


@pytest.mark.slow
def test_a_budget_that_ends_on_the_way_is_not_solved() -> None:
    u, equations = pendulum(1000.0)
    ticks = iter(range(10_000))
    result = pde.solve(u, equations, seconds=30.0, clock=lambda: float(next(ticks)), policy=QUICK)
    assert result.error == math.inf
    assert result.status is Status.NOT_SOLVED
    assert any("not reached" in note for note in result.notes)
    assert str(Status.SECONDS_SPENT) in result.notes[-1]


def test_the_same_march_gives_the_same_bits() -> None:
    fields = []
    for _ in range(2):
        u, equations = pendulum(10.0)
        pde.solve(u, equations, policy=QUICK)
        fields.append(u(torch.linspace(0, 10, 50, dtype=F64)[:, None]))
    assert torch.equal(*fields)


def test_conditions_at_the_first_time_continue_with_the_values_of_the_field_before() -> None:
    u = pde.Field(pde.points.Box([0, 0], [2, 1]), time=0)
    torch.nn.init.normal_(u.head.weight)
    side = pde.points.Box([0, 0], [2, 1]).face(0, "low", 9)
    slope = pde.Equation(pde.d(u, 0) * pde.d(u, 1), side, 0.0)
    moved = restricted(slope, u.domain, 0.5, 1.0, u)
    assert moved is not None
    points = moved.compiled.sites[0].points
    assert (points[:, 0] == 0.5).all()
    assert torch.equal(points[:, 1], side.points[:, 1])
    x = points.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(u(x).sum(), x)
    assert torch.allclose(moved.targets, gradient.prod(1), rtol=1e-12, atol=0)


def test_drawn_points_are_mapped_to_the_slab_and_given_ones_are_picked() -> None:
    u = pde.Field(pde.points.Box([0, 0], [4, 1]), time=0)
    box = pde.points.Box([0, 0], [4, 1])
    inside = restricted(pde.Equation(u, box.inside(50), 1.0), u.domain, 1.0, 2.0, u)
    assert inside is not None
    assert inside.rows == 50
    assert inside.compiled.sites[0].points[:, 0].aminmax() == pytest.approx((1.0, 2.0), abs=0.1)
    assert inside.can_be_redrawn
    data = torch.tensor([[0.5, 0.5], [1.5, 0.1], [1.7, 0.2], [3.0, 0.3]], dtype=F64)
    given = pde.Equation(u, data, torch.arange(4, dtype=F64))
    picked = restricted(given, u.domain, 1.0, 2.0, u)
    assert picked is not None
    assert picked.targets.tolist() == [1.0, 2.0]
    assert restricted(given, u.domain, 2.0, 2.5, u) is None


def test_what_is_tied_to_several_times_does_not_march() -> None:
    u, equations = pendulum(5.0)
    assert can_march(u, equations)
    assert not can_march(u, equations[:2])  # nothing to begin with
    nodes, weights = torch.linspace(0, 5, 11, dtype=F64)[:, None], torch.full((11,), 0.5, dtype=F64)
    assert not can_march(u, [*equations, pde.Equation(pde.integral(u[0], nodes, weights), None, 0.0)])
    rate = pde.Constant(1.0)
    assert not can_march(u, [*equations, pde.Equation(rate * u[0], ZERO, 1.0)])


def test_pieces_are_the_features_of_a_points_own_slab() -> None:
    parts = [torch.nn.Linear(1, 2, dtype=F64), torch.nn.Linear(1, 3, dtype=F64)]
    pieces = SlabFeatures(parts, [1.0], 0)
    points: Tensor = torch.tensor([[0.5], [1.0], [1.5]], dtype=F64)
    made = pieces(points)
    assert made.shape == (3, 7)
    assert torch.equal(made[0, :3], torch.cat([parts[0](points[:1])[0], torch.ones(1)]))
    assert not made[0, 3:].any()
    assert not made[1:, :3].any()
    assert torch.equal(made[1:, 3:6], parts[1](points[1:]))


def wave(end: float = 1.0) -> tuple[pde.Field, list[pde.Equation]]:
    """u_tt = u_xx with one half-wave."""
    box = pde.points.Box([0, 0], [end, 1])
    u, start = pde.Field(box, time=0), box.face(0, "low", 30)
    return u, [
        pde.Equation(pde.d(u, 0, 0) - pde.d(u, 1, 1), box.inside(250)),
        pde.Equation(u, start, lambda x: torch.sin(math.pi * x[:, 1])),
        pde.Equation(pde.d(u, 0), start, 0.0),
        pde.Equation(u, box.boundary(40, faces=[(1, "low"), (1, "high")]), 0.0),
    ]


def error_of_wave(u: pde.Field) -> float:
    x = torch.rand(500, 2, dtype=F64)
    exact = torch.sin(math.pi * x[:, 1]) * torch.cos(math.pi * x[:, 0])
    return float((u(x)[:, 0].detach() - exact).norm() / exact.norm())


@pytest.mark.parametrize("marches", [0, 1])
def test_all_times_come_before_slabs_if_there_is_space(marches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that end early used to send waves to slabs, which failed with most of the seconds left.

    With marches = 1 the run is made to look unsolved, gives way to slabs that fail, and goes on.
    """
    asked, estimates, module = [], [], sys.modules["gnvpro.pde.solve"]

    def fail(u: pde.Field, *rest: object) -> March:
        asked.append(u)
        return March((), Status.STEP_TOO_SMALL, u.kind, History())

    def estimate(*rest: object) -> float:
        estimates.append(estimated_error(*rest))
        return math.inf if marches and len(estimates) <= 2 else estimates[-1]

    monkeypatch.setattr(module, "march", fail)
    monkeypatch.setattr(module, "estimated_error", estimate)
    u, equations = wave()
    ticks = itertools.count()
    policy = Policy(equations=EquationPolicy(operations_per_second=1.5e9, march_above=0.0))
    result = pde.solve(u, equations, seconds=1.0, clock=lambda: 0.005 * next(ticks), policy=policy)
    assert len(asked) == marches
    assert len(result.history) > 15
    assert error_of_wave(u) < 1e-4
    assert result.solved


def test_a_slab_is_not_halved_if_its_error_is_one_of_space() -> None:
    """Two sines cannot represent the start, however short the slab is."""
    u, equations = wave()
    u.kind = Kind(sines=3, scales=(2.0,))
    rows = EquationPolicy(slab_error=1e-14, worst_slab=1.0)
    made = march(u, equations, 0, rows, lambda: 0.0, None, [])
    assert made.status is Status.CONVERGED
    assert len(made.slabs) <= 2 * rows.first_slabs
