"""The default tries batches beside steps on all samples, and samples held out decide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.methods import trial
from gnvpro.policy import BatchPolicy, Policy, SolverPolicy

NO_EXACT_STEPS = SolverPolicy(exact_below=0.0)
LARGE = Policy(solver=NO_EXACT_STEPS)  # networks count as large


def samples(n: int = 500, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Friedman's function, with noise of half of its deviation."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 10, generator=g)
    y = torch.sin(3 * x[:, :1] * x[:, 1:2]) + (x[:, 2:3] - 0.5).square() + x[:, 3:4] - 0.5 * x[:, 4:5]
    return 2 * x - 1, y + 0.2 * torch.randn(n, 1, generator=g)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    return nn.Sequential(*layers)


def train(**settings) -> gnvpro.Result:
    return gnvpro.train(network(), *samples(), loss="least_squares", **{"work": 80, "policy": LARGE, **settings})


@pytest.mark.parametrize(("lower", "solver"), [("batches", {"adam-vpro"}), ("all", {"hybrid", "dense"})])
def test_the_side_with_the_lower_loss_on_samples_held_out_goes_on(
    lower: str, solver: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([1.0, 2.0] if lower == "batches" else [2.0, 1.0])
    seen = []

    def loss_of(problem, model) -> float:
        seen.append(problem.n_samples)
        return next(losses)

    monkeypatch.setattr(trial, "loss_of", loss_of)
    history = train().history
    assert seen == [100, 100]  # a fifth of the samples
    assert "after batches" in (history[1].note or "")
    assert {record.solver for record in list(history)[2:] if record.solver} <= solver


def test_a_trial_costs_half_of_the_shortest_training_on_batches_for_each_side() -> None:
    history = train().history
    assert history[1].work <= 2 * 20 + 2 + 1  # and the evaluation where training goes on
    assert history[0].work == 1


def test_noise_is_not_learnt_by_heart_as_by_steps_on_all_samples() -> None:
    x, y = samples(2000, seed=1)

    def error(**settings) -> float:
        model = train(work=200, **settings).model
        with torch.no_grad():
            return float((model(x) - y).square().mean())

    assert error() < 0.9 * error(policy=Policy(solver=NO_EXACT_STEPS, batches=BatchPolicy(begin_from=None)))


def test_small_networks_and_few_samples_need_no_trial() -> None:
    small = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = samples()
    assert "tried" not in " ".join(gnvpro.inspect(small, x, y, loss="least_squares", policy=LARGE).plan)
    assert "tried" not in " ".join(train(work=0, policy=None).plan)  # exact steps follow
    assert "tried" in " ".join(train(work=0).plan)
    few = gnvpro.train(network(), x[:100], y[:100], loss="least_squares", work=0, policy=LARGE)
    assert "tried" not in " ".join(few.plan)


def test_it_resumes_to_the_last_bit(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record) -> None:
        if record.iteration == 2:
            raise Stop

    whole = train()
    checkpoint = gnvpro.Checkpoint(tmp_path / "run", every=1)
    with pytest.raises(Stop):
        train(checkpoint=checkpoint, listeners=stop)
    resumed = train(checkpoint=checkpoint, resume=True)
    assert whole.history.column("loss") == resumed.history.column("loss")


def test_seconds_that_do_not_last_for_a_trial_go_to_batches_for_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SHARE", 0.0)
    x, y = samples()
    classes = (y > 0.5).float()
    history = gnvpro.train(network(), x, classes, loss="logistic", seconds=60, iterations=2, policy=LARGE).history
    assert "do not last" in (history[1].note or "")
    assert history[2].solver == "adam-vpro"
