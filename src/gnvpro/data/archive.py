"""A simulated set on disk: written in one step, and used only if recipe and checksum agree.

The recipe holds everything the numbers depend on: the problem, the version of its solver, mesh, samples, seed. A set
that was truncated, altered or made by another recipe or version is rejected with the reason; the caller then makes
it again.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnvpro.files import content_hash, replacing

Array = NDArray[np.float64]


class UnusableArchive(ValueError):
    """The file is not an intact archive of the requested set; the message gives the reason."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a simulated set."""

    problem: str
    version: int
    mesh: int
    samples: int
    seed: int

    @property
    def stem(self) -> str:
        """File name without its suffix. The version is not part of it, so a new version replaces the old file."""
        return f"{self.problem}-mesh{self.mesh}-samples{self.samples}-seed{self.seed}"

    def stamp(self, inputs: Array) -> str:
        """Return one line that differs whenever the set would."""
        return json.dumps({**asdict(self), "inputs": content_hash([inputs.tobytes()])}, sort_keys=True)


@contextmanager
def explained(directory: Path, megabytes: float) -> Iterator[float]:
    """Turn an OSError into one that names the directory, the space needed, and what to do."""
    try:
        yield megabytes
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write {directory} ({error.strerror}); the set needs about {megabytes:.1f} MB there: "
            "make room or choose another directory with data_dir, --data-dir or GNVPRO_DATA",
        ) from error


def write(path: Path, stamp: str, inputs: Array, targets: Array) -> None:
    """Write the archive in one step."""
    with replacing(path) as file:
        np.savez(file, inputs=inputs, targets=targets, stamp=stamp, checksum=_checksum(stamp, inputs, targets))


def copy(path: Path, out: Path) -> None:
    """Copy an archive in one step."""
    with open(path, "rb") as source, replacing(out) as file:
        shutil.copyfileobj(source, file)


def read(path: Path, stamp: str | None = None) -> tuple[Array, Array]:
    """Inputs and targets of an intact archive (of the set with this stamp); UnusableArchive otherwise."""
    try:
        # opened here: numpy leaves the file open when the archive in it is damaged
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            inputs, targets = file["inputs"], file["targets"]
            found, checksum = str(file["stamp"]), str(file["checksum"])
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise UnusableArchive(f"{path.name} is cut or is not an archive of a simulated set") from error
    if checksum != _checksum(found, inputs, targets):
        raise UnusableArchive(f"{path.name} does not match its checksum")
    if stamp is not None and found != stamp:
        raise UnusableArchive(f"{path.name} was made by another version or recipe")
    return inputs, targets


def _checksum(stamp: str, inputs: Array, targets: Array) -> str:
    parts: list[str | bytes] = [stamp]
    for array in (inputs, targets):
        parts += [str((array.dtype.str, array.shape)), np.ascontiguousarray(array).tobytes()]
    return content_hash(parts)
