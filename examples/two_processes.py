"""Two processes train one surrogate: each simulates its own part of the samples, and both end with the same model.

    torchrun --nproc-per-node 2 two_processes.py        or        python two_processes.py, which starts torchrun itself

The simulator is the response of a damped spring at 20 times, as a function of its stiffness, damping and first velocity.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gnvpro

F64 = torch.float64


def simulated(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw random parameters and compute the positions of the spring at 20 times."""
    draw = torch.Generator().manual_seed(seed)
    parameters = torch.rand(samples, 3, generator=draw, dtype=F64)
    stiffness, damping, velocity = (1 + 8 * parameters[:, :1], 0.1 + parameters[:, 1:2], parameters[:, 2:])
    times = torch.linspace(0, 3, 20, dtype=F64)
    frequency = (stiffness - damping**2 / 4).sqrt()
    return parameters, torch.exp(-damping * times / 2) * (
        torch.cos(frequency * times) + velocity / frequency * torch.sin(frequency * times)
    )


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inputs, targets = simulated(300 if rank == 0 else 200, seed=rank)  # parts may differ in size
    torch.manual_seed(rank)  # training starts from the model of rank 0
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 20)).to(F64)
    result = gnvpro.train(
        model,
        inputs,
        targets,
        loss="least_squares",
        iterations=60,
        validation=simulated(50, seed=10 + rank),
        listeners=lambda record: print(f"{record.iteration:3d}  {record.loss:.3e}  {record.validation_loss:.3e}"),
        process_group=dist.group.WORLD,
    )
    assert result.history[-1].validation_loss < 1e-2 * result.history[0].validation_loss

    # every process holds the same bits
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    others = [torch.empty_like(theta) for _ in range(dist.get_world_size())]
    dist.all_gather(others, theta)
    assert all(torch.equal(theta, other) for other in others)
    if rank == 0:
        print(f"{dist.get_world_size()} processes, one model: {result.status}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by torchrun
        train()
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        subprocess.run(torchrun, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
