"""Memory: the byte budget of a run, and the measured bytes per sample.

    footprint   bytes per sample, from what 2 and 4 samples leave alive at every moment of a computation

Every new tensor is recorded with a weak reference to its storage, which shows when it is freed. What does not grow
with the samples (mostly copies of the parameters) cancels in the difference. Scratch space inside torch's own
kernels is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, strided
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from gnvpro.samples.several import Batch

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_memory() -> float:
    """Return an eighth of the machine's memory, or half of the free memory if that is less.

    Free memory differs from run to run, and with it the chunks and the rounding errors. An eighth of the machine is
    constant, so a run can be repeated to the last bit unless memory is scarce. (A resumed run uses its original
    budget.)
    """
    machine = machine_memory()
    return min(machine / 8, free_memory(machine) / 2)


def machine_memory() -> float:
    """Return bytes of physical memory, or of the container's limit."""
    try:
        physical = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        physical = 8e9
    return min([physical, *filter(None, map(_number_in, CGROUP_LIMITS))])


def free_memory(machine: float) -> float:
    """Return bytes available without swapping, if the system reports them; else all of the machine."""
    try:
        _, found, rest = Path("/proc/meminfo").read_text().partition("MemAvailable:")
    except OSError:
        return machine
    return min(machine, 1024.0 * int(rest.split()[0])) if found else machine


def _number_in(path: str) -> float | None:
    """Return the number in a file; None if there is no such file, or a word such as "max" in it."""
    try:
        return float(int(Path(path).read_text()))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Footprint:
    """Bytes per sample."""

    held: float  # held by the result of the computation
    peak: float  # maximum during the computation, including the result


def footprint(run: Callable[[Any], object], inputs: Batch) -> Footprint:
    """Measure the bytes that `run` takes per sample."""
    sizes = sorted({min(2, len(inputs)), min(4, len(inputs))})
    logs = [_Allocations.of(run, inputs[:size]) for size in sizes]
    if len(logs) == 2 and len(logs[0].alive) == len(logs[1].alive):
        samples = sizes[1] - sizes[0]
        growth = [(more - fewer) / samples for fewer, more in zip(logs[0].alive, logs[1].alive, strict=True)]
        return Footprint(max(growth[-1], 0.0), max(*growth, 0.0))
    alive = [each / sizes[-1] for each in logs[-1].alive]  # too few samples, or another computation: use at least this
    return Footprint(alive[-1], max(alive))


class _Allocations(TorchDispatchMode):
    """Records, after every operation, the bytes of new tensors that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[int] = []
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler, which takes a second and a half."""
        return False

    @staticmethod
    def of(run: Callable[[Any], object], inputs: Batch) -> _Allocations:
        """Return the log of a computation; its last entry is the size of the result."""
        with _Allocations() as log:
            result = run(inputs)
        log.note()
        del result
        return log

    def note(self) -> None:
        """Append the bytes alive now."""
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[0].expired()}
        self.alive.append(sum(size for _, size in self._storages.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self._storages:
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.note()
        return result


def _storages(values: Any) -> list[Any]:
    """Yield the storages of all tensors in a value; torch's own tree functions take longer than the operations."""
    if isinstance(values, Tensor):
        return [values.untyped_storage()] if values.layout is strided else []
    within = values.values() if isinstance(values, dict) else values if isinstance(values, tuple | list) else ()
    return [storage for value in within for storage in _storages(value)]
