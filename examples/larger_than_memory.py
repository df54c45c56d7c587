"""Data larger than memory: a surrogate trained from files, by a loader, and with missing targets.

The file is small, so that the example is quick; a file of a hundred gigabytes needs the same code.
"""

# %%
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gnvpro

SAMPLES, INPUTS = 4000, 6


def write_files(folder: Path) -> None:
    """Write the file piece by piece, as a simulator would."""
    inputs = np.lib.format.open_memmap(folder / "inputs.npy", "w+", "float32", (SAMPLES, INPUTS))
    targets = np.lib.format.open_memmap(folder / "targets.npy", "w+", "float32", (SAMPLES, 2))
    draw = np.random.default_rng(0)
    for start in range(0, SAMPLES, 1000):
        x = draw.uniform(-1, 1, (1000, INPUTS))
        inputs[start : start + 1000] = x
        targets[start : start + 1000] = np.stack([np.sin(x.sum(1)), np.exp(-(x**2).sum(1))], 1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 12), nn.Tanh(), nn.Linear(12, 2)).double()


folder = tempfile.TemporaryDirectory()
write_files(Path(folder.name))
inputs, targets = (np.load(f"{folder.name}/{name}.npy", mmap_mode="r") for name in ("inputs", "targets"))
options = {"loss": "least_squares", "theta_penalty": 1e-6, "head_penalty": 1e-6}
options |= {"solver": gnvpro.solvers.Krylov(max_rank=5), "iterations": 4}

# %% Arrays on disk: read in chunks, never held as a whole, never copied to another dtype
from_files = gnvpro.train(network(), inputs, targets, **options)
print(from_files)

# %% The same in memory takes the same steps
in_memory = gnvpro.train(network(), np.array(inputs), np.array(targets), **options)
difference = abs(from_files.history[-1].loss / in_memory.history[-1].loss - 1)
print(f"relative difference of the objectives: {difference:.1e}")
assert difference < 1e-9
assert from_files.work == in_memory.work


# %% A loader, without `targets`; its batch size and workers do not affect the result
class Simulations(Dataset):
    """A dataset that returns one sample at a time, from any source."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array(inputs[i]), np.array(targets[i])


loaded = gnvpro.train(network(), DataLoader(Simulations(), batch_size=500), **{**options, "iterations": 1})
assert abs(loaded.history[-1].loss / in_memory.history[1].loss - 1) < 1e-9

# %% Missing targets: one weight per entry, zero for missing entries
some = np.array(targets[:2000])
some[::3, 0] = np.nan
known = np.isfinite(some).astype(float)
with_gaps = gnvpro.train(network(), np.array(inputs[:2000]), some, sample_weight=known, loss="least_squares", work=300)
assert with_gaps.history[-1].loss < 0.1 * with_gaps.history[0].loss
