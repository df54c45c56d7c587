"""ADAM with the head eliminated on each batch: what it reaches, its work, its rate, checkpoints and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import gnvpro
from gnvpro.methods import epochs, readings
from gnvpro.methods.batch_steps import BatchSteps, sizes_of
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Start
from gnvpro.methods.stochastic import random_batches
from gnvpro.policy import MemoryPolicy, Policy
from gnvpro.stochastic.learning_rate import WARM_UP
from gnvpro.training.listeners import numbers
from stochastic_cases import network, samples

SEEING = Policy(memory=MemoryPolicy(looked_at=100))


def test_it_trains_within_its_work_and_tells_the_validation() -> None:
    x, y = samples(800, "least_squares")
    result = gnvpro.train(
        network(width=12),
        x[:600],
        y[:600],
        loss="least_squares",
        method="adam-vpro",
        work=60,
        validation=(x[600:], y[600:]),
    )
    history = result.history
    assert result.work <= 60
    assert history[-1].loss < 0.2 * history[0].loss
    last, first = history[-1].validation_loss, history[0].validation_loss
    assert last is not None
    assert first is not None
    assert last < 0.3 * first
    with torch.no_grad():  # the head in the model is eliminated over all samples
        Z = torch.cat([result.model[:-1](x[:600]), torch.ones(600, 1, dtype=torch.float64)], 1)  # type: ignore[index]
        residual = result.model(x[:600]) - y[:600]
    assert float((Z.T @ residual / 600).norm()) < 1e-7


def test_it_classifies() -> None:
    x, y = samples(600, "multinomial")
    result = gnvpro.train(network(), x, y, loss="multinomial", method=gnvpro.methods.AdamVPro(batch_size=60), work=60)
    assert (result.history[-1].accuracy or 0) > 0.9 > (result.history[0].accuracy or 1)


def test_an_epoch_is_two_passes_and_the_first_elimination_one() -> None:
    x, y = samples(96, "multinomial")
    work = gnvpro.train(network(), x, y, loss="multinomial", method="adam-vpro", work=9).history.column("work")
    assert work == [1, 3, 5, 7, 9, 9]  # the last elimination is not counted, as no reading is


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_the_last_epoch_is_cut_where_the_work_ends_and_the_rate_is_zero_there(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(96, loss)
    rates: list[float] = []
    step = BatchSteps.step
    monkeypatch.setattr(
        BatchSteps, "step", lambda self, batch, rate, share: (rates.append(rate), step(self, batch, rate, share))[1]
    )
    method = gnvpro.methods.AdamVPro(lr=0.1, batch_size=12)
    result = gnvpro.train(network(), x, y, loss=loss, method=method, work=8.4)
    assert result.status is gnvpro.Status.WORK_SPENT
    assert len(rates) == 3 * 8 + 5  # 7.4 passes after the first elimination, of which a batch is a quarter
    assert result.work == 8.25
    assert max(rates) > 0.03  # so soon after the first steps
    assert rates[-1] < 1e-2 * 0.1


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_one_batch_of_all_samples_with_a_free_head_steps_along_the_reduced_gradient(loss: str) -> None:
    """Without rotation, ADAM's first move has the gradient's sign, and its size is the rate times the size of the weights."""
    x, y = samples(60, loss)
    problem = gnvpro.Problem(network(), x, y, loss=loss)
    head = (
        gnvpro.heads.BatchHead(proximal=0.0)
        if loss == "least_squares"
        else gnvpro.heads.BatchHead(proximal=0.0, rtol=1e-12)
    )
    method = gnvpro.methods.AdamVPro(lr=1e-3, batch_size=60, batch_head=head, rotate=False)
    theta = problem.theta()
    budget, cache = Budget(problem.meter, 1e6), Cache(problem.meter)
    epochs = method.epochs(problem, budget, 0, cache)
    epochs.take_up(method.begin(problem, Start(theta), budget, cache))
    (batch,) = random_batches(problem, 60, 0, 0)
    for _ in range(2):  # the first one only learns the coordinates
        fit = epochs.steps.step(batch, 1e-3)
    point = problem.reduced.at(theta)
    assert fit.value + problem.theta_penalty.value(theta) == pytest.approx(point.value, rel=1e-9)
    gradient = point.gradient()
    moved, large = epochs.steps.theta - theta, gradient.abs() > 1e-6
    layers = [layer for layer in network()[:-1] if isinstance(layer, torch.nn.Linear)]
    size = torch.cat(
        [layer.weight.square().mean().sqrt().expand(layer.weight.numel() + len(layer.bias)) for layer in layers]
    )
    torch.testing.assert_close(moved[large], (-1e-3 * size.detach() * gradient.sign())[large], rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("n", "seen", "stopped"), [(300, 10_000, 5), (300, 120, 5), (900, 100, 2)]
)  # within the first epoch
@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_it_resumes_to_the_last_bit(
    loss: str, n: int, seen: int, stopped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "MEMORY", 1)
    x, y = samples(n, loss)
    policy = Policy(memory=MemoryPolicy(looked_at=seen))

    class Stop(Exception):
        pass

    def run(path: Path, stop: int | None, resume: bool) -> gnvpro.Result:
        def listen(record: gnvpro.extend.Record) -> None:
            if record.iteration == stop:
                raise Stop

        checkpoint = gnvpro.Checkpoint(path, every=1)
        settings = {"checkpoint": checkpoint, "resume": resume, "listeners": listen}
        return gnvpro.train(network(), x, y, loss=loss, method="adam-vpro", work=30, policy=policy, **settings)

    whole = run(tmp_path / "a", None, False)
    with pytest.raises(Stop):
        run(tmp_path / "b", stopped, False)
    resumed = run(tmp_path / "b", None, True)
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert whole.history.column("loss") == resumed.history.column("loss")
    assert whole.history.column("work") == resumed.history.column("work")


def test_weights_of_another_scale_are_trained_alike() -> None:
    """ReLU features are the same when one layer's weights are larger and the next one's smaller; so are all steps on them."""
    x, y = samples(400, "multinomial")
    losses = []
    for factor in (1.0, 16.0):
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 6, bias=False)
        model = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), torch.nn.Linear(6, 3)).double()
        with torch.no_grad():
            for p, scale in ((first.weight, factor), (first.bias, factor), (second.weight, 1 / factor)):
                p.mul_(scale)
        settings: dict[str, Any] = {"theta_penalty": 0.0, "head_penalty": 1e-3, "work": 20}
        method = gnvpro.methods.AdamVPro(rotate=False)
        history = gnvpro.train(model, x, y, loss="multinomial", method=method, **settings).history
        losses.append(history.column("loss"))
    assert losses[0][-1] < 0.7 * losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("small", [0.0, 0.001])
def test_a_matrix_near_zero_moves_like_one_that_torch_has_drawn(small: float) -> None:
    first = torch.full((5, 12), small)
    sizes = sizes_of({"0.weight": first, "0.bias": torch.ones(5), "1.weight": torch.full((2, 5), 0.3)})
    assert sizes == {"0.weight": pytest.approx(1 / 6), "0.bias": pytest.approx(1 / 6), "1.weight": pytest.approx(0.3)}


def test_positions_of_a_transformer_move_like_the_weights() -> None:
    sizes = sizes_of({"place": torch.full((1, 16, 8), 0.01), "weight": torch.full((2, 5), 0.3)})
    assert sizes == {"place": pytest.approx(0.3), "weight": pytest.approx(0.3)}


class Sum(torch.nn.Module):
    """Features of a recurrent layer, which are nearly collinear at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = torch.nn.GRU(1, 16, batch_first=True), torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return out


