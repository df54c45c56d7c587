"""`auto` on many samples: random batches first, Gauss-Newton steps afterwards."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gnvpro
from clocks import run_wildly
from gnvpro.methods import pace, readings
from gnvpro.methods.protocol import Budget
from gnvpro.methods.relay import part_for_batches
from gnvpro.network.work import WorkMeter
from gnvpro.policy import BatchPolicy, MemoryPolicy, Policy, SamplePolicy, SolverPolicy
from gnvpro.processes import ALONE
from stochastic_cases import network, samples

# What is few and short enough for a test.
BATCHES = BatchPolicy(begin_from=300, steps=160, least_passes=10.0)
SMALL = Policy(solver=SolverPolicy(cheap_first=0.0), batches=BATCHES)
SEEING = replace(SMALL, memory=MemoryPolicy(looked_at=100))
READ_AGAIN = replace(SMALL, samples=SamplePolicy(held_memory=0.0))


def trained(loss: str = "least_squares", n: int = 400, **settings: Any) -> gnvpro.Result:
    x, y = samples(n, loss)
    return gnvpro.train(network(), x, y, loss=loss, **{"policy": SMALL, **settings})


def kinds(result: gnvpro.Result) -> list[str]:
    steps = [record for record in result.history[1:] if record.note is None]  # without the last elimination
    return [kind for kind, _ in itertools.groupby(record.solver for record in steps)]


def test_batches_first_and_gauss_newton_steps_afterwards() -> None:
    result = trained(iterations=60)
    assert kinds(result)[0] == "adam-vpro"
    assert set(kinds(result)[1:]) <= {"hybrid", "dense"}
    assert len(kinds(result)) > 1
    after = next(k for k, record in enumerate(result.history) if record.solver in ("hybrid", "dense"))
    assert result.history[after - 1].work <= 1 + 2 * 160 * 25 / 400 + 2
    assert result.history[after].loss <= (1 + 1e-12) * result.history[after - 1].loss
    assert result.history[-1].loss < 0.8 * result.history[after - 1].loss < 0.4 * result.history[0].loss
    losses = result.history.column("loss")
    assert losses[after:] == sorted(losses[after:], reverse=True)


def test_the_head_in_the_model_is_eliminated_over_all_samples() -> None:
    x, y = samples(400, "least_squares")
    result = trained(iterations=6)
    assert kinds(result) == ["adam-vpro"]
    with torch.no_grad():
        Z = torch.cat([result.model[:-1](x), torch.ones(400, 1, dtype=torch.float64)], 1)  # type: ignore[index]
        residual = result.model(x) - y
    assert float((Z.T @ residual / 400).norm()) < 1e-7


def test_cross_entropy_begins_on_batches_too_and_ends_with_the_head_of_all_samples() -> None:
    x, y = samples(400, "multinomial")
    result = trained("multinomial", work=20)
    assert kinds(result) == ["adam-vpro"]
    assert result.history[-1].loss < 0.6 * result.history[0].loss
    problem = gnvpro.Problem(result.model, x, y, loss="multinomial")
    eliminated = problem.reduced.at(problem.theta()).value
    assert eliminated == pytest.approx(result.history[-1].loss, rel=1e-7)
    for record in result.history[1:-1]:  # with the head that follows the batches
        assert record.loss > eliminated


@pytest.mark.parametrize(
    ("limit", "share", "exact", "part"),
    [
        (math.inf, 0.05, True, 16.0),  # 160 steps, each two passes over a twentieth of the samples
        (math.inf, 0.05, False, 64.0),  # four times as many if nothing follows
        (math.inf, 0.01, True, 10.0),  # no fewer
        (1e9, 0.05, True, 16.0),  # a larger limit changes nothing
        (12.0, 0.05, True, 12.0),  # a smaller one cuts them short
    ],
)
def test_the_part_of_a_budget_for_batches(limit: float, share: float, exact: bool, part: float) -> None:
    meter = WorkMeter(1000, sample_passes=2000)
    given = Budget(meter, meter.work + limit, seconds=50.0)
    made = part_for_batches(given, BATCHES, share, exact)
    assert (made.limit, made.seconds) == (pytest.approx(2 + part), 50.0)


@pytest.mark.parametrize("work", [6, 9, 23, 60])
def test_stays_within_the_work_and_gains_something(work: float) -> None:
    result = trained(work=work)
    assert result.work <= work
    assert result.history[-1].loss < result.history[0].loss
    assert result.status is gnvpro.Status.WORK_SPENT


def test_seconds_are_honoured_and_the_schedule_ends_with_them() -> None:
    result = trained(n=4000, seconds=0.4)  # 400 samples settle within these seconds
    assert result.status is gnvpro.Status.SECONDS_SPENT
    assert 0.3 < result.history[-1].seconds < 0.9  # the record before the seconds were up, or the one that took them
    assert kinds(result)[0] == "adam-vpro"


def test_with_nothing_given_it_ends_by_itself() -> None:
    result = trained()
    assert result.status in (gnvpro.Status.SETTLED, gnvpro.Status.CONVERGED, gnvpro.Status.STEP_TOO_SMALL)
    assert kinds(result)[-1] != "adam-vpro"


# -- runs that begin on all samples


class InChunks:
    """An array that reads a whole chunk for each sample, like arrays of h5py and zarr."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values, self.shape = values.numpy(), values.shape

    def __getitem__(self, where: Any) -> Any:
        return self._values[where]


