"""Finished samples, safe from Ctrl-C and from kill: an append-only file of fixed-size records.

    one line: the stamp of the set        records: sample number, targets, CRC-32 of both

A record is appended with a single write as soon as its sample is solved, so a killed run loses only what was being
solved. Opening takes a lock (released by the system however the owner ends), keeps the records of the same stamp up to
the first damaged one and cuts off the rest.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

try:
    import fcntl
except ImportError:  # Windows: there, nothing keeps two runs from making the same set at once
    fcntl = None  # type: ignore[assignment]

Array = NDArray[np.float64]


class Journal:
    """The finished samples of one set: `targets[finished]`, from earlier runs and appended since."""

    def __init__(self, path: Path, stamp: str, n_samples: int, n_targets: int) -> None:
        self.path = path
        self.targets = np.zeros((n_samples, n_targets))
        self.finished = np.zeros(n_samples, dtype=bool)
        self._record = np.dtype([("sample", "<i8"), ("targets", "<f8", (n_targets,)), ("crc", "<u4")])
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by __exit__
        try:
            self._lock()
            self._recover(stamp.encode() + b"\n")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, sample: int, targets: Array) -> None:
        """Keep one finished sample."""
        record = np.zeros((), dtype=self._record)
        record["sample"], record["targets"] = sample, targets
        record["crc"] = zlib.crc32(record.tobytes()[:-4])
        written = self._file.write(record.tobytes())
        if written != self._record.itemsize:  # a full disk may take a part of it: the next write raises the reason
            self._file.write(record.tobytes()[written:])
        self.targets[sample], self.finished[sample] = targets, True

    def remove(self) -> None:
        """Delete the file, once the set is safe elsewhere."""
        self._file.close()  # Windows cannot delete an open file
        self.path.unlink(missing_ok=True)

    def _lock(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RuntimeError(
                    f"another process is making this set ({self.path.name}); wait for it or choose another data_dir"
                ) from error

    def _recover(self, head: bytes) -> None:
        self._file.seek(0)
        content = self._file.readall() or b""
        good = 0
        if content.startswith(head):
            body = content[len(head) :]
            records = np.frombuffer(body, self._record, count=len(body) // self._record.itemsize)
            for record in records:
                if zlib.crc32(record.tobytes()[:-4]) != record["crc"] or not 0 <= record["sample"] < len(self.finished):
                    break
                self.targets[record["sample"]], self.finished[record["sample"]] = record["targets"], True
                good += 1
            self._file.truncate(len(head) + good * self._record.itemsize)
        else:
            self._file.truncate(0)
            self._file.write(head)
