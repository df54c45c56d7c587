"""Output of a run in progress: records, listeners, and the checkpoint.

A run passes every record and its state to its journal. The journal writes a checkpoint when one is due, for at most
a twentieth of the time, and on any interruption; then it calls the listeners.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnvpro.minimize.status import Status
from gnvpro.training import checkpoint
from gnvpro.training.checkpoint import Checkpoint
from gnvpro.training.history import History, Record
from gnvpro.training.listeners import Listener


@dataclass(frozen=True)
class Written:
    """The last checkpoint: number of records, time, and how long it took."""

    records: int = 0
    at: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0


class Journal:
    """The history of a run, its listeners and its checkpoint."""

    def __init__(self, file: Checkpoint | None, listeners: Sequence[Listener]) -> None:
        self.history, self.status = History(), Status.RUNNING
        self._file, self._listeners = file, listeners
        self.state: Mapping[str, Any] | None = None  # state for the next checkpoint
        self._records = 0  # number of records at the last call
        self._written = Written()
        self._lines: list[bytes] = []  # serialised records, each made once

    @contextmanager
    def watched(self, budget: float) -> Iterator[None]:
        """Surround the whole run: notify listeners of its start and end; write down an interruption and raise it again."""
        for listener in self._listeners:
            listener.begin(self.history, budget)
        try:
            yield
        except BaseException:
            self.status = Status.RUNNING
            if self.state is not None and self._file is not None:
                self._write(self.state)
            raise
        finally:
            for listener in self._listeners:
                listener.end(self.status)

    def publish(self, record: Record, state: Callable[[], Mapping[str, Any]] | None) -> None:
        """Write the checkpoint first, so that a failing listener does not cost the iteration; without a state there is
        none.
        """
        self.history.records.append(record)
        if self._file is not None and state is not None:
            self.state, self._records = state(), len(self.history)
            due = len(self.history) - self._written.records >= self._file.every
            since = time.perf_counter() - self._written.at
            if (due and self._file.share * since > self._written.seconds) or since > self._file.longest:
                self._write(self.state)
        for listener in self._listeners:
            listener.record(record)

    def close(self, changed: Mapping[str, Any]) -> None:
        """Write the last state with the changes at the end of a run, and all records."""
        if self._file is not None:
            self._records = len(self.history)
            self._write({**(self.state or {}), **changed})

    def _write(self, state: Mapping[str, Any]) -> None:
        """Write a state, with the records up to it."""
        assert self._file is not None
        started = time.perf_counter()
        self._lines += [json.dumps(r.to_dict()).encode() for r in self.history[len(self._lines) : self._records]]
        checkpoint.save(
            Path(self._file.path), {**state, "status": self.status.name, "history": b"\n".join(self._lines)}
        )
        now = time.perf_counter()
        self._written = Written(self._records, now, now - started)

    def take_up(self, path: Path, saved: dict[str, Any], identity: Mapping[str, str]) -> None:
        """Restore the last checkpoint, history included, if it belongs to this run."""
        checkpoint.check_same_run(path, saved["identity"], identity)
        self._lines = saved["history"].split(b"\n")
        self.history = History(Record(**json.loads(line)) for line in self._lines)
        self._records = len(self.history)
        self._written = Written(self._records)
        self.state, self.status = saved, Status[saved["status"]]

    def go_on(self, notes: Sequence[str]) -> None:
        """Continue a finished run, from before the last records with these notes."""
        self.status = Status.RUNNING
        while self.history[-1].note in notes:
            self._lines, self.history = self._lines[:-1], self.history[:-1]
            self._records = len(self.history)
            self._written = Written(self._records)
