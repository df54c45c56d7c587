"""A field given by its domain: its features are chosen by short runs, grow while that pays, and are the same every time."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from tests.equation_cases import network
from torch import Tensor

import gnvpro
from gnvpro import pde
from gnvpro.pde.features import Domain, Kind
from gnvpro.pde.kinds import thinned
from gnvpro.policy import EquationPolicy, Policy

F64 = torch.float64
SQUARE = pde.points.Box([-1, -1], [1, 1])
LEAST = Policy(equations=EquationPolicy(trial_operations=1.0))
SHORT = Policy(equations=EquationPolicy(trial_operations=5e9))


def waves(x: Tensor, frequency: int) -> Tensor:
    return torch.sin(frequency * math.pi * x).prod(1)


def helmholtz(u: pde.Field, frequency: int, count: int = 600) -> list[pde.Equation]:
    factor = 1 - 2 * (frequency * math.pi) ** 2
    return [
        pde.Equation(pde.laplacian(u) + u, SQUARE.inside(count), lambda x: factor * waves(x, frequency)),
        pde.Equation(u, SQUARE.boundary(120), 0.0),
    ]


def error(u: pde.Field, frequency: int) -> float:
    points = SQUARE.inside(1000, 9, "uniform").points
    exact = waves(points, frequency)
    return float((u(points)[:, 0].detach() - exact).norm() / exact.norm())


def test_high_frequencies_that_nobody_stated_are_found() -> None:
    """Tanh layers end at an error of 0.8 here after a minute."""
    u = pde.Field(SQUARE)
    result = pde.solve(u, helmholtz(u, 4), iterations=20)
    assert error(u, 4) < 1e-8
    assert result.solved
    assert max(u.kind.scales) >= 12
    assert any(str(u.kind) in note for note in result.notes)


def test_a_low_frequency_takes_other_features_than_a_high_one() -> None:
    u = pde.Field(SQUARE)
    pde.solve(u, helmholtz(u, 1), iterations=20, policy=Policy(equations=EquationPolicy(trial_operations=5e9)))
    assert max(u.kind.scales) < 12 or len(u.kind.scales) > 2
    assert error(u, 1) < 1e-6


def test_the_same_call_gives_the_same_bits() -> None:
    fields = [pde.Field(SQUARE) for _ in range(2)]
    for u in fields:
        pde.solve(u, helmholtz(u, 2, 200), iterations=3, policy=SHORT)
    points = SQUARE.inside(50).points
    assert torch.equal(fields[0](points), fields[1](points))


def saddle(x: Tensor) -> Tensor:
    """A solution that no few sines add up to."""
    return torch.exp(2 * x.prod(1))


def narrow() -> pde.Field:
    u, kind = pde.Field(SQUARE), Kind(sines=6, scales=(3.0,))
    u.take(kind.build(u.domain, 0), torch.zeros(1, 7, dtype=F64))
    u.kind = kind
    return u


def poisson(u: pde.Field, count: int = 300) -> list[pde.Equation]:
    return [
        pde.Equation(pde.laplacian(u), SQUARE.inside(count), lambda x: 4 * x.square().sum(1) * saddle(x)),
        pde.Equation(u, SQUARE.boundary(120), saddle),
    ]


def test_features_grow_when_the_run_hardly_gains() -> None:
    u = narrow()
    result = pde.solve(u, poisson(u), iterations=80)
    assert u.head.in_features > 6
    assert any("features: 12" in (record.note or "") for record in result.history)
    own = pde.Field(Kind(sines=6, scales=(3.0,)).build(u.domain, 0))
    pde.solve(own, poisson(own), iterations=80)
    points = SQUARE.inside(1000, 9, "uniform").points
    grown, fixed = (float((v(points)[:, 0].detach() - saddle(points)).norm()) for v in (u, own))
    assert grown < fixed / 3


def test_wider_features_leave_the_values_as_they_are() -> None:
    u = pde.Field(SQUARE, outputs=2)
    u.take(Kind(tanh=(5,)).build(u.domain, 0), torch.randn(2, 6, dtype=F64))
    points = SQUARE.inside(20).points
    before = u(points).detach()
    for seed in (1, 2):
        u.widen(Kind(sines=4).build(u.domain, seed))
    assert u.head.in_features == 13
    assert torch.allclose(u(points), before, rtol=0, atol=1e-14)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, parts = narrow(), [narrow(), narrow()]
    pde.solve(whole, poisson(whole, 200), iterations=70)
    for u, iterations in zip(parts, (45, 70), strict=True):
        pde.solve(u, poisson(u, 200), iterations=iterations, checkpoint=tmp_path / "run", resume=True)
    assert whole.head.in_features > 6
    points = SQUARE.inside(50).points
    assert torch.equal(whole(points), parts[1](points))


@pytest.mark.parametrize("kind", [Kind(sines=8, scales=(1.0, 4.0)), Kind(tanh=(6, 5)), Kind(sines=4, tanh=(3,))])
def test_periodic_coordinates_are_periodic(kind: Kind) -> None:
    domain = Domain.of(pde.points.Box([0, -1], [3, 2]), 0, [1])
    features = kind.build(domain, 0)
    points = torch.rand(10, 2, dtype=F64)
    assert torch.allclose(features(points), features(points + torch.tensor([0.0, 3.0])), rtol=0, atol=1e-12)
    assert not torch.allclose(features(points), features(points + torch.tensor([1.0, 0.0])))


def test_weights_are_drawn_for_the_size_of_the_box() -> None:
    points = torch.rand(10, 2, dtype=F64)
    unit = Kind(sines=8).build(Domain.of(pde.points.Box([0, 0], [1, 1]), None, []), 3)
    large = Kind(sines=8).build(Domain.of(pde.points.Box([-50, 0], [50, 1000]), None, []), 3)
    moved = torch.stack([100 * points[:, 0] - 50, 1000 * points[:, 1]], 1)
    assert torch.allclose(unit(points), large(moved), rtol=0, atol=1e-11)


def test_a_ball_is_a_domain() -> None:
    disc = pde.points.Ball([1.0, 1.0], 2.0)
    u = pde.Field(disc)
    equations = [pde.Equation(-pde.laplacian(u), disc.inside(200), 4.0), pde.Equation(u, disc.boundary(60), 0.0)]
    assert pde.solve(u, equations, iterations=5, policy=SHORT).solved
    assert float(u(torch.tensor([[1.0, 1.0]], dtype=F64)).detach()) == pytest.approx(4.0, rel=1e-3)


def test_a_right_hand_side_may_use_autograd() -> None:
    """The run draws points again while gradients are not recorded."""

    def source(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad((waves(x, 1)).sum(), x, create_graph=True)
        return sum(torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0][:, i] for i in range(2))

    u = pde.Field(SQUARE)
    equations = [pde.Equation(pde.laplacian(u), SQUARE.inside(60), source), pde.Equation(u, SQUARE.boundary(60), 0.0)]
    result = pde.solve(u, equations, iterations=31, policy=LEAST)
    assert len(result.history) > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": 2}, "time must be the number of a coordinate below 2"),
        ({"periodic": [0], "time": 0}, "other than time"),
        ({"periodic": [5]}, "periodic must list coordinates below 2"),
    ],
)
def test_a_coordinate_that_does_not_exist_is_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pde.Field(SQUARE, **arguments)


def test_a_module_has_no_time_or_period() -> None:
    with pytest.raises(ValueError, match="go with a domain"):
        pde.Field(gnvpro.networks.MLP(2, [4], dtype=F64), time=0)


def test_a_result_says_if_another_kind_of_network_would_have_been_better() -> None:
    torch.manual_seed(0)
    u = pde.Field(gnvpro.networks.MLP(2, [50], dtype=F64))
    result = pde.solve(u, helmholtz(u, 4), iterations=160, spread=False, grow=False)
    assert not result.solved
    notes = [note for note in result.notes if "another network would be better" in note]
    assert len(notes) == 1
    assert re.search("sines of scale (12|8, 16)", notes[0])
    assert "pde.Field(pde.points.Box([-1.0, -1.0], [1.0, 1.0]))" in notes[0]


def test_trials_leave_unknown_constants_as_they_are() -> None:
    factor, found = pde.Constant(1.0), []
    for tolerance in (1e-14, 1e9):  # trials follow the first run only
        factor.value, u = 1.0, pde.Field(network(2, [6]))
        equations = [*helmholtz(u, 4, 100), pde.Equation(factor * u, SQUARE.inside(30), lambda x: 2 * waves(x, 4))]
        pde.solve(u, equations, iterations=8, tolerance=tolerance)
        found.append(factor.value)
    assert found[0] == found[1]


def test_trials_on_fewer_points_keep_all_faces() -> None:
    u = pde.Field(SQUARE)
    thin = thinned(helmholtz(u, 1, 3000), 400)
    assert 380 <= sum(equation.rows for equation in thin) <= 402
    sides = thin[1].compiled.sites[0].points
    assert all(bool((sides[:, axis] == side).any()) for axis in (0, 1) for side in (-1.0, 1.0))
    assert float((thin[1].targets - 0.0).abs().max()) == 0.0


def test_every_candidate_takes_a_step_however_little_time_there_is() -> None:
    """Without one the first candidate was taken unseen."""
    u = pde.Field(SQUARE)
    result = pde.solve(u, helmholtz(u, 1), iterations=1, policy=LEAST)
    assert "(inf)" not in result.plan[0]