def test_small_sets_slow_files_and_batches_of_ones_own_begin_on_all_samples() -> None:
    x, y = samples(400, "least_squares")
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    slow, in_order = (
        gnvpro.train(network(), *given, loss="least_squares", policy=READ_AGAIN, iterations=2)
        for given in ((InChunks(x), InChunks(y)), (loader,))
    )
    for result in (
        trained(n=299, iterations=2),
        trained(policy=None, iterations=2),
        trained(policy=replace(SMALL, batches=BatchPolicy(begin_from=None)), iterations=2),
        trained(policy=replace(SMALL, solver=SolverPolicy(cheap_first=math.inf)), iterations=2),
        trained(method=gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(350)), work=20),
        trained(head_penalty="auto", iterations=2),
        slow,
        in_order,
    ):
        assert "adam-vpro" not in kinds(result)


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_memory_maps_and_datasets_begin_on_batches_as_tensors_do(
    loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "MEMORY", 1)
    x, y = samples(400, loss)
    files = []
    for name, values in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", values.numpy())
        files.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    held, *others = (
        gnvpro.train(network(), *given, loss=loss, policy=SEEING, work=30)
        for given in ((x, y), files, (TensorDataset(x, y),))
    )
    assert kinds(held)[0] == "adam-vpro"
    for result in others:
        assert kinds(result) == kinds(held)
        assert result.history.column("loss") == pytest.approx(held.history.column("loss"), rel=1e-10)


def test_readings_see_all_samples_where_a_part_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "MEMORY", 1)
    x, y = samples(400, "least_squares")  # 100 of them take 3200 bytes
    for memory, seen in ((1.3e4, 100), (1.2e4, 400)):
        problem = gnvpro.Problem(network(), x, y, loss="least_squares", memory=memory, policy=SEEING)
        assert readings.Readings(problem, 0).seen.n_samples == seen


@pytest.mark.slow
def test_levels_begin_on_batches_once() -> None:
    torch.manual_seed(0)
    x, y = samples(400, "least_squares")
    model = torch.nn.Sequential(gnvpro.networks.NeuralODE(4, 6, depth=2), torch.nn.Linear(6, 3)).double()
    method, policy = gnvpro.methods.GNvpro(levels=2), SMALL
    history = gnvpro.train(model, x, y, loss="least_squares", method=method, work=[20, 20], policy=policy).history
    assert {record.solver for record in history if record.level == 0} == {None, "adam-vpro"}
    assert "adam-vpro" not in {record.solver for record in history if record.level == 1}


def test_weights_and_validation() -> None:
    x, y = samples(500, "least_squares")
    weights = torch.rand(500, dtype=torch.float64) * (torch.arange(500) % 5 > 0)
    kept = weights > 0
    losses = []
    for rows in (torch.ones(500, dtype=torch.bool), kept):
        result = gnvpro.train(
            network(),
            x[rows],
            y[rows],
            loss="least_squares",
            sample_weight=weights[rows],
            validation=(x[:50], y[:50]),
            policy=SMALL,
            iterations=12,
        )
        losses.append(result.history.column("validation_loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0][-1] < losses[0][0]


# -- the same way again


def test_a_clock_that_runs_wildly_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(iterations=40)
    run_wildly(monkeypatch)
    assert trained(iterations=40).history.column("loss") == first.history.column("loss")
    assert len(kinds(first)) > 1


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("budget", [{"work": 70}, {"iterations": 24}])
def test_it_resumes_to_the_last_bit(budget: dict[str, float], tmp_path: Path) -> None:
    """After the first steps, in the trials, among the epochs, and when Gauss-Newton steps have followed."""

    def run(path: Path, at: int | None, resume: bool) -> gnvpro.Result:
        def listen(record: gnvpro.extend.Record) -> None:
            if record.iteration == at:
                raise Stop

        checkpoint = gnvpro.Checkpoint(path, every=1)
        return trained(checkpoint=checkpoint, resume=resume, listeners=listen, **budget)

    whole = run(tmp_path / "whole", None, False)
    on_batches = whole.history.column("solver").count("adam-vpro")
    assert 4 < on_batches < len(whole.history) - 3
    for stop in (1, 3, on_batches - 1, on_batches + 2):
        with pytest.raises(Stop):
            run(tmp_path / str(stop), stop, False)
        resumed = run(tmp_path / str(stop), None, True)
        for column in ("loss", "work", "solver", "radius"):
            assert whole.history.column(column) == resumed.history.column(column)
        for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(p, q)


def test_what_the_clock_decided_is_taken_up_again(tmp_path: Path) -> None:
    """The part of the seconds and the pace of the batches are in the checkpoint."""
    path = tmp_path / "run"
    trained(seconds=0.6, checkpoint=path)
    result = trained(seconds=1.2, checkpoint=path, resume=True)
    assert result.status in (gnvpro.Status.SECONDS_SPENT, gnvpro.Status.SETTLED)  # on a fast machine
    assert result.history[-1].seconds < 1.9
    assert kinds(result)[-1] != "adam-vpro"  # the rate had fallen to zero
    losses = [record.loss for record in result.history if record.solver != "adam-vpro"]
    assert losses[-1] < losses[0]


def test_the_pace_follows_the_clock_that_was_looked_at() -> None:
    meter = WorkMeter(10)
    now = {"s": 0.0}
    budget = Budget(meter, math.inf, seconds=10.0, clock=lambda: now["s"])
    running = pace.Pace.begun(budget)
    assert running.now(budget) == 0
    meter.count(20)  # two passes in one second
    now["s"] = 1.0
    running = running.looked_at(budget, ALONE)
    assert running.now(budget) == pytest.approx(0.1)
    assert running.total == pytest.approx(20)
    now["s"] = 5.0  # the clock alone changes nothing
    meter.count(90)
    assert running.now(budget) == pytest.approx(0.55)
    assert running.within(budget, ALONE) is running
    larger = Budget(meter, math.inf, seconds=50.0, clock=budget.clock)
    assert running.within(larger, ALONE).now(larger) == pytest.approx(0.1)
