"""Indian Pines: a hyperspectral image of 145 x 145 pixels; each labelled pixel's spectrum -> one of 16 crops.

Read from the folder `indian_pines` of the data directory: the original with 220 bands (Indian_pines.mat), else the 200
bands that water does not absorb (Indian_pines_corrected.mat), each with Indian_pines_gt.mat; else, if the package
tensorly is installed, its copy of the 200 bands.

The background is dropped, which leaves 10,249 pixels, and each spectrum is standardised by itself. Split by class: of a
class's n pixels, m = min(n - 10, 312) are drawn, a fifth of them (rounded down) for test and the rest for training; all
others are for validation. In total 2957 / 6560 / 732 (train / validation / test).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gnvpro.extras import how_to_get

from . import Samples, Split, data_directory

SHAPE = (145, 145)
FOLDER = Path("indian_pines")
TRUTH = ("Indian_pines_gt.mat", "indian_pines_gt")
CUBES = (("Indian_pines.mat", "indian_pines", 220), ("Indian_pines_corrected.mat", "indian_pines_corrected", 200))
LARGEST = 5000 // 16  # maximum number of pixels of a class for training and test together
KEPT = 10  # minimum number of pixels of a class for validation
CLASSES = (
    "alfalfa",
    "corn, no till",
    "corn, min. till",
    "corn",
    "grass, pasture",
    "grass, trees",
    "grass, mowed",
    "hay, windrowed",
    "oats",
    "soybean, no till",
    "soybean, min. till",
    "soybean, clean",
    "wheat",
    "woods",
    "buildings, trees",
    "stone, steel towers",
)


@dataclass(frozen=True)
class Scene:
    """The labelled pixels: standardised spectra, labels 0 to 15, positions in the image row by row."""

    spectra: NDArray[np.float64]
    labels: NDArray[np.int64]
    pixels: NDArray[np.int64]
    source: str


def load(*, seed: int = 0, data_dir: str | os.PathLike[str] | None = None) -> Split:
    """Standardised spectra and labels 0 to 15, shuffled and split by the seed.

    Args:
        seed: seed of the split and of the order.
        data_dir: the data directory (see `gnvpro.data`).

    Returns:
        The sets, with inputs (samples, channels) and labels (samples,).

    Raises:
        FileNotFoundError: the scene is not in the data directory.

    Of a class with n pixels, min(n - 10, 312) are for training and test (a fifth), the others for validation:

    >>> [len(rows) for rows in split_rows(np.repeat([0, 1], [30, 500]), seed=0)]
    [266, 198, 66]
    """
    scene = read(data_dir)
    train, validation, test = (samples(scene, rows) for rows in split_rows(scene.labels, seed))
    return Split(train, validation, test)


def samples(scene: Scene, rows: NDArray[np.int64]) -> Samples:
    """Inputs and targets of the labelled pixels `rows`."""
    return torch.from_numpy(scene.spectra[rows]), torch.from_numpy(scene.labels[rows])


def split_rows(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """The labelled pixels for training, validation and test: drawn within classes, then shuffled."""
    generator = np.random.default_rng(seed)
    parts: list[list[NDArray[np.int64]]] = [[], [], []]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        drawn = min(len(rows) - KEPT, LARGEST)
        if drawn < 2:
            raise ValueError(f"class {label} has {len(rows)} pixels; at least {KEPT + 2} are needed to split it")
        for part, chosen in zip(parts, np.split(rows, [drawn - drawn // 5, drawn]), strict=True):
            part.append(chosen)
    train, test, validation = (generator.permutation(np.concatenate(part)) for part in parts)
    return [train, validation, test]


def read(data_dir: str | os.PathLike[str] | None = None) -> Scene:
    """The labelled pixels of the first copy found."""
    folder = data_directory(data_dir) / FOLDER
    for name, key, bands in CUBES:
        if (folder / name).is_file():
            cube = _array(folder / name, key, (*SHAPE, bands))
            return scene(cube, _array(folder / TRUTH[0], TRUTH[1], SHAPE), f"{name}, {bands} bands")
    if find_spec("tensorly") is not None:
        from tensorly.datasets import load_indian_pines

        content = load_indian_pines()
        cube, truth = np.asarray(content["tensor"]), np.asarray(content["ticks"][0])  # its labels of the two axes
        return scene(
            _checked(cube, "tensorly's copy", (*SHAPE, CUBES[1][2])),
            _checked(truth, "tensorly's copy", SHAPE),
            f"tensorly's copy, {CUBES[1][2]} bands",
        )
    raise FileNotFoundError(
        f"Indian Pines is not in {folder}; put {CUBES[1][0]} (200 bands) or {CUBES[0][0]} (220 bands) and {TRUTH[0]} "
        "there, name the directory that holds the folder indian_pines with data_dir, --data-dir or GNVPRO_DATA, or "
        f"take the copy of the 200 bands in tensorly: {how_to_get('indian-pines')}"
    )


def scene(cube: NDArray[np.generic], truth: NDArray[np.generic], source: str) -> Scene:
    """The labelled pixels of a cube, checked and standardised."""
    flat = truth.astype(np.int64).ravel()
    found = np.unique(flat)
    if not np.array_equal(found, np.arange(len(CLASSES) + 1)):
        raise ValueError(f"the ground truth should hold labels 0 to {len(CLASSES)}, got {found.tolist()} ({source})")
    pixels = np.flatnonzero(flat)
    spectra = cube.reshape(-1, cube.shape[-1])[pixels].astype(np.float64)
    spread = spectra.std(axis=1, keepdims=True)
    if not np.isfinite(spectra).all() or (spread == 0).any():
        raise ValueError(f"a labelled pixel's spectrum is constant or not finite ({source})")
    return Scene((spectra - spectra.mean(axis=1, keepdims=True)) / spread, flat[pixels] - 1, pixels, source)


def _array(path: Path, key: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    from scipy.io import loadmat

    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is not in {path.parent}; it belongs beside the cube")
    try:
        content = loadmat(path)
    except Exception as error:  # scipy does not document which ones it raises
        raise ValueError(f"{path} is damaged or not a MATLAB file; get it again") from error
    if key not in content:
        names = [name for name in content if not name.startswith("__")]
        raise ValueError(f"{path} should hold {key!r}, got {names}")
    return _checked(np.asarray(content[key]), str(path), shape)


def _checked(array: NDArray[np.generic], where: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    if array.shape != shape:
        raise ValueError(f"{where} should hold an array of shape {shape}, got {array.shape}")
    return array
