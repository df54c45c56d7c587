"""Arrays on disk: np.memmap, datasets of h5py, arrays of zarr, anything with a length that can be sliced.

Only the current slice of a pass is read. Pages of a memory map are released from time to time: they stay in the
system's file cache, and do not accumulate in this process.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gnvpro.samples.several import Several
from gnvpro.samples.source import Part
from gnvpro.samples.tables import is_several, is_table, numeric


def is_on_disk(value: Any) -> bool:
    """Return True if an array is read slice by slice: not tensors, arrays in memory, tables and lists."""
    if isinstance(value, np.memmap):
        return True
    if isinstance(value, Tensor | np.ndarray | np.generic | Mapping | Sequence | Dataset | DataLoader | type):
        return False
    has_length = hasattr(value, "__len__") or bool(getattr(value, "shape", ()))  # a zarr array has only a shape
    if is_table(value) or not (has_length and hasattr(value, "__getitem__")):
        return False
    return not any(hasattr(value, name) for name in ("__array_interface__", "__dlpack__", "__buffer__", "to_numpy"))


def holds_arrays_on_disk(value: Any) -> bool:
    """Return True for such an array, or several values with at least one."""
    if isinstance(value, Mapping):
        return any(map(is_on_disk, value.values()))
    return any(map(is_on_disk, value)) if is_several(value) else is_on_disk(value)


class Pages:
    """The pages of a memory map that this process holds; releasing them would lose private changes (mode "c")."""

    most: ClassVar[float] = 5e7  # bytes that are mapped at a time

    def __init__(self, array: Any) -> None:
        given = isinstance(array, np.memmap) and array.mode != "c" and hasattr(mmap, "MADV_DONTNEED")
        self._map = getattr(array, "_mmap", None) if given else None
        self._before = mapped_bytes()

    def tidy(self) -> None:
        """Release the pages once they are many: mapping them again takes longer than reading a few hundred samples."""
        if self._map is not None and not mapped_bytes() <= self._before + self.most:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._before = mapped_bytes()


def mapped_bytes() -> float:
    """Return the bytes of files that this process holds; NaN if the system does not report them."""
    try:
        with open("/proc/self/statm", "rb") as counts:
            return int(counts.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return math.nan


@dataclass(frozen=True, eq=False)
class Sliceable:
    """One array, read slice by slice."""

    name: str
    array: Any
    pages: Pages

    def __len__(self) -> int:
        shape = getattr(self.array, "shape", None)
        return len(self.array) if shape is None else int(shape[0])

    def read(self, start: int, stop: int) -> Tensor:
        """Return a slice as a separate tensor."""
        if isinstance(self.array, Tensor):
            return self.array[start:stop].detach()
        return self._tensor(self.array[start:stop])

    def take(self, indices: Tensor) -> Tensor:
        """Return some samples, read in the order of the file."""
        if isinstance(self.array, Tensor):
            return self.array[indices.to(self.array.device)].detach()
        wanted, place = np.unique(indices.cpu().numpy(), return_inverse=True)
        return self._tensor(self._chosen(wanted))[torch.from_numpy(place)]

    def _chosen(self, wanted: np.ndarray[Any, Any]) -> Any:
        """Return samples of increasing number; one by one if the array supports nothing else."""
        if len(wanted) and wanted[-1] - wanted[0] + 1 == len(wanted):
            return self.array[int(wanted[0]) : int(wanted[-1]) + 1]
        if isinstance(self.array, np.ndarray):
            return self.array[wanted]
        try:
            chosen = self.array[wanted]
            if len(chosen) == len(wanted):
                return chosen
        except (TypeError, IndexError, ValueError, NotImplementedError):
            pass
        return np.concatenate([np.asarray(self.array[i : i + 1]) for i in map(int, wanted)])

    def _tensor(self, values: Any) -> Tensor:
        try:
            tensor = torch.from_numpy(np.array(values, copy=True))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self.name} must hold numbers, got {type(self.array).__name__} ({error})") from None
        self.pages.tidy()
        return tensor


@dataclass(frozen=True)
class Arrays:
    """Samples from arrays, at least one of them on disk."""

    positional: tuple[Sliceable, ...]
    named: Mapping[str, Sliceable]
    targets: Sliceable
    weights: Sliceable | None

    @staticmethod
    def of(name: str, inputs: Any, targets: Any, weights: Any = None) -> Arrays:
        """Build the source from the user's arguments; lengths that differ raise a ValueError."""
        if isinstance(inputs, Mapping):
            positional: tuple[Sliceable, ...] = ()
            named = {key: _sliceable(f"{name}[{key!r}]", value) for key, value in inputs.items()}
        else:
            several = list(inputs) if is_several(inputs) else [inputs]
            names = [f"{name}[{i}]" for i in range(len(several))] if len(several) > 1 else [name]
            positional, named = tuple(map(_sliceable, names, several)), {}
        kind = name.removesuffix("inputs")
        given = _sliceable(f"{kind}targets", targets)
        shares = None if weights is None else _sliceable(f"{kind}sample_weight", weights)
        arrays = Arrays(positional, named, given, shares)
        one, *others = arrays._every
        for each in others:
            if len(each) != len(one):
                raise ValueError(f"{each.name} has {len(each)} samples but {one.name} has {len(one)}; they must agree")
        if not len(arrays):
            raise ValueError(f"{name} is empty: it has no samples")
        return arrays

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def expected(self) -> float:
        """Number of samples in a pass."""
        return len(self)

    def first(self, count: int) -> Part:
        """Return the first few samples."""
        return next(self.chunks(count))

    def chunks(self, rows: int) -> Iterator[Part]:
        """Yield one pass, slice by slice."""
        for start in range(0, len(self), rows):
            stop = min(start + rows, len(self))
            yield self._part(lambda array, a=start, b=stop: array.read(a, b))

    def take(self, indices: Tensor) -> Part:
        """Return the samples of these numbers."""
        return self._part(lambda array: array.take(indices))

    @property
    def takes_fast(self) -> bool:
        """True for memory maps and tensors; h5py and zarr read a whole chunk for each sample."""
        return all(isinstance(each.array, Tensor | np.ndarray) for each in self._every)

    @property
    def _every(self) -> list[Sliceable]:
        return [*self.positional, *self.named.values(), self.targets, *([] if self.weights is None else [self.weights])]

    def _part(self, read: Any) -> Part:
        positional, named = tuple(map(read, self.positional)), {key: read(value) for key, value in self.named.items()}
        inputs = positional[0] if len(positional) == 1 and not named else Several(positional, named)
        return Part(inputs, read(self.targets), None if self.weights is None else read(self.weights))


def _sliceable(name: str, value: Any) -> Sliceable:
    if hasattr(value, "keys") and not hasattr(value, "shape"):
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind}, which holds several arrays: give one of them, or a dict of inputs")
    if not (isinstance(value, Tensor | np.ndarray) or is_on_disk(value)):
        value = np.asarray(numeric(name, value))
    if getattr(value, "shape", (1,)) == ():
        raise ValueError(f"{name} must have samples first, got a single number")
    return Sliceable(name, value, Pages(value))
