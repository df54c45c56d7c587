"""The solvers on a network: the hybrid, what `auto` does, and a solver of one's own."""

import itertools
import math

import pytest
import torch
from torch import nn

import gnvpro
from cases import made
from checks import F64
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Start
from gnvpro.minimize.line_model import LineModel
from gnvpro.networks import NeuralODE

INPUTS = torch.rand(150, 3, generator=torch.Generator().manual_seed(5), dtype=F64) * 4 - 2
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > INPUTS[:, 2].sin()).long() + (INPUTS.square().sum(1) > 4).long()
REAL = torch.sin(INPUTS.sum(1, keepdim=True)) * INPUTS[:, :2]


def small_network(n_outputs=3):
    torch.manual_seed(3)
    return nn.Sequential(NeuralODE(3, 6, depth=2, final_time=1.0), nn.Linear(6, n_outputs)).double()


def trained(solver, loss="multinomial", **more):
    settings = {"loss": loss, "work": 300, "head_penalty": 1e-4, "theta_penalty": 1e-4, **more}
    classify = loss == "multinomial"
    if "method" not in more:
        settings["solver"] = solver
    return gnvpro.train(small_network(3 if classify else 2), INPUTS, LABELS if classify else REAL, **settings)


def kinds(history):
    """The solvers that made the steps, one after the other."""
    return [kind for kind, _ in itertools.groupby(record.solver for record in history if record.solver)]


# -- the hybrid


def test_a_direction_that_leads_nowhere_is_given_up_for_a_krylov_space():
    problem = made("mlp, multinomial").problem
    budget, cache = Budget(problem.meter, math.inf), Cache(problem.meter)
    solver = gnvpro.solvers.Hybrid(max_rank=5)
    state = solver.begin(problem, Start(problem.theta()), budget, cache)
    for _ in range(2):
        state, report = solver.step(problem, state, budget, cache)
        assert report.accepted
    loop = solver.loop(solver.prepared(problem, cache), state.memory, budget, cache)
    at = loop.at(state)
    state, model = loop.model(state, at)
    assert isinstance(model, LineModel)
    gradient = at.point.gradient()
    uphill = LineModel(gradient, 1e6 * gradient, 1)  # however short, it leads up
    at.model = uphill
    tried = 0
    while state.memory.known.steps > 0:
        state, report = solver.step(problem, state, budget, cache)
        tried += 1
        assert tried < 20
        assert report.accepted == (state.memory.known.steps == 0)
    assert tried > 2


def test_is_ahead_of_krylov_steps_at_the_same_work():
    hybrid, krylov = trained(gnvpro.solvers.Hybrid(max_rank=10)), trained(gnvpro.solvers.Krylov(max_rank=10))
    assert hybrid.history[-1].work <= 300
    assert hybrid.history[-1].loss < krylov.history[-1].loss
    assert {r.solver for r in hybrid.history[1:]} == {"hybrid"}


@pytest.mark.parametrize("work", [6, 20, 57, 130])
def test_never_goes_up_and_stays_within_the_budget(work):
    history = trained(gnvpro.solvers.Hybrid(max_rank=10), work=work).history
    assert history[-1].work <= work
    assert all(b <= a for a, b in itertools.pairwise(history.column("loss")))


@pytest.mark.parametrize(("loss", "fraction"), [("least_squares", 1e-2), ("logistic", 0.2), ("multinomial", 0.2)])
def test_serves_every_loss(loss, fraction):
    targets = {
        "least_squares": torch.sin(INPUTS.sum(1, keepdim=True)),
        "logistic": (INPUTS.sum(1, keepdim=True).sin() > 0).to(F64),
        "multinomial": LABELS,
    }[loss]
    model = small_network(3 if loss == "multinomial" else 1)
    result = gnvpro.train(model, INPUTS, targets, loss=loss, solver="hybrid", work=200)
    assert result.history[-1].misfit < fraction * result.history[0].misfit
