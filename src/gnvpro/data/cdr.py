"""The convection-diffusion-reaction set: 55 reaction coefficients -> concentrations at 6 points and 12 times.

Each coefficient is uniform on [0, 1], then all are divided by their sum. Targets are the last twelve of fifty time
steps (t = 0.39, ..., 0.50), the six points fastest. 800 samples on 151 x 151 nodes are shipped with the package, made
by `gnvpro data cdr`; the solver is in convection_diffusion_reaction.py.
Split: 400 / 200 / 200 (or half, a quarter, a quarter) after a seeded shuffle.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from . import Split, archive, data_directory, split
from . import convection_diffusion_reaction as problem
from .simulation import SimulatedSet

Array = NDArray[np.float64]

SAMPLES, MESH = 800, 151
SHARES = (2, 1, 1)
N_TARGETS = 72
SHIPPED = Path(__file__).with_name("cdr.npz")
AUTHORS = Path("cdr") / "CDR_Data.mat"


def load(
    source: str = "shipped",
    *,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    samples: int = SAMPLES,
    mesh: int = MESH,
    draw_seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
) -> Split:
    """Load the set shipped with the package ("shipped"), the authors' own ("authors"), or a "simulated" one.

    A simulated set is made once and kept in the data directory.

    Args:
        source: "shipped", "authors" (cdr/CDR_Data.mat in the data directory) or "simulated", the only one that uses the
            arguments behind `data_dir`.
        seed: seed of the order before the split.
        data_dir: the data directory (see `gnvpro.data`).
        samples: number of samples of a simulated set.
        mesh: number of cells along an edge.
        draw_seed: seed of the simulated inputs.
        workers: processes that simulate. Default: one per core.
        progress: whether to show the progress of a simulation.

    Returns:
        The sets, with inputs (samples, 55) and targets (samples, 72).

    Raises:
        ValueError: `source` is unknown, or an argument needs another source.
        FileNotFoundError: the authors' file is not in the data directory.

    >>> inputs, targets = load().train
    >>> inputs.shape, targets.shape
    (torch.Size([400, 55]), torch.Size([400, 72]))
    """
    if source != "simulated" and not is_shipped(samples, mesh, draw_seed):
        raise ValueError(f"samples, mesh and draw_seed need source='simulated', got source={source!r}")
    if source == "shipped":
        inputs, targets = archive.read(SHIPPED)
    elif source == "authors":
        inputs, targets = read_authors(data_directory(data_dir) / AUTHORS)
    elif source == "simulated":
        _, inputs, targets = simulated(
            samples, mesh, draw_seed=draw_seed, data_dir=data_dir, workers=workers, progress=progress
        )
    else:
        raise ValueError(f"source must be 'shipped', 'authors' or 'simulated', got {source!r}")
    return split(torch.from_numpy(inputs), torch.from_numpy(targets), SHARES, seed)


def is_shipped(samples: int, mesh: int, draw_seed: int) -> bool:
    """Return True for the settings of the shipped set."""
    return (samples, mesh, draw_seed) == (SAMPLES, MESH, 0)


def distance_to_shipped(inputs: Array, targets: Array) -> float:
    """Return the largest absolute difference between these rows and the first rows of the shipped set."""
    shipped_inputs, shipped_targets = archive.read(SHIPPED)
    n = len(inputs)
    return float(max(np.abs(inputs - shipped_inputs[:n]).max(), np.abs(targets - shipped_targets[:n]).max()))


def draw(samples: int, seed: int) -> Array:
    """Draw reaction coefficients (samples, 55), rows summing to one; a smaller set is the start of a larger one."""
    uniform = np.random.default_rng(seed).random((samples, problem.N_INPUTS))
    return uniform / uniform.sum(axis=1, keepdims=True)


SET = SimulatedSet("cdr", 1, N_TARGETS, problem.BLOCK, problem.check_mesh, draw, problem.simulate)
simulated = SET.simulated


def read_authors(path: Path) -> tuple[Array, Array]:
    """Read inputs and targets from the authors' file, whose columns are samples."""
    from scipy.io import loadmat

    if not path.is_file():
        raise FileNotFoundError(
            f"the authors' CDR_Data.mat is not at {path}; put it there, or name the directory that holds "
            f"{AUTHORS.as_posix()} with data_dir or GNVPRO_DATA"
        )
    try:
        content = loadmat(path)
        inputs, targets = (np.ascontiguousarray(content[key].T, dtype=float) for key in ("Y", "C"))
    except Exception as error:
        raise ValueError(f"{path} is damaged or not the authors' file: it should hold Y and C") from error
    if inputs.shape[1:] != (problem.N_INPUTS,) or targets.shape != (len(inputs), N_TARGETS):
        raise ValueError(
            f"{path} should hold Y (55, samples) and C (72, samples), got {inputs.T.shape}, {targets.T.shape}"
        )
    return inputs, targets
