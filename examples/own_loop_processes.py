"""Your own training loop in two processes: DistributedDataParallel, with the head eliminated on each batch.

    torchrun --nproc-per-node 2 own_loop_processes.py   or   python own_loop_processes.py, which starts torchrun itself

Each process has half of every batch. The head is eliminated on the whole batch, so both processes hold the same
head, and the loop takes the same steps as one process with whole batches.

A gloo group that still exists when the interpreter exits may abort it. `destroy_process_group` ends the group only
when nothing refers to it. So this script imports torch.distributed.nn, which DistributedDataParallel imports later,
before it creates the group (functions of that module store the current group as a default), and collects the model,
which refers to itself.
"""

import gc
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gnvpro

torch.set_num_threads(1)


def train() -> None:
    torch.manual_seed(0)
    points = torch.rand(3000, 2) * 4 - 2
    labels = (points.square().sum(1) * 2).floor().long().clamp(max=4)  # rings
    training = TensorDataset(points[:2000], labels[:2000])
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(training)
    loader = DataLoader(training, batch_size=50, sampler=sampler)

    network = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5))
    model = DistributedDataParallel(network)
    criterion = gnvpro.ReducedLoss(model, loss="multinomial", head_penalty=1e-4)
    optimizer = torch.optim.AdamW(criterion.parameters(), lr=1e-2)
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            criterion(x, y).backward()
            optimizer.step()
    criterion.refit(loader)  # each process passes its own samples; the head is the best for the samples of all

    mine = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    assert all(torch.equal(mine, other) for other in others)
    with torch.no_grad():
        accuracy = float((network(points[2000:]).argmax(1) == labels[2000:]).float().mean())
    assert accuracy > 0.85
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, one model: {accuracy:.1%}")
    dist.barrier()


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
        train()
        gc.collect()
        dist.destroy_process_group()
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        subprocess.run(torchrun, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
