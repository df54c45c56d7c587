"""More targets than samples: rotated to as many as samples, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.methods import GNvpro
from gnvpro.objectives import reduced
from gnvpro.objectives.problem import Problem

SAMPLES, TARGETS = 12, 50


def problem(weighted: bool = False, penalty: float = 1e-3) -> Problem:
    torch.manual_seed(0)
    inputs, targets = torch.randn(SAMPLES, 2).double(), torch.randn(SAMPLES, TARGETS).double()
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, TARGETS)).double()
    weights = torch.rand(SAMPLES).double() + 0.5 if weighted else None
    return gnvpro.Problem(
        model, inputs, targets, loss="least_squares", sample_weight=weights, head_penalty=penalty, theta_penalty=1e-3
    )


def point_of(problem: Problem) -> reduced.ReducedPoint:
    return problem.reduced.at(problem.theta())


@pytest.fixture
def unrotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced, "few_targets", lambda problem: problem.misfit)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1e-3])
def test_a_point_is_the_same_as_for_all_targets(weighted, penalty, request):
    few = point_of(problem(weighted, penalty))
    request.getfixturevalue("unrotated")
    all_targets = point_of(problem(weighted, penalty))
    assert few.few.targets.shape == (SAMPLES, SAMPLES)
    assert all_targets.few.targets.shape == (SAMPLES, TARGETS)
    v = torch.randn_like(few.theta)
    assert few.value == pytest.approx(all_targets.value, rel=1e-12)
    assert few.misfit == pytest.approx(all_targets.misfit, rel=1e-12)
    for a, b in (
        (few.W, all_targets.W),
        (few.outputs, all_targets.outputs),
        (few.gradient(), all_targets.gradient()),
        (few.curvature().mv(v), all_targets.curvature().mv(v)),
        (few.jacobian().mv(v), all_targets.jacobian().mv(v)),
    ):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("solver", ["dense", "krylov"])
def test_training_leads_to_the_same_model(solver, request):
    def trained() -> gnvpro.Result:
        p = problem()
        torch.manual_seed(0)
        inputs, targets = torch.randn(SAMPLES, 2).double(), torch.randn(SAMPLES, TARGETS).double()
        method = GNvpro(solver=solver)
        return gnvpro.train(p.network.model, inputs, targets, loss="least_squares", method=method, iterations=8)

    rotated = trained()
    request.getfixturevalue("unrotated")
    plain = trained()
    assert rotated.history[-1].loss == pytest.approx(plain.history[-1].loss, rel=1e-6)
    x = torch.randn(5, 2).double()
    assert torch.allclose(rotated.model(x), plain.model(x), rtol=1e-4, atol=1e-5)


def test_evidence_and_intervals_are_of_all_targets(request):
    torch.manual_seed(0)
    inputs, targets = torch.randn(SAMPLES, 2).double(), torch.randn(SAMPLES, TARGETS).double()

    def trained() -> gnvpro.Result:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, TARGETS)).double()
        return gnvpro.train(
            model, inputs, targets, loss="least_squares", theta_penalty="auto", head_penalty="auto", iterations=30
        )

    rotated = trained()
    request.getfixturevalue("unrotated")
    plain = trained()
    assert rotated.chosen is not None
    assert plain.chosen is not None
    assert rotated.history[-1].loss == pytest.approx(plain.history[-1].loss, rel=1e-3)


def test_a_model_in_bfloat16_keeps_a_head_for_every_target():
    torch.manual_seed(0)
    inputs, targets = torch.randn(SAMPLES, 2), torch.randn(SAMPLES, TARGETS)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, TARGETS)).to(torch.bfloat16)
    result = gnvpro.train(model, inputs.to(torch.bfloat16), targets, loss="least_squares", iterations=5)
    outputs = model(inputs.to(torch.bfloat16)).detach().double()
    misfit = 0.5 * float((outputs - targets).square().sum(1).mean())
    assert misfit == pytest.approx(result.history[-1].misfit, rel=0.02)


def test_other_losses_and_fewer_targets_are_left_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    p = gnvpro.Problem(model, torch.randn(9, 2).double(), torch.randn(9, 3).double(), loss="least_squares")
    assert p.misfit.rotated is p.misfit
