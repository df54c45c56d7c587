"""Batches, sweeps, levels and which model is kept."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.methods.stochastic import seeded_permutation
from gnvpro.minimize.step_rules import RadiusRule
from gnvpro.networks import NeuralODE
from gnvpro.training.levels import prolongated


def data(n=60):
    torch.manual_seed(0)
    inputs = torch.randn(n, 3, dtype=torch.float64)
    return inputs, torch.sin(2 * inputs[:, :2]) * inputs[:, 2:]


def network(depth=2):
    torch.manual_seed(1)
    return nn.Sequential(NeuralODE(3, 4, depth=depth, final_time=1.0), nn.Linear(4, 2)).double()


def train(model, **arguments):
    inputs, targets = data()
    defaults = {
        "loss": "least_squares",
        "work": 120,
        "method": gnvpro.methods.GNvpro(solver=gnvpro.solvers.Krylov(max_rank=4)),
    }
    return gnvpro.train(model, inputs, targets, **{**defaults, **arguments})


def in_batches(kind=gnvpro.methods.GNvpro, *, size=20, seed=0, **settings):
    """A method that trains on batches."""
    solver = {} if kind is gnvpro.methods.LBFGSvpro else {"solver": gnvpro.solvers.Krylov(max_rank=4)}
    return kind(batches=gnvpro.methods.Batches(size, **settings), seed=seed, **solver)


each_kind = pytest.mark.parametrize(
    "kind", [gnvpro.methods.GNvpro, gnvpro.methods.GaussNewton, gnvpro.methods.LBFGSvpro]
)


@each_kind
def test_batches_cost_their_share_and_come_in_turn(kind):
    result = train(network(), method=in_batches(kind, iterations=2, sweeps=2))
    steps = result.history[1:-1]
    assert [(r.sweep, r.batch) for r in steps] == [(s, b) for s in (0, 1) for b in (0, 1, 2) for _ in range(2)]
    assert result.status is gnvpro.Status.SWEEPS_DONE
    assert result.history[0].work == pytest.approx(2 / 3)  # forward and backward over a third of the samples
    if kind is not gnvpro.methods.LBFGSvpro:
        first = result.history[1]
        assert first.work == pytest.approx((2 + 2 * first.rank + 1 + first.accepted) / 3)


def test_the_radius_is_carried_to_the_next_batch():
    history = train(network(), method=in_batches(iterations=1, sweeps=3)).history
    steps = history[1:-1]
    rule = RadiusRule()
    for before, after in itertools.pairwise(steps):
        assert after.radius / before.radius < 1 / rule.shrink + 1e-9
        assert after.radius / before.radius > rule.shrink**2
    fresh = train(network(), method=in_batches(iterations=1, sweeps=1, seed=1)).history
    assert fresh[1].radius != steps[1].radius


def test_after_the_last_batch_the_head_is_eliminated_over_all_samples():
    inputs, targets = data()
    model = network()
    result = train(model, method=in_batches(sweeps=1), head_penalty=1e-3)
    last = result.history[-1]
    assert last.note == "head eliminated over the whole training set"
    assert last.work - result.history[-2].work == pytest.approx(1)
    features = model[0](inputs).detach()
    Z = torch.cat([features, torch.ones(60, 1, dtype=torch.float64)], 1)
    W = torch.linalg.solve(Z.T @ Z / 60 + 1e-3 * torch.eye(5, dtype=torch.float64), Z.T @ targets / 60).T
    assert torch.allclose(torch.cat([model[1].weight, model[1].bias[:, None]], 1), W, rtol=1e-8)
    assert last.misfit == pytest.approx(0.5 * (Z @ W.T - targets).square().sum(1).mean().item(), rel=1e-8)


@each_kind
@pytest.mark.parametrize("work", [4, 9, 14.5, 31, 60])
def test_batches_keep_to_the_budget_with_the_last_elimination_and_leave_little(kind, work):
    result = train(network(), method=in_batches(kind, iterations=2), work=work)
    assert result.status is gnvpro.Status.WORK_SPENT
    assert result.history[-1].note == "head eliminated over the whole training set"
    assert result.work <= work + 1e-9
    if kind is not gnvpro.methods.LBFGSvpro:
        assert work - result.work < 2 * 4 / 3  # the first model and trial of a batch of a third


def test_batches_are_reshuffled_every_sweep_and_cover_the_set():
    run_order = [seeded_permutation(60, 0, 0, sweep) for sweep in (0, 1)]
    assert not torch.equal(*run_order)
    for order in run_order:
        assert torch.equal(order.sort().values, torch.arange(60))


def test_one_batch_of_everything_is_training_on_everything():
    whole, batched = network(), network()
    train(whole, iterations=3)
    train(batched, method=in_batches(size=60, iterations=3, sweeps=1))
    inputs, _ = data()
    assert torch.allclose(whole(inputs), batched(inputs), rtol=1e-8, atol=1e-10)


ADAM = partial(gnvpro.methods.TorchOptimizer, torch.optim.Adam)


@pytest.mark.parametrize("kind", [gnvpro.methods.GNvpro, gnvpro.methods.GaussNewton, gnvpro.methods.LBFGSvpro, ADAM])
def test_levels_return_a_deeper_network_and_keep_to_their_budgets(kind):
    model = network(depth=2)
    result = train(model, method=kind(levels=3), work=[40, 50, 60])
    assert (model[0].depth, result.model[0].depth) == (2, 8)
    assert sorted({r.level for r in result.history}) == [0, 1, 2]
    for level, limit in enumerate((40, 90, 150)):
        slack = 50 if kind is gnvpro.methods.LBFGSvpro else 0
        assert max(r.work for r in result.history if r.level == level) <= limit + slack
    inputs, targets = data()
    misfit = 0.5 * (result.model(inputs) - targets).square().sum(1).mean().item()
    assert misfit == pytest.approx(result.history[-1].misfit, rel=1e-9)


def test_one_number_for_the_work_is_shared_evenly_by_the_levels():
    result = train(network(), method=gnvpro.methods.GNvpro(levels=2), work=100)
    assert max(r.work for r in result.history if r.level == 0) <= 50


def test_the_head_of_the_full_methods_is_kept_by_a_prolongation():
    """With T = 1 the refined network computes nearly the same, so the kept head nearly fits."""
    history = train(network(), method=gnvpro.methods.GaussNewton(levels=2), work=100).history
    last = [r for r in history if r.level == 0][-1]
    first = next(r for r in history if r.level == 1)
    assert first.loss == pytest.approx(last.loss, rel=0.05)
    assert first.loss != last.loss


class Steps(nn.Module):
    """A user's own residual network; twice as many steps of half the length compute nearly the same."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, x):
        for weight in self.weights:
            x = x + torch.tanh(x @ weight.T) / len(self.weights)
        return x

    def prolongated(self):
        return Steps(self.weights.detach().repeat_interleave(2, 0))