@pytest.mark.slow
def test_collinear_features_at_the_start_do_not_spoil_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that begin near the eliminated head of an untrained network keep its huge entries, and learn hardly anything."""
    generator = torch.Generator().manual_seed(0)
    a, b, p, q = (torch.rand(400, 1, generator=generator, dtype=torch.float64) for _ in range(4))
    t = torch.arange(13, dtype=torch.float64)[None] / 4
    x = torch.sin((1 + a) * t + 6 * p) + 0.5 * torch.sin((2 + 3 * b) * t + 6 * q)
    losses = []
    for at_eliminated in (False, True):
        if at_eliminated:
            monkeypatch.setattr(readings.Readings, "held", lambda self, first: first.W)
        torch.manual_seed(0)
        result = gnvpro.train(
            Sum().double(), x[:, :-1, None], x[:, -1:], loss="least_squares", method="adam-vpro", work=30
        )
        losses.append(result.history[-1].misfit)
    assert losses[0] < 0.1 * losses[1]


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_readings_on_the_way_see_a_part_and_the_last_one_all_samples(loss: str) -> None:
    x, y = samples(2000, loss)
    run: dict[str, Any] = {"loss": loss, "method": gnvpro.methods.AdamVPro(lr=0.1)}
    exact = gnvpro.train(network(), x, y, **run, work=1).history[0]
    result = gnvpro.train(network(), x, y, **run, work=20, policy=SEEING)
    first, last = result.history[0], result.history[-1]
    assert first.work == 20 * 21 / 2000  # samples for each entry of the head
    assert first.loss == pytest.approx(exact.loss, rel=0.15)
    assert first.loss != exact.loss
    problem = gnvpro.Problem(result.model, x, y, loss=loss)
    assert last.loss == pytest.approx(problem.reduced.at(problem.theta()).value, rel=1e-7)
    assert (last.accuracy is None) == (loss == "least_squares")
    assert last.loss < 0.8 * first.loss


def test_a_rate_that_is_far_too_large_is_lowered() -> None:
    x, y = samples(600, "least_squares")
    result = gnvpro.train(
        network(width=12), x, y, loss="least_squares", method=gnvpro.methods.AdamVPro(lr=20.0, batch_size=60), work=100
    )
    assert result.history[-1].loss < 0.9 * result.history[0].loss
    assert 0 < (result.history[-1].learning_rate or 0) < 20


def test_a_learning_rate_is_no_radius() -> None:
    x, y = samples(200, "least_squares")
    method = gnvpro.methods.AdamVPro(lr=0.25, batch_size=20)
    history = gnvpro.train(network(width=4), x, y, loss="least_squares", method=method, work=12).history
    steps = [record for record in history[1:] if record.note is None]
    assert {record.learning_rate for record in steps} == {0.25}
    assert set(history.column("radius")) == {None}
    assert "learning rate 2.5e-01" in numbers(steps[0])
    titles = [axes.get_title() for axes in history.plot().get_axes()]
    assert "learning rate" in titles
    assert "size of the step" not in titles


@pytest.mark.slow
def test_batches_of_one_sample_train_too() -> None:
    """At a rate that suits large batches they lead nowhere: the head fits any single sample."""
    x, y = samples(300, "least_squares")
    losses = {}
    for lr in (None, 0.15):
        method = gnvpro.methods.AdamVPro(lr=lr, batch_size=1)
        history = gnvpro.train(network(), x, y, loss="least_squares", method=method, work=16).history
        losses[lr] = history[-1].loss / history[0].loss
    assert losses[None] < 0.1
    assert losses[None] < 0.5 * losses[0.15]


def test_a_long_first_epoch_is_read_in_parts_and_every_sample_is_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(2000, "least_squares")
    monkeypatch.setattr(readings, "MEMORY", 1)
    seen: list[torch.Tensor] = []
    step = BatchSteps.step
    monkeypatch.setattr(
        BatchSteps,
        "step",
        lambda self, batch, rate, share: (seen.append(batch.inputs), step(self, batch, rate, share))[1],
    )
    method = gnvpro.methods.AdamVPro(batch_size=20)
    work = gnvpro.train(network(), x, y, loss="least_squares", method=method, work=6, policy=SEEING).history.column(
        "work"
    )
    first = 100 / 2000
    parts = [
        first + 2 * k / 100 for k in (0, 10, 20, 30, 45, 67, 100)
    ]  # of 100 batches: ten, or half as many as before
    assert work[:9] == pytest.approx([*parts, first + 3, first + 4])
    epoch = torch.cat(seen[:100])
    assert torch.equal(epoch.sort(0).values, x.sort(0).values)


def test_a_budget_of_seconds_ends_the_schedule_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the meter's: a pass is a second, however fast the machine."""
    x, y = samples(400, "least_squares")
    problem = gnvpro.Problem(network(), x, y, loss="least_squares")
    meter = problem.meter
    budget = Budget(meter, math.inf, seconds=42.0, clock=lambda: meter.work)
    method, cache = gnvpro.methods.AdamVPro(lr=1e-2), Cache(meter)
    state = method.begin(problem, Start(problem.theta()), budget, cache)
    rates: list[float] = []
    step = BatchSteps.step
    monkeypatch.setattr(
        BatchSteps, "step", lambda self, batch, rate, share: (rates.append(rate), step(self, batch, rate, share))[1]
    )
    report = None
    while not isinstance(report, gnvpro.Status):
        state, report = method.step(problem, state, budget, cache)
    assert report is gnvpro.Status.SECONDS_SPENT
    assert meter.work == 41  # a second is left for the last elimination
    assert len(rates) == 20 * 16 - epochs.TIMED  # forty passes after the first elimination
    assert rates[WARM_UP] > 0.99e-2
    assert rates[160] == pytest.approx(0.5e-2, rel=0.05)
    assert rates[-1] < 1e-4 * 1e-2


def test_settings_that_cannot_be_used_are_refused() -> None:
    for settings, message in (
        ({"lr": 0.0}, "lr must be above 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            gnvpro.methods.AdamVPro(**settings)
    with pytest.raises(TypeError, match=r"gnvpro\.heads\.BatchHead"):
        gnvpro.methods.AdamVPro(batch_head=0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rotate must be True or False"):
        gnvpro.methods.AdamVPro(rotate=1)  # type: ignore[arg-type]
    x, y = samples(40, "least_squares")
    newton = gnvpro.methods.AdamVPro(batch_head=gnvpro.heads.BatchHead(steps=3))
    with pytest.raises(ValueError, match="solved directly"):
        gnvpro.train(network(), x, y, loss="least_squares", method=newton)
    with pytest.raises(ValueError, match="makes its steps itself"):
        gnvpro.train(network(), x, y, loss="least_squares", method="adam-vpro", solver="dense")
    assert dataclasses.replace(newton, lr=1e-2).lr == 1e-2
