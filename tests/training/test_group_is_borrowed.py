"""A process group belongs to torch.distributed: nothing of ours keeps it beyond `destroy_process_group`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401  # once there is a group, its functions would hold it as a default
from torch.nn.parallel import DistributedDataParallel

import gnvpro
from gnvpro.processes import ProcessError, Processes
from stochastic_cases import network, samples


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    gc.disable()
    yield
    gc.enable()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("solver", ["krylov", "dense"])
@pytest.mark.usefixtures("group")
def test_the_group_is_gone_when_it_is_destroyed_also_before_garbage_is_collected(solver: str) -> None:
    x, y = samples(100, "least_squares")
    world = weakref.ref(dist.group.WORLD)
    result = gnvpro.train(
        network(), x, y, loss="least_squares", solver=solver, iterations=2, process_group=dist.group.WORLD
    )
    problem = gnvpro.Problem(network(), x, y, loss="least_squares", process_group=dist.group.WORLD)
    assert len(result.history) == 3
    assert problem.processes.size == 1
    assert world() is not None
    dist.destroy_process_group()
    assert world() is None


@pytest.mark.usefixtures("group")
def test_a_reduced_loss_of_a_parallel_model_keeps_no_group() -> None:
    world = weakref.ref(dist.group.WORLD)

    def take_a_step() -> None:
        criterion = gnvpro.ReducedLoss(DistributedDataParallel(network()), loss="least_squares", head_penalty=1e-4)
        criterion(*samples(100, "least_squares")).backward()

    take_a_step()
    gc.collect()  # a parallel model refers to itself
    dist.destroy_process_group()
    assert world() is None


@pytest.mark.usefixtures("group")
def test_what_is_said_afterwards_is_an_error_that_says_so() -> None:
    processes = Processes(dist.group.WORLD)
    assert processes.largest(2.0) == 2.0
    dist.destroy_process_group()
    with pytest.raises(ProcessError, match="the process group is gone"):
        processes.largest(2.0)
