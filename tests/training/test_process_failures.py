"""An error in one process is reported by all: before any work if possible, else with the rank's name."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gnvpro
from gnvpro.networks import MLP
from gnvpro.processes import Processes
from gnvpro.training import checkpoint as checkpoints
from group import Keep, run_in_group

pytestmark = pytest.mark.slow
F64 = torch.float64
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(80, 3, generator=DRAW, dtype=F64)
Y = torch.sin(X.sum(1, keepdim=True)) + 0.1 * torch.randn(80, 1, generator=DRAW, dtype=F64)


def model(width: int = 6, dtype: torch.dtype = F64) -> nn.Module:
    torch.manual_seed(1)
    return MLP(3, [width], n_outputs=1, dtype=dtype)


def share(rank: int, size: int) -> tuple[Tensor, Tensor]:
    return X[rank::size], Y[rank::size]


def said(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# -- three processes go through all of it, the last one being killed at the end


def everything(rank: int, keep: Keep) -> None:
    disagree(rank, keep)
    pair = dist.new_group([0, 1])
    if rank < 2:
        go_on(rank, keep, pair)
    with tempfile.TemporaryDirectory() as folder:
        fail(rank, keep, "raise", dist.new_group([0, 1, 2]), f"{folder}/run.ckpt")
        fail(rank, keep, "kill", dist.group.WORLD, f"{folder}/run.ckpt")


@cache
def told() -> list[dict[str, Any]]:
    made = run_in_group(everything, size=3, timeout=30)
    for each in made:
        assert "error" not in each, each["error"]
    return made


# -- before any work: the last one is different


def disagree(rank: int, keep: Keep) -> None:
    group, odd = dist.group.WORLD, rank == 2
    x, y = share(rank, 3)

    def call(name: str, net: nn.Module | None = None, **changed: Any) -> None:
        settings = {"inputs": x, "targets": y, "loss": "least_squares", "iterations": 1, **changed}
        keep(name, said(lambda: gnvpro.train(net or model(), **settings, process_group=group)))

    call("method", method="lbfgs-vpro" if odd else "gnvpro")
    call("loss", loss="logistic" if odd else "least_squares")
    call("penalty", theta_penalty=1e-3 if odd else 1e-2)
    call("budget", iterations=3 if odd else 2)
    call("shape", model(7 if odd else 6))
    call("dtype", model(6, torch.float32 if odd else F64))
    call("inputs", inputs=x[:, :2] if odd else x)
    call("validation", validation=None if odd else (x, y))
    call("an argument", loss="leest_squares" if odd else "least_squares")
    call("a sample", inputs=x.clone().fill_(torch.nan) if odd else x)
    call("nobody has samples", inputs=x[:0], targets=y[:0])
    call("sharded", fully_shard(model(), mesh=init_device_mesh("cpu", (3,))))
    keep("no group", said(lambda: gnvpro.train(model(), x, y, loss="least_squares", process_group="gloo")))
    call("fine", nn.parallel.DistributedDataParallel(model()))
    call("rounding", theta_penalty=gnvpro.Tikhonov(1e-3, Rounding(1e-15 * odd)))
    A, B = rows()
    part = [slice(0, 11), slice(11, 11), slice(11, 30)][rank]
    Q, R = torch.linalg.qr(A[part])
    keep("triangle", Processes(group).triangle(R, Q.T @ B[part]))


class Rounding:
    """The identity, but for an error that it does not own up to."""

    def __init__(self, error: float) -> None:
        self.error = error

    def fingerprint(self) -> str:
        return "the identity"

    def __call__(self, net: nn.Module, parameters: Any) -> gnvpro.extend.LinearOperator:
        n, scale = sum(torch.Size(shape).numel() for _, shape in parameters), 1 + self.error
        return gnvpro.extend.LinearOperator((n,), (n,), lambda x: scale * x, lambda y: scale * y)


def rows() -> list[Tensor]:
    return [torch.randn(30, k, generator=torch.Generator().manual_seed(k), dtype=F64) for k in (4, 2)]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("method", "ValueError: rank 2 of the process group differs from rank 0 in method"),
        ("loss", "ValueError: rank 2 of the process group differs from rank 0 in loss"),
        ("penalty", "ValueError: rank 2 of the process group differs from rank 0 in theta_penalty: 0.001 there"),
        ("budget", "ValueError: rank 2 of the process group differs from rank 0 in iterations"),
        ("shape", "ValueError: rank 2 of the process group differs from rank 0 in model parameter"),
        ("dtype", "ValueError: rank 2 of the process group differs from rank 0 in model parameter"),
        ("inputs", "ValueError: rank 2 of the process group differs from rank 0 in shape of a sample"),
        ("validation", "ValueError: rank 2 of the process group differs from rank 0 in validation"),
        ("nobody has samples", "ValueError: inputs is empty on every process"),
        ("sharded", "ValueError: model is sharded"),
        ("no group", "TypeError: process_group must be a group of torch.distributed"),
        ("rounding", "ProcessError: rank 2 of the process group no longer holds the same theta, head and history"),
        ("fine", "nothing"),
    ],
)
def test_every_process_is_told(case: str, text: str) -> None:
    for rank, made in enumerate(told()):
        assert made[case].startswith(text), (rank, made[case])


@pytest.mark.parametrize(("case", "text"), [("an argument", "loss='leest_squares'"), ("a sample", "inputs holds NaN")])
def test_what_one_process_cannot_do_stops_all(case: str, text: str) -> None:
    first, second, third = (made[case] for made in told())
    assert third.startswith(f"ValueError: {text}")
    assert first == second
    assert first.startswith(f"ValueError: rank 2 of the process group cannot go on: {text}")


def test_factors_of_three_processes_are_the_factor_of_all_rows() -> None:
    A, B = rows()
    for made in told():
        R, projected = made["triangle"]
        torch.testing.assert_close(R.T @ R, A.T @ A, rtol=1e-13, atol=1e-13)
        solution = torch.linalg.lstsq(A, B).solution
        torch.testing.assert_close(torch.linalg.solve(R, projected), solution, rtol=1e-12, atol=1e-13)


# -- while it runs: the second one fails


def fail(rank: int, keep: Keep, how: str, group: Any, file: str) -> None:
    net, calls, seen = model(), [0], []

    def watch(module: nn.Module, args: Any, output: Any) -> None:
        calls[0] += 1
        if rank == 1 and calls[0] == 60:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("out of luck")

    net.register_forward_hook(watch)
    settings: dict[str, Any] = {"loss": "least_squares", "solver": "krylov", "work": 1e6, "checkpoint": file}
    begun = time.monotonic()
    listeners = lambda record: seen.append(record.loss)  # noqa: E731
    x, y = share(rank, 3)
    error = said(lambda: gnvpro.train(net, x, y, **settings, process_group=group, listeners=listeners))
    if rank == 1:
        dist.destroy_process_group(group)  # the end of a process does this once the group is unreferenced
        del group
        gc.collect()
    saved = len(checkpoints.load(Path(file))["history"].splitlines()) if rank == 0 else None
    keep(how, {"error": error, "seconds": time.monotonic() - begun, "records": len(seen), "saved": saved})


def test_the_others_name_the_process_that_raises() -> None:
    first, second, third = (made["raise"] for made in told())
    assert second["error"] == "RuntimeError: out of luck"
    for other in (first, third):
        assert other["error"] == "ProcessError: rank 1 of the process group failed: RuntimeError: out of luck"


def test_the_others_name_the_process_that_is_killed_within_the_timeout() -> None:
    first, second, third = told()
    assert "kill" not in second
    for other in (first["kill"], third["kill"]):
        assert other["error"].startswith("ProcessError: rank 1")
        assert "does not answer" in other["error"]
        assert other["seconds"] < 30


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_the_checkpoint_of_a_run_that_failed_is_whole(how: str) -> None:
    first, _, third = told()
    assert first[how]["saved"] == first[how]["records"] > 3
    assert third[how]["records"] == 0, "listeners are the first process's"


# -- resume: one process begins, two continue with every second sample each, and one ends it


def go_on(rank: int, keep: Keep, group: Any) -> None:
    settings: dict[str, Any] = {"loss": "least_squares", "solver": "krylov"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.ckpt"
        if rank == 0:
            gnvpro.train(model(), X, Y, **settings, iterations=4, checkpoint=file)
        dist.barrier(group)
        net = model()
        x, y = share(rank, 2)
        settings |= {"checkpoint": file, "resume": True}
        two = gnvpro.train(net, x, y, **settings, iterations=8, process_group=group)
        keep("two", (two.history.column("loss"), [p.detach() for p in net.parameters()]))
        if rank == 0:
            one = gnvpro.train(model(), X, Y, **settings, iterations=11)
            keep("one", one.history.column("loss"))
            keep("other data", said(lambda: gnvpro.train(model(), X, Y.flip(0), **settings, iterations=12)))


def test_a_run_goes_on_with_another_number_of_processes() -> None:
    first, second, _ = told()
    losses, net = first["two"]
    assert losses == second["two"][0]
    assert all(map(torch.equal, net, second["two"][1]))
    assert first["one"][:9] == losses
    whole = gnvpro.train(model(), X, Y, loss="least_squares", solver="krylov", iterations=11).history.column("loss")
    assert len(whole) == 12
    assert first["one"] == pytest.approx(whole, rel=1e-7)
    assert "is of another run: targets of the inputs" in first["other data"]
