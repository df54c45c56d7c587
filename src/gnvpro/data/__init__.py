"""Data sets: every module's load() gives a Split of (inputs, targets), float64, one sample per row.

Files are read from, and large sets are written to, one data directory: the argument `data_dir` if given, else the
environment variable GNVPRO_DATA, else `gnvpro` in the user's cache directory (XDG_CACHE_HOME, or ~/.cache).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["Samples", "Split", "data_directory", "split"]

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """Three disjoint sets of (inputs, targets).

    Args:
        train: inputs and targets of the training set.
        validation: inputs and targets of the validation set.
        test: inputs and targets of the test set.

    >>> from gnvpro.data import ellipse
    >>> inputs, targets = ellipse.load().train
    >>> inputs.shape, targets.shape
    (torch.Size([5000, 2]), torch.Size([5000]))
    """

    train: Samples
    validation: Samples
    test: Samples


def split(inputs: Tensor, targets: Tensor, shares: tuple[int, int, int], seed: int) -> Split:
    """Shuffle by a seed and split in the proportions `shares`; the training set gets the remainder.

    Args:
        inputs, targets: tensors with one row per sample.
        shares: proportions of training, validation and test set.
        seed: seed of the order.

    Returns:
        The three sets.

    Raises:
        ValueError: inputs and targets differ in length, or there are too few samples.

    >>> parts = split(torch.arange(11), torch.arange(11), (2, 1, 1), seed=0)
    >>> len(parts.train[0]), len(parts.validation[0]), len(parts.test[0])
    (7, 2, 2)
    """
    n, whole = len(inputs), sum(shares)
    if len(targets) != n:
        raise ValueError(f"inputs and targets must have equally many rows, got {n} and {len(targets)}")
    if n < whole // min(shares):
        raise ValueError(f"samples must be at least {whole // min(shares)} to fill all three sets, got {n}")
    n_validation, n_test = (n * share // whole for share in shares[1:])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    rows = order.split([n - n_validation - n_test, n_validation, n_test])
    train, validation, test = ((inputs[r], targets[r]) for r in rows)
    return Split(train, validation, test)


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory: the argument, else GNVPRO_DATA, else the user's cache; it need not exist yet.

    Args:
        data_dir: the directory. Default: the environment variable, else the cache.

    >>> data_directory("sets").name
    'sets'
    """
    chosen = data_dir or os.environ.get("GNVPRO_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gnvpro"
