"""Samples of a case written to disk, for tests of data that is not held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor


def on_disk(folder: Path, name: str, values: Tensor) -> Any:
    """A memory map, read only."""
    np.save(folder / f"{name}.npy", values.numpy())
    return np.load(folder / f"{name}.npy", mmap_mode="r")
