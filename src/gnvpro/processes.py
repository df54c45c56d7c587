"""Several processes, each with its part of the samples: what they say to each other, by `torch.distributed`.

    total      the sum of what each has, in float64, the same bits for everybody
    triangle   the factor of rows that lie one above the other, by a tree: pairs stack their factors and factor again
    gather     what each has, in the order of their ranks
    rows       rows of which each has some, one above the other
    together   what one of them cannot do stops all of them, with a sentence that names the rank

Every decision of a run follows from numbers made by these, so all processes take the same one. What differs between machines
(clocks, free memory, what a file holds) is the first process's, or the least of all.

A process that fails leaves a note in the group's store before its connections close. The others meet an error in whatever they
were saying to each other, look for the note, and call the roll: who left none and does not answer is the one that is gone.
"""

from __future__ import annotations

import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

ROLL_CALL = 5.0  # seconds that the others have to answer after a failure; shorter where the group's own timeout is
MAX_NOTE = 2000  # characters


class ProcessError(RuntimeError):
    """Another process of the group failed, or holds other numbers; the message names its rank."""


class Processes:
    """The processes of a group, or this one alone where there is no group."""

    _begun: ClassVar[Counter[str]] = (
        Counter()
    )  # how often each group was used: notes of an earlier run are none of this one's

    def __init__(self, group: Any = None) -> None:
        self.rank, self.size = 0, 1
        self.alone = group is None  # whether there is no group
        if self.alone:
            return
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                "process_group must be a group of torch.distributed, such as torch.distributed.group.WORLD after "
                f"torch.distributed.init_process_group(...), got {group!r}"
            )
        # Borrowed: a group that somebody holds beyond `destroy_process_group` is there until the interpreter ends, and gloo's
        # threads abort it then.
        self._borrowed = weakref.ref(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        Processes._begun[group.group_name] += 1
        self._prefix = f"gnvpro/{group.group_name}/{Processes._begun[group.group_name]}"

    @staticmethod
    def of(group: Any) -> Processes:
        """Those of a group, or themselves."""
        return group if isinstance(group, Processes) else Processes(group)

    @property
    def group(self) -> Any:
        """The group, which belongs to `torch.distributed`."""
        group = self._borrowed()
        if group is None:
            raise ProcessError(
                "the process group is gone: torch.distributed.destroy_process_group() was called before the end"
            )
        return group

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.rank == 0

    # -- sums

    def total(self, part: Tensor) -> Tensor:
        """The sum of every process's part."""
        return self._reduced(part, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """The largest of every process's value."""
        if self.alone:
            return value
        return float(self._reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.MAX))

    def _reduced(self, part: Tensor, how: Any) -> Tensor:
        if self.alone:
            return part
        whole = (
            part.detach().to(self._device or part.device, torch.float64).clone(memory_format=torch.contiguous_format)
        )
        self._say(lambda: dist.all_reduce(whole, how, group=self.group))
        return whole.to(part.device, part.dtype)

    def all(self, statement: bool) -> bool:
        """Whether it is true for every process."""
        return self.largest(0.0 if statement else 1.0) == 0.0

    def triangle(self, R: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        """R and Q' B of all rows, from those of each process's rows."""
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
        """The rows of all processes one above the other, so many from each."""
        if self.alone:
            return part
        padded = part.new_zeros((max(counts), *part.shape[1:]), device=self._device or part.device)
        padded[: len(part)] = part.detach()
        everyone = [torch.empty_like(padded) for _ in counts]
        self._say(lambda: dist.all_gather(everyone, padded, group=self.group))
        return torch.cat([own[:count] for own, count in zip(everyone, counts, strict=True)]).to(part.device)

    # -- messages

    def gather(self, values: list[float]) -> Tensor:
        """A row of numbers from each process."""
        own = torch.tensor(values, dtype=torch.float64, device=self._device)
        if self.alone:
            return own[None]
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._say(lambda: dist.all_gather(rows, own, group=self.group))
        return torch.stack(rows).cpu()

    def gather_objects(self, value: T) -> list[T]:
        """What each process has."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        self._say(lambda: dist.all_gather_object(values, value, group=self.group))
        return values

    def from_rank(self, rank: int, value: T) -> T:
        """What one of them has."""
        if self.alone:
            return value
        box = [value if self.rank == rank else None]
        self._say(lambda: dist.broadcast_object_list(box, group=self.group, group_src=rank))
        return box[0]  # type: ignore[return-value]

    def spread(self, tensors: list[Tensor]) -> None:
        """Write the first process's tensors into everybody's."""
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
        """Where tensors must be to be sent; None: where they are."""
        if self.alone or dist.get_backend(self.group) != "nccl":
            return None
        return torch.device("cuda", torch.cuda.current_device())

    @cached_property
    def here(self) -> int:
        """How many of them run on this machine."""
        return self.gather_objects(socket.gethostname()).count(socket.gethostname())

    # -- agreeing

    @contextmanager
    def together(self) -> Iterator[None]:
        """What raises for one raises for all; nothing may be said to the others inside."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            if self.alone:
                raise
            error = raised
        if self.alone:
            return
        notes = self.gather_objects(None if error is None else (type(error).__name__, str(error)))
        if error is not None:
            raise error
        for rank, note in enumerate(notes):
            if note is not None:
                kind = TypeError if note[0] == "TypeError" else ValueError
                raise kind(f"rank {rank} of the process group cannot go on: {note[1]}")

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process makes; its error is everybody's."""
        made: list[T | None] = [None]
        with self.together():
            if self.is_first:
                made[0] = make()
        return self.from_rank(0, made[0])  # type: ignore[return-value]

    def check_same(
        self, what: dict[str, str], advice: str = "with the same model everywhere, only with other samples"
    ) -> None:
        """An error for all of them where one differs from the first in what each of these names stands for."""
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
        """An error that names whoever holds another number than most."""
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
        except RuntimeError as error:  # also DistBackendError; gloo raises plain ones
            raise ProcessError(self._who_failed(error)) from error

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Whatever is raised in here leaves a note for the others."""
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
        """A note for the others; where the store is gone, nobody is left to read it."""
        try:
            self._store().set(f"{self._prefix}/{kind}/{self.rank}", text)
        except Exception:
            return

    def _note(self, kind: str, rank: int) -> str | None:
        key = f"{self._prefix}/{kind}/{rank}"
        store = self._store()
        return store.get(key).decode() if store.check([key]) else None

    def _who_failed(self, error: Exception) -> str:
        """A sentence that names the rank."""
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
    """[R, Q' B] of two such blocks, one above the other."""
    rows = torch.cat([above, below])
    Q, R = torch.linalg.qr(rows[:, :f])
    return torch.cat([R, Q.T @ rows[:, f:]], 1)


ALONE = Processes()


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= 120 else text[:117] + "..."