def test_any_module_with_prolongated_can_be_refined_wherever_it_sits_in_the_model():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), Steps(torch.randn(2, 4, 4)))
    model = nn.Sequential(body, nn.Linear(4, 2)).double()
    result = train(model, method=gnvpro.methods.GNvpro(levels=2))
    assert model[0][1].weights.shape == (2, 4, 4)
    assert result.model[0][1].weights.shape == (4, 4, 4)
    assert result.model[0][0] is not model[0][0]
    assert result.history[-1].loss < result.history[0].loss


def test_keep_best_returns_the_model_with_the_best_validation_score():
    inputs, targets = data()
    validation = (inputs[:6] + 0.3, -targets[:6])  # training makes this worse sooner or later
    model = network()
    result = train(model, validation=validation, keep="best", work=300)
    scores = result.history.column("validation_loss")
    own = 0.5 * (model(validation[0]) - validation[1]).square().sum(1).mean().item()
    assert own == pytest.approx(min(scores), rel=1e-9)
    assert min(scores) < scores[-1]


def test_keep_last_returns_the_last_model():
    inputs, targets = data()
    model = network()
    with pytest.warns(UserWarning, match="validation loss was"):
        result = train(model, validation=(inputs[:6], -targets[:6]), keep="last", work=300)
    own = 0.5 * (model(inputs[:6]) + targets[:6]).square().sum(1).mean().item()
    assert own == pytest.approx(result.history[-1].validation_loss, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"keep": "best"}, "validation"),
        ({"keep": "first"}, "keep='first'"),
        ({"work": [10, 20]}, "work"),
        ({"work": [10, 20, 30], "method": gnvpro.methods.GNvpro(levels=2)}, "levels=2"),
        ({"resume": True}, "checkpoint"),
        ({"method": "adams"}, "adam"),
    ],
)
def test_wrong_settings_are_told_by_name(arguments, told):
    with pytest.raises(ValueError, match=told):
        train(network(), **arguments)


def test_levels_need_a_network_that_can_be_refined():
    inputs, targets = data()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with pytest.raises(ValueError, match=r"levels=2.*prolongated"):
        gnvpro.train(model, inputs, targets, loss="least_squares", method=gnvpro.methods.GNvpro(levels=2))


def test_small_problems_run_on_one_thread_and_the_number_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        train(network(), iterations=1, listeners=lambda record: seen.append(torch.get_num_threads()))
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            train(network(), iterations=1, listeners=lambda record: 1 / 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_level_that_cannot_begin_says_which(monkeypatch):
    def spoilt(model):
        finer = prolongated(model)
        nn.init.constant_(next(finer.parameters()), math.nan)
        return finer

    monkeypatch.setattr("gnvpro.training.train_run.prolongated", spoilt)
    model = network()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(
        ValueError, match=r"level 2 cannot begin \(level 1 is kept\): the model's features are not finite"
    ):
        train(model, method=gnvpro.methods.LBFGSvpro(levels=2))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not torch.equal(before[0], next(model.parameters()))  # trained as far as it went
