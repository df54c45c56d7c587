"""Listeners: what may watch a run. Each gets every record; none can change the run.

To write one, implement the three methods of `Listener`. A resumed run begins with the records made before it stopped, so
a listener that writes a file can write the whole of it.

>>> class Best:
...     def begin(self, history, budget): self.loss = float("inf")
...     def record(self, record): self.loss = min(self.loss, record.loss)
...     def end(self, status): print(f"best loss {self.loss:g}")
>>> isinstance(Best(), Listener)
True
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

from gnvpro.minimize.status import Status
from gnvpro.training.history import FIELDS, History, Record


@runtime_checkable
class Listener(Protocol):
    """Hears of every record of a run.

    >>> isinstance(Lines(), Listener)
    True
    """

    def begin(self, history: History, budget: float) -> None:
        """The run starts, or goes on after these records; it may spend `budget` work units in all."""
        ...

    def record(self, record: Record) -> None:
        """One more record, the start included."""
        ...

    def end(self, status: Status) -> None:
        """The run is over; RUNNING when it was interrupted."""
        ...


class CSVFile:
    """One line a record, flushed at once; empty where a record has no value.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = CSVFile(Path(folder) / "history.csv")
    ...     file.begin(History(), budget=10)
    ...     file.end(Status.WORK_SPENT)
    ...     print(file.path.read_text().split(",")[:3])
    ['iteration', 'loss', 'misfit']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, history: History, budget: float) -> None:
        """Write the header and what there is."""
        self._file = open(self.path, "w", newline="", buffering=1)  # noqa: SIM115 - closed in `end`
        self._writer = csv.writer(self._file)
        self._writer.writerow(FIELDS)
        for record in history:
            self.record(record)

    def record(self, record: Record) -> None:
        """Write a line."""
        self._writer.writerow([getattr(record, name) for name in FIELDS])

    def end(self, status: Status) -> None:
        """Close the file."""
        self._file.close()


class JSONLines:
    """One JSON object a line, flushed at once.

    >>> import tempfile
    >>> start = Record(0, 0.5, 0.4, None, None, None, None, True, work=1.0, seconds=0.1, inner_seconds=0.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = JSONLines(Path(folder) / "history.jsonl")
    ...     file.begin(History([start]), budget=10)
    ...     file.end(Status.WORK_SPENT)
    ...     print(json.loads(file.path.read_text())["loss"])
    0.5
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, history: History, budget: float) -> None:
        """Write what there is."""
        self._file = open(self.path, "w", buffering=1)  # noqa: SIM115 - closed in `end`
        for record in history:
            self.record(record)

    def record(self, record: Record) -> None:
        """Write a line."""
        self._file.write(json.dumps(record.to_dict()) + "\n")

    def end(self, status: Status) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Every number of a record as a scalar against the iteration, for the TensorBoard viewer.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = TensorBoard(folder)
    ...     board.end(Status.WORK_SPENT)
    ...     print(len(list(Path(folder).iterdir())), "event file")
    1 event file
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard needs tensorboard: pip install 'gnvpro[tensorboard]'") from error
        self._writer: Any = SummaryWriter(str(directory))

    def begin(self, history: History, budget: float) -> None:
        """What came before was written before."""

    def record(self, record: Record) -> None:
        """Write the numbers that the record has."""
        for name, value in record.to_dict().items():
            if isinstance(value, float | int) and name not in ("iteration", "work"):
                self._writer.add_scalar(name, value, global_step=record.iteration, walltime=None)

    def end(self, status: Status) -> None:
        """Close the files."""
        self._writer.close()


class Lines:
    """A line of text an iteration: for logs, and terminals without rich.

    >>> Lines(sys.stdout).end(Status.WORK_SPENT)
    The work budget is spent.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def begin(self, history: History, budget: float) -> None:
        """Nothing to say yet."""

    def record(self, record: Record) -> None:
        """Print the line."""
        print(line(record), file=self._stream, flush=True)

    def end(self, status: Status) -> None:
        """Say how it ended."""
        print(status, file=self._stream, flush=True)


class Bar:
    """A progress bar on the terminal: work done, loss, validation, radius, time left.

    `train(..., listeners="progress")` shows it; as a listener it can stand beside others.

    >>> isinstance(Bar(), Listener)
    True
    """

    def begin(self, history: History, budget: float) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} WU"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("train", total=max(budget, 1.0), numbers="")
        self._progress.start()
        if history:
            self.record(history[-1])

    def record(self, record: Record) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=record.work, numbers=numbers(record))

    def end(self, status: Status) -> None:
        """Leave the last state standing, and say how it ended."""
        self._progress.stop()
        self._progress.console.print(str(status))


def progress_listener() -> Listener:
    """A bar where there is a terminal and rich is installed, else lines."""
    if not sys.stderr.isatty():
        return Lines()
    try:
        import rich  # noqa: F401
    except ImportError:
        return Lines()
    return Bar()


def numbers(record: Record) -> str:
    """The numbers that one watches."""
    parts = [f"loss {record.loss:.3e}"]
    if record.validation_loss is not None:
        parts.append(f"validation {record.validation_loss:.3e}")
    if record.validation_accuracy is not None:
        parts.append(f"{100 * record.validation_accuracy:.2f} %")
    if record.radius is not None:
        parts.append(f"radius {record.radius:.1e}")
    elif record.damping is not None:
        parts.append(f"damping {record.damping:.1e}")
    return "  ".join(parts)


def line(record: Record) -> str:
    """One record in one line."""
    rank = "" if record.rank is None else f"  rank {record.rank}"
    verdict = "" if record.accepted else "  rejected"
    note = f"  ({record.note})" if record.note else ""
    return (
        f"{record.iteration:5d}  {numbers(record)}{rank}{verdict}  work {record.work:.4g}  {record.seconds:.1f} s{note}"
    )


class _Function:
    """A function of one record."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def begin(self, history: History, budget: float) -> None:
        """Nothing to do."""

    def record(self, record: Record) -> None:
        """Call the function."""
        self._function(record)

    def end(self, status: Status) -> None:
        """Nothing to do."""


def as_listener(value: Any) -> Listener:
    """A listener from "progress", a function of one record, or a listener."""
    if value == "progress":
        return progress_listener()
    if not isinstance(value, type):
        if isinstance(value, Listener):
            return value
        if callable(value):
            return _Function(value)
    raise TypeError(f"listeners must be 'progress', functions of one record or objects such as CSVFile, got {value!r}")
