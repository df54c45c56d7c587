"""A run that has spent its budget continues with a larger one, as if it had had that from the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gnvpro
from checks import F64
from gnvpro.methods.stochastic import NESTEROV

METHODS = {
    "auto": gnvpro.methods.GNvpro(),
    "krylov": gnvpro.methods.GNvpro(solver="krylov"),
    "hybrid": gnvpro.methods.GNvpro(solver="hybrid"),
    "dense": gnvpro.methods.GNvpro(solver="dense"),
    "gauss-newton": gnvpro.methods.GaussNewton(),
    "lbfgs-vpro": gnvpro.methods.LBFGSvpro(),
    "adam-vpro": gnvpro.methods.AdamVPro(),
    "adam": gnvpro.methods.TorchOptimizer(torch.optim.Adam),
    "nesterov": gnvpro.methods.TorchOptimizer(NESTEROV),
}


def fit(method: gnvpro.extend.Method, checkpoint: Path | None, **budget: float) -> gnvpro.Result:
    torch.manual_seed(0)
    x = torch.rand(80, 2, dtype=F64)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    y = torch.sin(3 * x.sum(1, keepdim=True))
    settings = {} if checkpoint is None else {"checkpoint": checkpoint, "resume": True}
    return gnvpro.train(model, x, y, loss="least_squares", method=method, **settings, **budget)


@pytest.mark.parametrize("name", METHODS)
def test_more_iterations_give_the_run_that_had_them_from_the_start(name: str, tmp_path: Path) -> None:
    short = fit(METHODS[name], tmp_path / "run", iterations=4)
    assert short.status is gnvpro.Status.ITERATIONS_SPENT
    longer, whole = fit(METHODS[name], tmp_path / "run", iterations=9), fit(METHODS[name], None, iterations=9)
    assert longer.history.column("loss") == whole.history.column("loss")
    assert longer.history.column("work") == whole.history.column("work")
    for ours, theirs in zip(longer.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", METHODS)
def test_more_work_goes_on_where_the_run_was(name: str, tmp_path: Path) -> None:
    short = fit(METHODS[name], tmp_path / "run", work=60)
    longer = fit(METHODS[name], tmp_path / "run", work=150)
    assert longer.history.column("loss")[: len(short.history)] == short.history.column("loss")
    assert 60 < longer.work <= 150


@pytest.mark.parametrize("name", ["auto", "adam"])
def test_the_same_budget_does_nothing_more(name: str, tmp_path: Path) -> None:
    first, again = (fit(METHODS[name], tmp_path / "run", work=60) for _ in range(2))
    assert again.history.column("seconds") == first.history.column("seconds")
    for ours, theirs in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_batches_go_on_and_keep_to_the_larger_budget(tmp_path: Path) -> None:
    method = gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(30))
    short = fit(method, tmp_path / "run", work=40)
    longer = fit(method, tmp_path / "run", work=80)
    assert len(longer.history) > len(short.history)
    assert 40 < longer.work <= 80
    assert longer.history[-1].note == "head eliminated over the whole training set"
