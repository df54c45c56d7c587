"""The direct current resistivity set: depth, radius and angle of a buried ellipsoid -> 882 potential differences.

Inputs are uniform on [0, 1] x [0.25, 3] x [0, pi]. Targets are the differences to the next node in x1, then in x2, on
21 x 21 surface points. The solver is in resistivity.py. The set is made on first use and kept in the data directory.
Split: 8000 / 1000 / 1000 (or 80%, 10%, 10%) after a seeded shuffle; then the mean of the training targets is removed
from all three, since it is mostly the dipole.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray

from . import Split, split
from . import resistivity as problem
from .simulation import SimulatedSet

Array = NDArray[np.float64]

SAMPLES, MESH = 10_000, 48
SHARES = (8, 1, 1)
N_TARGETS = 2 * problem.POINTS**2


def load(
    samples: int = SAMPLES,
    mesh: int = MESH,
    *,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    draw_seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
) -> Split:
    """The set on mesh x mesh x mesh/2 cells, mean removed; made once and kept in the data directory.

    Args:
        samples: number of samples in all three sets.
        mesh: number of cells along an edge of the ground.
        seed: seed of the order before the split.
        data_dir: the data directory (see `gnvpro.data`).
        draw_seed: seed of the simulated inputs.
        workers: processes that simulate. Default: one per core.
        progress: whether to show the progress of a simulation.

    Returns:
        The sets, with inputs (samples, 3) and targets (samples, 882).

    Raises:
        ValueError: there are too few samples to fill all three sets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     small = load(10, 24, data_dir=folder, workers=1, progress=False)
    >>> small.train[1].shape, bool(small.train[1].mean(0).abs().max() < 1e-12)
    (torch.Size([8, 882]), True)
    """
    if samples < sum(SHARES):
        raise ValueError(f"samples must be at least {sum(SHARES)} to fill all three sets, got {samples}")
    _, inputs, targets = simulated(
        samples, mesh, draw_seed=draw_seed, data_dir=data_dir, workers=workers, progress=progress
    )
    raw = split(torch.from_numpy(inputs), torch.from_numpy(targets), SHARES, seed)
    mean = raw.train[1].mean(dim=0)
    train, validation, test = ((y, c - mean) for y, c in (raw.train, raw.validation, raw.test))
    return Split(train, validation, test)


def draw(samples: int, seed: int) -> Array:
    """Depth, radius and angle (samples, 3); a smaller set is the start of a larger one."""
    low, high = np.array([0.0, 0.25, 0.0]), np.array([1.0, 3.0, np.pi])
    return low + (high - low) * np.random.default_rng(seed).random((samples, 3))


SET = SimulatedSet("dcr", 1, N_TARGETS, 1, problem.cells_of, draw, problem.simulate)
simulated = SET.simulated
