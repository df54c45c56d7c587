"""Each process reads its own files, for samples on several disks or too large for one machine.

    torchrun --nproc-per-node 2 files_per_process.py    or    python files_per_process.py, which starts torchrun itself

The script writes four files of different lengths. Rank r reads every second file, starting at r, in chunks from
disk. One process then trains on all files and finds the same model.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import gnvpro

LENGTHS = (500, 300, 400, 100)
FOLDER = Path("runs/files_per_process")


def write_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for i, length in enumerate(LENGTHS):
        x = draw.normal(size=(length, 4))
        np.save(folder / f"inputs_{i}.npy", x)
        np.save(folder / f"labels_{i}.npy", (x[:, 0] * x[:, 1] > 0).astype("int64") + (x[:, 2] > 1))


class Files(torch.utils.data.Dataset):
    """Several files as one dataset; none is held in memory."""

    def __init__(self, folder: Path, which: list[int]) -> None:
        self.parts = [
            [np.load(folder / f"{kind}_{i}.npy", mmap_mode="r") for kind in ("inputs", "labels")] for i in which
        ]
        self.ends = np.cumsum([len(inputs) for inputs, _ in self.parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        part = int(np.searchsorted(self.ends, i, side="right"))
        inputs, labels = self.parts[part]
        row = i - (self.ends[part] - len(inputs))
        return torch.tensor(inputs[row]), int(labels[row])


def trained(which: list[int], group: dist.ProcessGroup | None) -> gnvpro.Result:
    loader = torch.utils.data.DataLoader(Files(FOLDER, which), batch_size=128)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3)).double()
    return gnvpro.train(model, loader, loss="multinomial", solver="krylov", iterations=6, process_group=group)


if __name__ == "__main__":
    if "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        subprocess.run(torchrun, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    else:
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        if rank == 0:
            write_files(FOLDER)
        dist.barrier()
        together = trained(list(range(rank, len(LENGTHS), size)), dist.group.WORLD)
        if rank == 0:
            alone = trained(list(range(len(LENGTHS))), None)
            for a, b in zip(together.history, alone.history, strict=True):
                print(f"{a.iteration}  {size} processes {a.loss:.12f}  one {b.loss:.12f}")
                assert abs(a.loss - b.loss) < 1e-8 * b.loss
        dist.barrier()
        dist.destroy_process_group()
