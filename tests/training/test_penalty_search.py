"""Penalties from the data: known noise is found, scikit-learn's ridge agreed with, a run resumed to the same bits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

import gnvpro
from gnvpro import Tikhonov, time_differences
from gnvpro.networks import NeuralODE
from gnvpro.objectives.evidence import Penalties
from gnvpro.objectives.problem import Searched
from gnvpro.training.history import Record
from gnvpro.training.judgement import judged
from gnvpro.training.penalty_search import PenaltySearch

F64 = torch.float64
AUTO: dict[str, Any] = {"theta_penalty": "auto", "head_penalty": "auto"}


def wave(n: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, dtype=F64, generator=generator) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + x[:, 1:] ** 2
    return x, y + noise * torch.randn(n, 1, dtype=F64, generator=generator)


def network(inputs: int = 2, width: int = 12, outputs: int = 1, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)).double()


@pytest.mark.parametrize("solver", ["dense", "hybrid"])
@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_known_noise_is_found(noise: float, solver: str) -> None:
    result = gnvpro.train(network(), *wave(400, noise), loss="least_squares", solver=solver, **AUTO)
    assert result.chosen is not None
    assert result.chosen.noise[0] == pytest.approx(noise, rel=0.1)
    assert 5 < result.chosen.effective_parameters < 12 * 4 + 1


def test_noise_is_told_for_each_target() -> None:
    x, y = wave(400, 0.0)
    noise = torch.randn(400, 2, dtype=F64, generator=torch.Generator().manual_seed(1)) * torch.tensor([0.05, 0.2])
    result = gnvpro.train(network(outputs=2), x, torch.cat([y, -y], 1) + noise, loss="least_squares", **AUTO)
    assert result.chosen is not None
    assert result.chosen.noise == pytest.approx((0.05, 0.2), rel=0.1)


def test_penalties_fall_with_the_number_of_samples() -> None:
    found = [gnvpro.train(network(), *wave(n, 0.2), loss="least_squares", **AUTO).chosen for n in (50, 200, 800)]
    first, second, third = ((chosen.theta_penalty, chosen.head_penalty) for chosen in found if chosen)
    assert first[0] > second[0] > third[0]
    assert first[1] > second[1] > third[1]


def test_linear_features_agree_with_bayesian_ridge() -> None:
    BayesianRidge = pytest.importorskip("sklearn.linear_model").BayesianRidge
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 6, dtype=F64, generator=generator)
    y = x @ (0.3 * torch.randn(6, 1, dtype=F64, generator=generator))
    y = y + 0.5 * torch.randn(80, 1, dtype=F64, generator=generator)
    model = nn.Linear(6, 1, bias=False).double()
    chosen = gnvpro.train(model, x, y, loss="least_squares", head_penalty="auto").chosen
    assert chosen is not None
    flat = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0, "tol": 1e-12, "max_iter": 10_000}
    ridge = BayesianRidge(fit_intercept=False, **flat).fit(x.numpy(), y.numpy().ravel())
    assert chosen.noise[0] == pytest.approx(ridge.alpha_**-0.5, rel=1e-6)
    assert chosen.head_penalty == pytest.approx(ridge.lambda_ / ridge.alpha_ / 80, rel=1e-5)
    assert torch.allclose(model.weight[0], torch.from_numpy(ridge.coef_), atol=1e-8)


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_labels_that_are_chance_are_not_learnt(loss: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, dtype=F64, generator=generator)
    classes = 2 if loss == "logistic" else 3
    labels = torch.randint(0, classes, (200,), generator=generator)
    model = network(3, outputs=1 if loss == "logistic" else 3)
    result = gnvpro.train(model, x, labels, loss=loss, **AUTO)
    fixed = gnvpro.train(network(3, outputs=1 if loss == "logistic" else 3), x, labels, loss=loss)
    assert result.history[-1].misfit == pytest.approx(math.log(classes), rel=0.05)
    assert fixed.history[-1].misfit < 0.8 * math.log(classes)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_ring_is_learnt_although_strong_penalties_see_nothing_in_it(seed: int) -> None:
    angle = 2 * math.pi * torch.arange(200, dtype=F64) / 200
    x = torch.cat([r * torch.stack([angle.cos(), angle.sin()], 1) for r in (0.6, 1.4)])
    labels = (torch.arange(400) < 200).to(F64)
    result = gnvpro.train(network(width=8, seed=seed), x, labels, loss="logistic", **AUTO)
    assert result.history[-1].accuracy == pytest.approx(1.0)


@pytest.mark.parametrize("loss", ["least_squares", "logistic", "multinomial"])
@pytest.mark.parametrize("inputs", [2, 5])
def test_a_sine_is_learnt_although_strong_penalties_see_a_line_in_it(inputs: int, loss: str) -> None:
    x = 2 * torch.rand(300, inputs, dtype=F64, generator=torch.Generator().manual_seed(0)) - 1
    x = x / x.std(0)
    y = torch.sin(3.5 * x[:, 0])
    targets = {"least_squares": y[:, None], "logistic": (y > 0).to(F64), "multinomial": (y > 0).long()}[loss]
    model = network(inputs, width=16, outputs=2 if loss == "multinomial" else 1)
    result = gnvpro.train(model, x, targets, loss=loss, solver="dense", **AUTO)
    last = result.history[-1]
    if loss == "least_squares":
        assert last.loss < 0.02 * float(y.var())
    else:
        assert last.accuracy > 0.97


def test_a_line_with_much_noise_is_returned_to_soon() -> None:
    x = torch.randn(200, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    y = x[:, :1] + 1.5 * torch.randn(200, 1, dtype=F64, generator=torch.Generator().manual_seed(1))
    result = gnvpro.train(network(4, width=16), x, y, loss="least_squares", **AUTO)
    with patch("gnvpro.training.penalty_search.MAX_RESTARTS", 0):
        without = gnvpro.train(network(4, width=16), x, y, loss="least_squares", **AUTO)
    judged = [value for value in result.history.column("evidence") if value is not None]
    assert min(judged) < without.chosen.log_evidence - 20  # weaker penalties were tried
    assert result.chosen.log_evidence == pytest.approx(without.chosen.log_evidence, abs=1e-6)
    assert len(result.history) < len(without.history) + 20


def test_no_round_is_kept_that_the_evidence_does_not_confirm() -> None:
    x, y = wave(120, 1.0)
    result = gnvpro.train(network(width=30), x, y, loss="least_squares", **AUTO)
    assert result.chosen is not None
    judged = [value for value in result.history.column("evidence") if value is not None]
    assert min(judged[judged.index(max(judged)) :]) < max(judged)  # it did fall
    assert result.chosen.effective_parameters < 30
    assert result.chosen.log_evidence == pytest.approx(max(judged), abs=1e-6)
    last = result.history[-1]
    assert (last.theta_penalty, last.head_penalty) == (result.chosen.theta_penalty, result.chosen.head_penalty)


@pytest.mark.parametrize("inputs", [4, 60])
def test_a_search_for_classes_begins_where_no_units_sum_varies_by_more_than_one(inputs: int) -> None:
    x = torch.randn(90, inputs, dtype=F64, generator=torch.Generator().manual_seed(0))
    problem = gnvpro.Problem(network(inputs), x, (x[:, 0] > 0).to(F64), loss="logistic", **AUTO)
    assert inputs / (90 * problem.theta_penalty.alpha) <= 1 + 1e-12


@pytest.mark.parametrize(("loss", "least"), [("logistic", 1e-3 / 100), ("least_squares", 2e-6)])
def test_of_losses_without_noise_no_head_grows_without_bounds(loss: str, least: float) -> None:
    """Classes separated without error leave no curvature, and the evidence prefers ever weaker penalties."""
    x, y = wave(100, 0.0)
    problem = gnvpro.Problem(network(), x, y if loss == "least_squares" else (y[:, 0] > 0).long(), loss=loss, **AUTO)
    search = PenaltySearch.of(problem)
    assert search is not None
    weak = judged(problem.with_penalties(2e-5, 2e-5), problem.theta(), problem.W(), None)
    following = search._next(replace(weak, targets=(1e-12, 2e-4)))
    assert following.theta == pytest.approx(least)
    assert following.head == pytest.approx(2e-4)
    given = replace(search, searched=Searched(theta=True, head=False))
    assert given._next(replace(weak, penalties=Penalties(2e-5, 1e-9), targets=(1e-12, 1.0))).head == 1e-9


def test_the_history_tells_when_the_objective_changed() -> None:
    result = gnvpro.train(network(), *wave(200, 0.1), loss="least_squares", **AUTO)
    changes = [record for record in result.history if record.note == "penalties changed"]
    assert len(changes) > 3
    assert all(record.evidence is not None and record.noise is not None for record in changes)
    assert result.history.column("work") == sorted(result.history.column("work"))
    within = [(a.loss, b.loss) for a, b in zip(result.history[:-1], result.history[1:], strict=True) if b.note is None]
    assert all(after <= before * (1 + 1e-12) for before, after in within)


def test_a_number_stays_as_given() -> None:
    result = gnvpro.train(
        network(), *wave(200, 0.1), loss="least_squares", theta_penalty=1e-3, head_penalty="auto", work=300
    )
    assert set(result.history.column("theta_penalty")) == {1e-3}
    assert len(set(result.history.column("head_penalty"))) > 3


def test_an_operator_may_be_searched_for_as_well() -> None:
    torch.manual_seed(0)
    x, y = wave(150, 0.1)
    model = nn.Sequential(NeuralODE(2, 4, depth=2, dtype=F64), nn.Linear(4, 1, dtype=F64))
    penalty = Tikhonov("auto", time_differences)
    result = gnvpro.train(model, x, y, loss="least_squares", theta_penalty=penalty, work=200)
    assert result.chosen is not None
    assert result.chosen.theta_penalty != result.history[0].theta_penalty


@pytest.mark.parametrize("work", [0, 3, 40, 200])
@pytest.mark.parametrize("solver", ["dense", "krylov", "hybrid"])
def test_the_budget_holds(work: int, solver: str) -> None:
    result = gnvpro.train(network(), *wave(60, 0.1), loss="least_squares", solver=solver, work=work, **AUTO)
    assert result.work <= max(work, 2)


def test_weights_count_as_repeated_samples() -> None:
    x, y = wave(60, 0.2)
    weights = torch.ones(60, dtype=F64)
    weights[:20] = 2.0
    many = (torch.cat([x, x[:20]]), torch.cat([y, y[:20]]))
    weighted = gnvpro.train(
        network(), x, y, loss="least_squares", sample_weight=weights, solver="dense", work=60, **AUTO
    )
    repeated = gnvpro.train(network(), *many, loss="least_squares", solver="dense", work=60, **AUTO)
    assert weighted.chosen is not None
    assert repeated.chosen is not None
    assert weighted.chosen.log_evidence == pytest.approx(repeated.chosen.log_evidence, rel=1e-6)
    assert weighted.chosen.theta_penalty == pytest.approx(repeated.chosen.theta_penalty, rel=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        gnvpro.methods.TorchOptimizer(Adam),
        gnvpro.methods.AdamVPro(),
        gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(10)),
    ],
    ids=lambda m: m.name,
)
def test_methods_that_see_batches_refuse(method: gnvpro.extend.Method) -> None:
    with pytest.raises(ValueError, match='theta_penalty="auto" needs a method that trains on the whole set'):
        gnvpro.train(network(), *wave(30, 0.1), loss="least_squares", method=method, **AUTO)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match='head_penalty must be a number, or "auto"'):
        gnvpro.train(network(), *wave(30, 0.1), loss="least_squares", head_penalty="loo")


class Stop(Exception):
    pass


RUNS = [("dense", 0.1, 4), ("dense", 0.1, 20), ("dense", 0.1, 45), ("hybrid", 0.1, 4), ("hybrid", 0.1, 20)]


@pytest.mark.parametrize(
    ("solver", "noise", "at"), [*RUNS, ("hybrid", 0.1, 45), ("dense", 2.0, 20), ("dense", 2.0, 37)]
)
def test_resumed_to_the_same_bits(tmp_path: Path, solver: str, noise: float, at: int) -> None:
    settings = {"loss": "least_squares", "solver": solver, "work": 200, **AUTO}
    x, y = wave(80, noise)  # with this noise the search begins again with weaker penalties
    whole = network()
    straight = gnvpro.train(whole, x, y, **settings)

    def stop(record: Record) -> None:
        if record.iteration == at:
            raise Stop

    path = tmp_path / "run.checkpoint"
    with pytest.raises(Stop):
        gnvpro.train(network(), x, y, checkpoint=path, listeners=stop, **settings)
    again = network(seed=5)
    resumed = gnvpro.train(again, x, y, checkpoint=path, resume=True, **settings)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    assert resumed.chosen == straight.chosen
    assert resumed.history.column("loss") == straight.history.column("loss")
    assert resumed.history.column("evidence") == straight.history.column("evidence")
