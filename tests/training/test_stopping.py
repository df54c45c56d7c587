"""When a run ends: by the clock, by itself, and what it says of a validation loss that has turned up."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam

import gnvpro
from checks import F64
from gnvpro import Status
from gnvpro.extend import Record
from gnvpro.policy import Policy, StoppingPolicy
from gnvpro.training import convergence
from gnvpro.training.convergence import has_converged, has_settled
from gnvpro.training.scores import Rise

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(80, 2, dtype=F64, generator=GENERATOR)
NOISE = 0.3 * torch.randn(80, 1, dtype=F64, generator=GENERATOR)
Y = torch.sin(3 * X.sum(1, keepdim=True))
WRONG = (X[:10] + 0.2, -Y[:10])  # a validation set that nothing is learnt for


def fit(targets: torch.Tensor = Y, **settings: Any) -> gnvpro.Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return gnvpro.train(model, X, targets, **{"loss": "least_squares", **settings})


def record(k: int, loss: float, *, work: float | None = None, level: int = 0, norm: float = 1.0) -> Record:
    spent = 10.0 * k if work is None else work
    return Record(k, loss, loss, norm, None, None, None, True, work=spent, seconds=0.0, inner_seconds=0.0, level=level)


# -- by the clock


def asleep(seconds: float) -> Any:
    """A listener that makes every iteration take so long."""
    return lambda record: time.sleep(seconds) if record.iteration else None


def test_seconds_end_a_run_within_one_step() -> None:
    result = fit(Y + NOISE, seconds=0.5, listeners=asleep(0.1))
    assert result.status is Status.SECONDS_SPENT
    assert result.history[-2].seconds < 0.5  # so the last step began in time
    assert result.history[-1].seconds < 0.5 + 1.0
    assert len(result.history) >= 3


def test_no_seconds_at_all_eliminate_the_head_and_nothing_else() -> None:
    result = fit(seconds=0)
    assert result.status is Status.SECONDS_SPENT
    assert len(result.history) == 1


def test_every_level_has_its_share_of_the_seconds() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(gnvpro.networks.NeuralODE(2, 4, depth=2, final_time=1.0), nn.Linear(4, 1)).double()
    result = gnvpro.train(
        model,
        X,
        Y + NOISE,
        loss="least_squares",
        method=gnvpro.methods.GNvpro(levels=2),
        seconds=0.8,
        listeners=asleep(0.08),
    )
    first, second = ([r for r in result.history if r.level == level] for level in (0, 1))
    assert first[-2].seconds < 0.4 <= second[0].seconds
    assert result.status is Status.SECONDS_SPENT
    assert result.model[0].depth == 4


@pytest.mark.parametrize(
    "method",
    [gnvpro.methods.GNvpro(solver="krylov"), gnvpro.methods.TorchOptimizer(Adam), gnvpro.methods.LBFGSvpro()],
    ids=str,
)
def test_a_run_whose_seconds_are_spent_goes_on_with_more_and_counts_those_before(
    method: gnvpro.extend.Method, tmp_path: Path
) -> None:
    run = {"method": method, "checkpoint": tmp_path / "run", "resume": True, "listeners": asleep(0.05)}
    short = fit(Y + NOISE, seconds=0.25, **run)
    assert short.status is Status.SECONDS_SPENT
    again = fit(Y + NOISE, seconds=0.25, **run)
    assert again.history.column("seconds") == short.history.column("seconds")  # nothing more was done
    longer = fit(Y + NOISE, seconds=0.6, **run)
    assert longer.history.column("loss")[: len(short.history)] == short.history.column("loss")
    assert len(longer.history) > len(short.history)
    assert short.history[-1].seconds < longer.history[-1].seconds < 1.6
    whole = fit(Y + NOISE, iterations=len(longer.history) - 1, method=method)
    assert whole.history.column("loss") == longer.history.column("loss")


@pytest.mark.parametrize("seconds", [-1.0, math.nan, "all"])
def test_seconds_must_be_a_number_that_is_not_negative(seconds: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^seconds must be"):
        fit(seconds=seconds)


# -- by itself


@pytest.mark.parametrize("solver", ["dense", "krylov", "hybrid"])
def test_with_no_limit_at_all_a_run_on_noisy_data_ends_when_more_work_would_gain_little(solver: str) -> None:
    result = fit(Y + NOISE, solver=solver, theta_penalty=1e-3, head_penalty=1e-3)
    assert result.status in (Status.SETTLED, Status.CONVERGED, Status.STEP_TOO_SMALL)
    much_more = {"work": 4 * result.work + 400, "policy": Policy(stopping=StoppingPolicy(fall=0.0, gradient=0.0))}
    longer = fit(Y + NOISE, solver=solver, theta_penalty=1e-3, head_penalty=1e-3, **much_more)
    assert result.history[-1].loss < 1.05 * longer.history[-1].loss


def test_a_limit_is_a_cap_and_does_not_keep_a_run_from_ending_earlier() -> None:
    free = fit(Y + NOISE, theta_penalty=1e-2, head_penalty=1e-2)
    capped = fit(Y + NOISE, theta_penalty=1e-2, head_penalty=1e-2, work=10 * free.work)
    assert capped.status is free.status
    assert capped.work < 10 * free.work


def test_methods_on_batches_have_a_budget_where_none_is_given() -> None:
    for method in (
        gnvpro.methods.TorchOptimizer(Adam, batch_size=40),
        gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(40), solver="krylov"),
    ):
        result = fit(Y + NOISE, method=method)
        assert result.status is Status.WORK_SPENT
        assert 590 < result.work <= 600
    assert fit(method="adam", iterations=3).status is Status.ITERATIONS_SPENT


def test_a_small_gradient_is_convergence() -> None:
    rule = StoppingPolicy(gradient=1e-3)
    assert not has_converged(rule, [record(0, 1.0, norm=10.0), record(1, 0.5, norm=0.0101)])
    assert has_converged(rule, [record(0, 1.0, norm=10.0), record(1, 0.5, norm=0.0099)])
    # scales differ between levels
    refined = [record(0, 1.0, norm=10.0), record(1, 0.5, norm=1e-3, level=1)]
    assert not has_converged(rule, refined, convergence.first_record(refined, 0, 1))


def test_the_window_is_a_share_of_the_work_and_has_a_least_length() -> None:
    rule = StoppingPolicy(window=0.5, least_work=100.0, least_iterations=5, fall=0.01)
    falling = [record(k, 0.9**k) for k in range(40)]
    assert not any(has_settled(rule, falling[:k]) for k in range(1, 41))
    flat = [*falling, *(record(40 + k, falling[-1].loss) for k in range(60))]
    ended = next(k for k in range(1, len(flat) + 1) if has_settled(rule, flat[:k]))
    window = 0.5 * flat[ended - 1].work
    assert flat[ended - 1].work - 390 == pytest.approx(window, abs=10)
    early = [record(k, 1.0) for k in range(30)]
    assert (
        next(k for k in range(1, 31) if has_settled(rule, early[:k])) == 11
    )  # 100 work units, ten records after the first
    wide = [record(k, 1.0, work=1000.0 * k) for k in range(30)]
    assert next(k for k in range(1, 31) if has_settled(rule, wide[:k])) == 6  # five iterations


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_without_a_cap_the_fall_that_is_asked_for_grows_with_the_work_it_took(exponent: float) -> None:
    rule = StoppingPolicy(window=0.25, least_work=100.0, least_iterations=5, fall=0.01, pays=0.05)
    power = [record(k, (10.0 * k) ** -exponent, work=10.0 * k) for k in range(1, 1000)]
    ended = next(k for k in range(1, 1000) if has_settled(rule, power[:k], capped=False))
    # (3/4)^-a - 1 = pays / 100 * W / 4
    assert power[ended - 1].work == pytest.approx(400 / 0.05 * (0.75**-exponent - 1), rel=0.03)
    assert not has_settled(rule, power)


def test_the_rule_looks_at_one_level_only_and_at_any_sign_of_the_objective() -> None:
    rule = StoppingPolicy(window=0.5, least_work=50.0, least_iterations=3, fall=0.01)
    history = [record(k, 1.0) for k in range(5)] + [record(k, 1.0, level=1) for k in range(5, 9)]
    assert has_settled(rule, history)
    assert not has_settled(rule, history, convergence.first_record(history, 0, 0))
    assert not has_settled(rule, [record(k, -1.0 - k) for k in range(20)])
    assert has_settled(rule, [record(k, -1.0) for k in range(20)])


# -- a validation loss that has turned up


def test_a_validation_loss_that_has_turned_up_is_warned_of_with_its_remedies() -> None:
    with pytest.warns(UserWarning, match=r'validation loss was .* at iteration \d+ .*keep="best".*patience.*penalty'):
        fit(Y + NOISE, validation=WRONG, work=200)


def test_a_run_without_any_cap_ends_when_its_validation_loss_has_turned_up_for_good() -> None:
    with pytest.warns(UserWarning, match="validation loss was"):
        result = fit(Y + NOISE, validation=WRONG)
    assert result.status is Status.TURNED_UP
    losses = result.history.column("validation_loss")
    best = result.history[min(range(len(losses)), key=lambda k: losses[k])]
    last = result.history[-1]
    assert last.work - best.work >= max(100, last.work / 2)
    assert last.iteration - best.iteration >= 20
    assert (
        result.history[-2].work - best.work < 110 or last.iteration - best.iteration == 20
    )  # not much later than that


@pytest.mark.parametrize("caps", [{"work": 250}, {"iterations": 100}, {"seconds": 60.0, "work": 250}])
def test_a_run_that_was_given_a_cap_keeps_to_it(caps: dict[str, Any]) -> None:
    without, result = (fit(Y + NOISE, validation=WRONG, keep="best", **given) for given in ({}, caps))
    assert without.status is Status.TURNED_UP
    assert result.status in (Status.WORK_SPENT, Status.ITERATIONS_SPENT)
    assert result.history[-1].work > without.history[-1].work + 50


def test_patience_takes_the_place_of_the_rule_for_a_validation_loss_that_has_turned_up() -> None:
    assert fit(Y + NOISE, validation=WRONG, keep="best", patience=10).status is Status.NO_BETTER
    assert fit(Y + NOISE, validation=WRONG, keep="best", patience=60).status is Status.NO_BETTER


def test_the_remedy_names_the_model_that_would_be_kept() -> None:
    """Judged by the accuracy if there is one; the loss was lowest elsewhere."""
    losses, accuracies = [1.0, 0.5, 0.8, 2.0], [0.5, 0.6, 0.7, 0.6]
    history = [
        replace(record(k, 1.0 / (k + 1)), validation_loss=loss, validation_accuracy=accuracy)
        for k, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]
    rise = Rise.of(history)
    assert rise is not None
    assert (rise.least.iteration, rise.kept.iteration) == (1, 2)
    better = [*history[:-1], replace(history[-1], validation_accuracy=0.9)]
    assert Rise.of(better) is None


@pytest.mark.parametrize("settings", [{"keep": "best"}, {"validation": (X, Y)}])
def test_nothing_is_said_where_the_best_is_kept_or_nothing_turned_up(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(work=100, **{"validation": WRONG, **settings})
