"""Inject faults of the machine and of the data into runs: a clear end, a whole checkpoint, and no hanging.

Processes that are killed, stopped or raise are in `test_process_failures`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import gnvpro
from gnvpro.training import checkpoint as checkpoints

N = 48
X = torch.rand(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.sin(3 * X.sum(1, keepdim=True))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def streamed(method: type = gnvpro.methods.GNvpro, **settings: Any) -> Any:
    """A method that holds no samples in memory, so that every pass reads them."""
    return method(memory=1e3, **settings)


def losses(result: gnvpro.Result) -> list[float]:
    return result.history.column("loss")


# -- loaders


class Failing(Dataset[tuple[Tensor, Tensor]]):
    """Samples that cannot be read from some reading on."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, f"sample {k} cannot be read")
        return X[k], Y[k]


@pytest.mark.parametrize("method", [streamed(solver="krylov"), streamed(gnvpro.methods.AdamVPro, batch_size=12)])
@pytest.mark.parametrize("passes", [3.5, 9.2])
def test_a_loader_that_raises_ends_the_run_with_its_own_error_and_a_checkpoint(
    passes: float, method: Any, tmp_path: Path
) -> None:
    file, net = tmp_path / "run.ckpt", model()
    loader = DataLoader(Failing(int(passes * N)), batch_size=12)
    settings: dict[str, Any] = {
        "loss": "least_squares",
        "method": method,
        "checkpoint": gnvpro.Checkpoint(file, every=1),
    }
    with pytest.raises(OSError, match=r"sample \d+ cannot be read"):
        gnvpro.train(net, loader, **settings, work=20)
    assert all(torch.isfinite(p).all() for p in net.parameters())
    if file.exists():
        assert checkpoints.load(file)["history"]
    sound = DataLoader(Failing(10**9), batch_size=12)
    whole = losses(gnvpro.train(model(), sound, **settings | {"checkpoint": None}, work=20))
    again = losses(gnvpro.train(model(), sound, **settings, work=20, resume=True))
    assert again == whole


class Fewer(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream of samples with fewer of them from some pass on."""

    def __init__(self, after: int, count: int) -> None:
        self.after, self.count, self.passes = after, count, 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return iter([(X[k], Y[k]) for k in range(N if self.passes <= self.after else self.count)])


@pytest.mark.parametrize("after", [4, 6])
@pytest.mark.parametrize("count", [0, 20, 47])
def test_a_loader_that_returns_fewer_samples_in_a_later_pass_is_named(count: int, after: int) -> None:
    loader = DataLoader(Fewer(after, count), batch_size=12)
    with pytest.raises(ValueError, match=r"inputs (is empty|differ: 48 samples, then)"):
        gnvpro.train(model(), loader, loss="least_squares", method=streamed(solver="krylov"), work=30)


@pytest.mark.parametrize("method", [gnvpro.methods.GNvpro(), streamed(solver="krylov")])
def test_a_stream_with_fewer_samples_than_it_says_is_warned_of(method: Any) -> None:
    loader = DataLoader(Fewer(0, 20), batch_size=12)
    with pytest.warns(UserWarning, match="inputs: the Dataset says that it has 48 samples, but a pass gives 20"):
        gnvpro.train(model(), loader, loss="least_squares", method=method, work=10)


# -- the disk


@pytest.mark.parametrize("write", range(2))
@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_disk_that_fills_at_any_write_leaves_the_last_checkpoint(
    call: str, write: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = tmp_path / "run.ckpt", [0]
    original = {"fsync": os.fsync, "replace": os.replace, "open": open}[call]

    def full(*given: Any, **settings: Any) -> Any:
        writes = call != "open" or (len(given) > 1 and "x" in given[1])
        seen[0] += writes
        if writes and seen[0] > write:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*given, **settings)

    if call == "open":
        monkeypatch.setattr("builtins.open", full)
    else:
        monkeypatch.setattr(os, call, full)
    settings: dict[str, Any] = {"loss": "least_squares", "checkpoint": gnvpro.Checkpoint(file, every=1)}
    with pytest.raises(OSError, match=r"checkpoint .*run\.ckpt.* cannot be written: No space left"):
        gnvpro.train(model(), X, Y, **settings, work=60)
    monkeypatch.undo()
    assert [each.name for each in tmp_path.iterdir()] == (["run.ckpt"] if write else [])
    whole = losses(gnvpro.train(model(), X, Y, loss="least_squares", work=60))
    assert losses(gnvpro.train(model(), X, Y, **settings, work=60, resume=True)) == whole


# -- the clock


@pytest.mark.parametrize("jump", [-1e9, 1e9])
@pytest.mark.parametrize("at", [3, 30])
def test_a_clock_that_jumps_changes_no_model_and_no_end(jump: float, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gnvpro.train(model(), X, Y, loss="least_squares", work=60)
    calls, clock = [0], time.perf_counter

    def jumping() -> float:
        calls[0] += 1
        return clock() + (jump if calls[0] > at else 0.0)

    monkeypatch.setattr(time, "perf_counter", jumping)
    monkeypatch.setattr(time, "time", jumping)
    again = gnvpro.train(model(), X, Y, loss="least_squares", work=60)
    assert losses(again) == losses(whole)
    assert again.status is whole.status


def test_a_clock_that_jumps_back_still_ends_a_run_of_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clock = [0], time.perf_counter

    def jumping() -> float:
        calls[0] += 1
        return clock() - (3600.0 if calls[0] > 20 else 0.0)

    monkeypatch.setattr(time, "perf_counter", jumping)
    begun = time.monotonic()
    result = gnvpro.train(model(), X, Y, loss="least_squares", seconds=0.2)
    assert time.monotonic() - begun < 60
    assert result.status in (gnvpro.Status.SECONDS_SPENT, gnvpro.Status.SETTLED, gnvpro.Status.CONVERGED)
