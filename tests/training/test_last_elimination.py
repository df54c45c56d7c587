"""However a run on batches ends, the head in the model is the best one for all training samples at the theta that is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import gnvpro
from gnvpro.head.eliminator import HeadFit, WarmStart
from gnvpro.head.newton import Newton
from gnvpro.methods import readings
from gnvpro.policy import BatchPolicy, MemoryPolicy, Policy, SolverPolicy
from gnvpro.problem.misfit import Misfit
from gnvpro.training import run as training_run
from stochastic_cases import network, samples

LAST = "head eliminated over the whole training set"
SMALL = Policy(
    solver=SolverPolicy(cheap_first=0.0), batches=BatchPolicy(begin_from=300), memory=MemoryPolicy(looked_at=120)
)
BATCHES = {
    "adam-vpro": gnvpro.methods.AdamVPro(),
    "relay": gnvpro.methods.GNvpro(solver=gnvpro.solvers.Auto()),
    "gnvpro in batches": gnvpro.methods.GNvpro(solver="dense", batches=gnvpro.methods.Batches(150, iterations=2)),
}
LOSSES = ("least_squares", "multinomial")
each = pytest.mark.parametrize("name", BATCHES)
of_each_loss = pytest.mark.parametrize("loss", LOSSES)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings see a part of the samples; few are many."""
    monkeypatch.setattr(readings, "MEMORY", 1)


def trained(name: str, loss: str, model: torch.nn.Module | None = None, **settings: Any) -> gnvpro.Result:
    x, y = samples(400, loss)
    settings = {"method": BATCHES[name], "policy": SMALL, **settings}
    return gnvpro.train(network() if model is None else model, x, y, loss=loss, **settings)


def validation(loss: str) -> tuple[Tensor, Tensor]:
    x, y = samples(500, loss)
    return x[400:], y[400:]


def assert_eliminated(model: torch.nn.Module, loss: str) -> float:
    """Compare with an independent solve, and its objective."""
    problem = gnvpro.Problem(model, *samples(400, loss), loss=loss)
    point = problem.reduced.at(problem.theta())
    torch.testing.assert_close(problem.W(), point.W, rtol=1e-6, atol=1e-8)
    return point.value


@each
@of_each_loss
@pytest.mark.parametrize("how", ["iterations", "patience", "work", "nothing to do", "keep"])
def test_however_it_ends_the_head_is_of_all_samples(name: str, loss: str, how: str) -> None:
    settings: dict[str, Any] = {
        "iterations": {"iterations": 5},
        "patience": {"patience": 1, "validation": validation(loss), "work": 60},
        "work": {"work": 24},
        "nothing to do": {"iterations": 0},
        "keep": {"keep": "best", "validation": validation(loss), "iterations": 6},
    }[how]
    result = trained(name, loss, **settings)
    last = result.history[-1]
    assert last.note == LAST
    assert [record.note for record in result.history[:-1]] == [None] * (len(result.history) - 1)
    assert last.loss == pytest.approx(assert_eliminated(result.model, loss), rel=1e-7)
    if "iterations" in settings:
        assert len(result.history) == settings["iterations"] + 2  # the start and the last elimination
        assert result.status is gnvpro.Status.ITERATIONS_SPENT
    if how == "patience":
        assert result.status is gnvpro.Status.NO_BETTER
    if how == "work":
        assert result.status is gnvpro.Status.WORK_SPENT
        assert result.work <= 24
        assert last.work - result.history[-2].work == (1 if name == "gnvpro in batches" else 0)  # a reading
    if how == "keep":
        x, y = validation(loss)
        kept = gnvpro.Problem(result.model, x, y, loss=loss)
        outputs = result.model(x).detach()
        assert last.validation_loss == pytest.approx(kept.misfit.value(outputs), rel=1e-9)


@of_each_loss
def test_the_best_of_the_batches_is_kept_when_other_steps_have_followed(loss: str) -> None:
    """By a metric that falls from record to record: the first model is the best."""
    policy = replace(SMALL, batches=BatchPolicy(begin_from=300, steps=100, least_passes=10.0))
    count = iter(range(1000))
    metrics = {"later": lambda outputs, targets: float(next(count))}
    result = trained("relay", loss, metrics=metrics, keep="later", work=70, policy=policy)
    assert result.history[-2].solver not in (None, "adam-vpro")
    start = gnvpro.Problem(network(), *samples(400, loss), loss=loss)
    problem = gnvpro.Problem(result.model, *samples(400, loss), loss=loss)
    assert torch.equal(problem.theta(), start.theta())
    assert result.history[-1].note == LAST
    assert_eliminated(result.model, loss)


