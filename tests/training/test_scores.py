"""Metrics of one's own: recorded, shown, kept by and waited for."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from checks import F64
from gnvpro.training.history import FIELDS

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(60, 2, dtype=F64, generator=GENERATOR)
Y = torch.sin(3 * X.sum(1)) + 0.1 * torch.randn(60, dtype=F64, generator=GENERATOR)
HELD_OUT = (X[:20] + 0.1, -Y[:20])  # training makes this worse sooner or later


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    assert outputs.shape == targets.shape  # (n,) and (n, 1) would be broadcast to (n, n)
    return (outputs - targets).abs().mean()


def fit(model: nn.Module | None = None, **settings: Any) -> gnvpro.Result:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    defaults = {"loss": "least_squares", "solver": "krylov", "work": 200, "metrics": {"mae": mae}}
    return gnvpro.train(model, X, Y, **{**defaults, **settings})


def test_a_metric_is_recorded_on_the_validation_set_and_without_one_on_the_training_set() -> None:
    for validation in (None, (X[:20], Y[:20])):
        result = fit(validation=validation)
        inputs, targets = validation or (X, Y)
        expected = (result.model(inputs)[:, 0] - targets).abs().mean().item()
        assert result.history[-1].metrics == {"mae": pytest.approx(expected, rel=1e-9)}
        assert all(record.metrics is not None for record in result.history)


def test_weights_that_leave_samples_out_do_not_shift_the_targets() -> None:
    weights = torch.ones(60)
    weights[::3] = 0
    result = fit(sample_weight=weights)
    expected = (result.model(X)[:, 0] - Y).abs().mean().item()
    assert result.history[-1].metrics["mae"] == pytest.approx(expected, rel=1e-9)


def test_labels_reach_a_metric_as_they_were_given() -> None:
    labels = (X.sum(1) * 1.5).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    hits = gnvpro.Metric(lambda outputs, targets: (outputs.argmax(1) == targets).double().mean(), higher_is_better=True)
    result = gnvpro.train(
        model,
        X,
        labels,
        loss="multinomial",
        validation=(X[:30], labels[:30]),
        work=60,
        metrics={"hits": hits},
        keep="hits",
    )
    for record in result.history:
        assert record.metrics["hits"] == pytest.approx(record.validation_accuracy, abs=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["less is better", "more is better"])
def test_keep_returns_the_model_that_is_best_by_the_metric(sign: float) -> None:
    metric = gnvpro.Metric(lambda outputs, targets: sign * mae(outputs, targets), higher_is_better=sign < 0)
    result = fit(metrics={"own": metric}, keep="own", validation=HELD_OUT)
    best = min(sign * record.metrics["own"] for record in result.history)
    assert mae(result.model(HELD_OUT[0])[:, 0], HELD_OUT[1]).item() == pytest.approx(best, rel=1e-9)
    assert best < sign * result.history[-1].metrics["own"]


def test_patience_goes_by_the_metric_that_keep_names() -> None:
    result = fit(keep="mae", patience=4, validation=HELD_OUT, work=2000)
    values = [record.metrics["mae"] for record in result.history]
    assert result.status is gnvpro.Status.NO_BETTER
    assert values.index(min(values)) == len(values) - 5


def test_a_resumed_run_has_the_same_metrics_and_keeps_the_same_model(tmp_path: Path) -> None:
    settings = {"keep": "mae", "patience": 6, "validation": HELD_OUT, "work": 400}

    def interrupt(record: gnvpro.extend.Record) -> None:
        if record.iteration == 4:
            raise KeyboardInterrupt

    whole = fit(**settings)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "run", listeners=interrupt, **settings)
    resumed = fit(checkpoint=tmp_path / "run", resume=True, **settings)
    assert resumed.history.column("metrics") == whole.history.column("metrics")
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match="metrics was"):
        fit(
            checkpoint=tmp_path / "run",
            resume=True,
            **settings | {"metrics": {"mae": lambda o, t: (o - t).abs().max()}},
        )


def test_metrics_are_shown_and_have_columns_of_their_own(tmp_path: Path) -> None:
    shown = io.StringIO()
    watchers = [gnvpro.listeners.Progress(shown), gnvpro.listeners.CSVFile(tmp_path / "live.csv")]
    history = fit(listeners=watchers).history
    assert f"mae {history[-1].metrics['mae']:.4g}" in shown.getvalue().splitlines()[-2]
    history.to_csv(tmp_path / "after.csv")
    assert (tmp_path / "live.csv").read_text() == (tmp_path / "after.csv").read_text()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "after.csv").read_text())))
    assert list(rows[0]) == [*FIELDS, "mae"]
    assert [float(row["mae"]) for row in rows] == [record.metrics["mae"] for record in history]
    pytest.importorskip("pandas")
    assert history.to_dataframe()["mae"].tolist() == [record.metrics["mae"] for record in history]


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no dictionary": ({"metrics": mae}, TypeError, r"^metrics must be a dictionary"),
    "no function": ({"metrics": {"mae": 3}}, TypeError, r"^Metric: function must be a function"),
    "a name that is taken": ({"metrics": {"loss": mae}}, ValueError, r"^metrics: 'loss' cannot be the name"),
    "a name that keep has": ({"metrics": {"best": mae}}, ValueError, r"^metrics: 'best' cannot be the name"),
    "no number": ({"metrics": {"m": lambda o, t: o}}, TypeError, r"^metrics: 'm' must return one number, got Tensor"),
    "keep by none of them": ({"keep": "mea"}, ValueError, r"^keep='mea' is not known; did you mean 'mae'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_metric_that_cannot_be_used_is_refused_by_name(what: str) -> None:
    settings, error, message = BAD[what]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=message):
        fit(model, **settings)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
