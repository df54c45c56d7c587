"""Several processes, each with a part of the samples: their communication by `torch.distributed`.

    total      the sum over all processes, in float64, with the same bits everywhere
    triangle   the factor of stacked rows, by a tree: pairs of processes stack their factors and factorise again
    gather     the values of all processes, in the order of their ranks
    rows       the stacked rows of all processes
    together   an error in one process stops all of them, with a sentence that names the rank

Every decision of a run is based on numbers from these functions, so all processes decide alike. Values that differ
between machines (clocks, free memory, the content of a file) come from the first process, or are the minimum over
all.

A process that fails leaves a note in the group's store before its connections close. The others get an error from
their next message, look for the note, and take a roll call: a process that left no note and does not answer is gone.
"""

from __future__ import annotations

import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

ROLL_CALL = 5.0  # seconds for the others to answer after a failure; less if the group's own timeout is shorter
MAX_NOTE = 2000  # characters


class ProcessError(RuntimeError):
    """Another process of the group failed or holds different numbers; the message names its rank."""


class Processes:
    """The processes of a group, or this one alone without a group."""

    _begun: ClassVar[Counter[str]] = (
        Counter()
    )  # how often each group was used: distinguishes notes of this run from earlier ones

    def __init__(self, group: Any = None) -> None:
        self.rank, self.size = 0, 1
        self.alone = group is None  # True without a group
        if self.alone:
            return
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                "process_group must be a group of torch.distributed, such as torch.distributed.group.WORLD after "
                f"torch.distributed.init_process_group(...), got {group!r}"
            )
        # A weak reference: a group that is still referenced after `destroy_process_group` lives until the interpreter
        # exits, and gloo's threads then abort it.
        self._borrowed = weakref.ref(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        Processes._begun[group.group_name] += 1
        self._prefix = f"gnvpro/{group.group_name}/{Processes._begun[group.group_name]}"

    @staticmethod
    def of(group: Any) -> Processes:
        """Return the processes of a group; a `Processes` object is returned unchanged."""
        return group if isinstance(group, Processes) else Processes(group)

    @property
    def group(self) -> Any:
        """The group, which `torch.distributed` owns."""
        group = self._borrowed()
        if group is None:
            raise ProcessError(
                "the process group is gone: torch.distributed.destroy_process_group() was called before the end"
            )
        return group

    @property
    def is_first(self) -> bool:
        """True in the process that writes files and reports to the user."""
        return self.rank == 0

    # -- sums

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of all processes' parts."""
        return self._reduced(part, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """Return the largest of all processes' values."""
        if self.alone:
            return value
        return float(self._reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.MAX))

    def smallest(self, value: float) -> float:
        """Return the smallest of all processes' values."""
        return -self.largest(-value)

    def _reduced(self, part: Tensor, how: Any) -> Tensor:
        if self.alone:
            return part
        whole = (
            part.detach().to(self._device or part.device, torch.float64).clone(memory_format=torch.contiguous_format)
        )
        self._say(lambda: dist.all_reduce(whole, how, group=self.group))
        return whole.to(part.device, part.dtype)

    def all(self, statement: bool) -> bool:
        """Return True if the statement is true in every process."""
        return self.largest(0.0 if statement else 1.0) == 0.0

    def triangle(self, R: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Return R and Q' B of all rows, from the R and Q' B of each process's rows."""
        if self.alone:
            return R, projected
        f = R.shape[1]
        both = R.new_zeros((f, f + projected.shape[1]), device=self._device or R.device)
        both[: len(R)] = torch.cat([R, projected], 1)
        step = 1
        while step < self.size:
            if self.rank % (2 * step):
                self._say(lambda: dist.send(both, group=self.group, group_dst=self.rank - step))  # noqa: B023
                break
            if self.rank + step < self.size:
                below = torch.empty_like(both)
                self._say(lambda: dist.recv(below, group=self.group, group_src=self.rank + step))  # noqa: B023
                both = stacked(both, below, f)
            step *= 2
        self._say(lambda: dist.broadcast(both, group=self.group, group_src=0))
        both = both.to(R.device)
        return both[:, :f], both[:, f:]

    def rows(self, part: Tensor, counts: list[int]) -> Tensor:
        """Stack the rows of all processes, `counts` from each."""
        if self.alone:
            return part
        padded = part.new_zeros((max(counts), *part.shape[1:]), device=self._device or part.device)
        padded[: len(part)] = part.detach()
        everyone = [torch.empty_like(padded) for _ in counts]
        self._say(lambda: dist.all_gather(everyone, padded, group=self.group))
        return torch.cat([own[:count] for own, count in zip(everyone, counts, strict=True)]).to(part.device)

    # -- messages

    def gather(self, values: list[float]) -> Tensor:
        """Return one row of numbers per process."""
        own = torch.tensor(values, dtype=torch.float64, device=self._device)
        if self.alone:
            return own[None]
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._say(lambda: dist.all_gather(rows, own, group=self.group))
        return torch.stack(rows).cpu()

    def gather_objects(self, value: T) -> list[T]:
        """Return every process's value."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        self._say(lambda: dist.all_gather_object(values, value, group=self.group))
        return values

    def from_rank(self, rank: int, value: T) -> T:
        """Return the value of one process."""
        if self.alone:
            return value
        box = [value if self.rank == rank else None]
        self._say(lambda: dist.broadcast_object_list(box, group=self.group, group_src=rank))
        return box[0]  # type: ignore[return-value]

    def spread(self, tensors: list[Tensor]) -> None:
        """Overwrite the tensors of all processes with the tensors of the first."""
        if self.alone:
            return
        with torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().to(self._device or tensor.device).contiguous()
                sent = sent.clone() if sent.data_ptr() == tensor.data_ptr() else sent
                self._say(lambda: dist.broadcast(sent, group=self.group, group_src=0))  # noqa: B023
                tensor.copy_(sent)

    @cached_property
    def _device(self) -> torch.device | None:
        """Device from which tensors can be sent; None: any."""
        if self.alone or dist.get_backend(self.group) != "nccl":
            return None
        return torch.device("cuda", torch.cuda.current_device())

    @cached_property
    def here(self) -> int:
        """Number of processes on this machine."""
        return self.gather_objects(socket.gethostname()).count(socket.gethostname())

    # -- agreeing

    def together(self) -> AbstractContextManager[None]:
        """Raise in all processes if one raises in this block; the block must not communicate."""
        return nullcontext() if self.alone else self._together()

    @contextmanager
    def _together(self) -> Iterator[None]:
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        notes = self.gather_objects(None if error is None else (type(error).__name__, str(error)))
        if error is not None:
            raise error
        for rank, note in enumerate(notes):
            if note is not None:
                kind = TypeError if note[0] == "TypeError" else ValueError
                raise kind(f"rank {rank} of the process group cannot go on: {note[1]}")

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what the first process makes; its error is raised everywhere."""
        made: list[T | None] = [None]
        with self.together():
            if self.is_first:
                made[0] = make()
        return self.from_rank(0, made[0])  # type: ignore[return-value]

    def check_same(
        self, what: dict[str, str], advice: str = "with the same model everywhere, only with other samples"
    ) -> None:
        """Raise everywhere if one process differs from the first in one of these named values."""
        everyone = self.gather_objects(what)
        first = everyone[0]
        for rank, other in enumerate(everyone):
            for name in [*first, *(set(other) - set(first))]:
                if first.get(name) != other.get(name):
                    raise ValueError(
                        f"rank {rank} of the process group differs from rank 0 in {name}: {_short(other.get(name))} there, "
                        f"{_short(first.get(name))} on rank 0; make the same call {advice}"
                    )

    def check_sums(self, checksums: list[float]) -> None:
        """Raise an error that names the processes whose numbers differ from the majority."""
        usual = Counter(checksums).most_common(1)[0][0]
        wrong = [str(rank) for rank, value in enumerate(checksums) if value != usual]
        if wrong:
            raise ProcessError(
                f"rank {', '.join(wrong)} of the process group no longer holds the same theta, head and history as the others; "
                "processes must run the same versions with the same number of threads on machines of one kind, and nothing "
                "in a loss, a model or a listener may depend on the rank"
            )

    # -- failures

    def _say(self, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:  # includes DistBackendError; gloo raises a plain RuntimeError
            raise ProcessError(self._who_failed(error)) from error

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Leave a note for the others if this block raises."""
        try:
            yield
        except BaseException as error:
            if not self.alone and not isinstance(error, ProcessError):
                self._leave("failed", f"{type(error).__name__}: {error}"[:MAX_NOTE])
            raise

    def _store(self) -> Any:
        own = getattr(self.group, "get_group_store", None)
        return own() if own else dist.distributed_c10d._get_default_store()

    def _leave(self, kind: str, text: str) -> None:
        """Leave a note for the others; if the store is gone, no process is left to read it."""
        try:
            self._store().set(f"{self._prefix}/{kind}/{self.rank}", text)
        except Exception:
            return

    def _note(self, kind: str, rank: int) -> str | None:
        key = f"{self._prefix}/{kind}/{rank}"
        store = self._store()
        return store.get(key).decode() if store.check([key]) else None

    def _who_failed(self, error: Exception) -> str:
        """Return a sentence that names the rank."""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        self._leave("here", "")
        others = [rank for rank in range(self.size) if rank != self.rank]
        missing, deadline = others, time.monotonic() + ROLL_CALL
        try:
            while missing and time.monotonic() < deadline:
                for rank in others:
                    if (note := self._note("failed", rank)) is not None:
                        return f"rank {rank} of the process group failed: {note}"
                missing = [rank for rank in missing if self._note("here", rank) is None]
                time.sleep(0.05)
        except Exception:
            return f"the process group is broken, and so is its store, which rank 0 or torchrun keeps: it is gone ({reason})"
        if missing:
            names = ", ".join(map(str, missing))
            return f"rank {names} of the process group does not answer: killed, stuck, or not in gnvpro any more ({reason})"
        return f"the connections of the process group failed, though every rank answers ({reason})"


def stacked(above: Tensor, below: Tensor, f: int) -> Tensor:
    """Stack two blocks [R, Q' B]."""
    rows = torch.cat([above, below])
    Q, R = torch.linalg.qr(rows[:, :f])
    return torch.cat([R, Q.T @ rows[:, f:]], 1)


ALONE = Processes()


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= 120 else text[:117] + "..."