@each
@of_each_loss
@pytest.mark.parametrize("keep", ["last", "best"])
def test_interrupted_too(name: str, loss: str, keep: str, tmp_path: Path) -> None:
    """The model is eliminated, and the checkpoint continues as if it had not been."""
    settings: dict[str, Any] = {"validation": validation(loss), "keep": keep, "work": 40, "iterations": 7}
    whole = trained(name, loss, **settings)

    def interrupt(record: gnvpro.extend.Record) -> None:
        if record.iteration == 4:
            raise KeyboardInterrupt

    model, path = network(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        trained(name, loss, model, **settings, checkpoint=path, listeners=interrupt)
    assert_eliminated(model, loss)
    resumed = trained(name, loss, **settings, checkpoint=path, resume=True)
    assert_same(resumed, whole)


def assert_same(one: gnvpro.Result, other: gnvpro.Result) -> None:
    records = [
        [{k: v for k, v in r.to_dict().items() if not k.endswith("seconds")} for r in result.history]
        for result in (one, other)
    ]
    assert records[0] == records[1]
    assert one.status is other.status
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q)


@each
@of_each_loss
@pytest.mark.parametrize("keep", ["last", "best"])
def test_more_iterations_go_on_from_before_the_last_elimination(
    name: str, loss: str, keep: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"validation": validation(loss), "keep": keep, "work": 60}
    whole = trained(name, loss, **settings, iterations=9)
    path = tmp_path / "run"
    short = trained(name, loss, **settings, iterations=4, checkpoint=path)
    assert short.history[-1].note == LAST
    again = trained(name, loss, **settings, iterations=4, checkpoint=path, resume=True)
    assert_same(again, short)
    assert_same(trained(name, loss, **settings, iterations=9, checkpoint=path, resume=True), whole)


def test_an_error_on_the_way_is_told_and_the_head_eliminated_all_the_same() -> None:
    def fail(record: gnvpro.extend.Record) -> None:
        if record.iteration == 3:
            raise RuntimeError("a listener's own")

    model = network()
    with pytest.raises(RuntimeError, match="a listener's own"):
        trained("adam-vpro", "multinomial", model, work=40, listeners=fail)
    assert_eliminated(model, "multinomial")


@dataclass(frozen=True)
class Slow(Newton):
    """A fake clock: ten seconds for all samples, and a proportional share for a part."""

    spent: ClassVar[list[float]] = [0.0]

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        self.spent[0] += 10 * len(Z) / 400
        return super().fit(Z, misfit, head_penalty, start)


@pytest.mark.parametrize("solver", [None, gnvpro.solvers.Auto()])
def test_the_seconds_of_the_last_elimination_are_put_aside(
    solver: gnvpro.solvers.Auto | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pass takes a second, and eliminating the head over all samples ten."""
    monkeypatch.setattr(training_run.Run, "_seconds", lambda self: self.meter.work + Slow.spent[0])
    Slow.spent[0] = 0.0
    method = (
        gnvpro.methods.AdamVPro(eliminator=Slow())
        if solver is None
        else gnvpro.methods.GNvpro(eliminator=Slow(), solver=solver)
    )
    x, y = samples(400, "multinomial")
    settings: dict[str, Any] = {"loss": "multinomial", "method": method, "seconds": 60.0, "policy": SMALL}
    result = gnvpro.train(network(), x, y, **settings, checkpoint=tmp_path / "run")
    assert result.status is gnvpro.Status.SECONDS_SPENT
    assert result.history[-1].note == LAST
    assert 57 < result.history[-1].seconds <= 62  # within one epoch
    assert_eliminated(result.model, "multinomial")


def test_no_more_than_half_of_the_seconds_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run.Run, "_seconds", lambda self: self.meter.work + Slow.spent[0])
    Slow.spent[0] = 0.0
    x, y = samples(400, "multinomial")
    method = gnvpro.methods.AdamVPro(eliminator=Slow())
    result = gnvpro.train(network(), x, y, loss="multinomial", method=method, seconds=13.0)
    assert len(result.history) >= 3
    assert math.isfinite(result.history[-1].loss)
    assert_eliminated(result.model, "multinomial")
