"""Listeners: objects that watch a run. Each gets every record; none can change the run.

To write one, implement the three methods of `Listener`. `begin` gets the earlier records of a resumed run, so a
listener that writes a file can write all of it. If you need only the records, pass a function of one record instead.

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
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO, runtime_checkable

from gnvpro.extras import how_to_get
from gnvpro.minimize.status import Status
from gnvpro.progress import Display
from gnvpro.training.history import History, Record, columns_of, row_of


@runtime_checkable
class Listener(Protocol):
    """Gets every record of a run.

    >>> isinstance(Progress(), Listener)
    True

    Args of its methods:
        history: the records made before, if the run is resumed.
        budget: limit of work units; infinite if there is none.
        record: the new `Record`.
        status: why the run ended; RUNNING if it was interrupted.
    """

    def begin(self, history: History, budget: float) -> None:
        """The run starts, or continues after these records; `budget` is its limit of work units, infinity for none."""

    def record(self, record: Record) -> None:
        """Called with each new record, the first included."""

    def end(self, status: Status) -> None:
        """The run has ended; RUNNING if it was interrupted."""


class CSVFile:
    """A CSV file, one line per record, flushed at once; a missing value is an empty cell.

    Args:
        path: the file.

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
        """Write the records so far."""
        self._file = open(self.path, "w", newline="", buffering=1)  # noqa: SIM115 - closed in `end`
        self._writer = csv.writer(self._file)
        self._header_due = True
        for record in history:
            self.record(record)

    def record(self, record: Record) -> None:
        """Write a line; the header precedes the first one, with the metrics as its last columns."""
        self._write_header(record)
        self._writer.writerow(row_of(record))

    def _write_header(self, record: Record | None) -> None:
        if self._header_due:
            self._writer.writerow(columns_of(record))
        self._header_due = False

    def end(self, status: Status) -> None:
        """Close the file."""
        self._write_header(None)
        self._file.close()


class JSONLines:
    """A file with one JSON object per line and record, flushed at once.

    Args:
        path: the file.

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
        """Write the records so far."""
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

    Args:
        directory: where the event file is written.

    Raises:
        ImportError: tensorboard is not installed.

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
            raise ImportError(f"tensorboard is not installed; {how_to_get('tensorboard')}") from error
        self._writer: Any = SummaryWriter(str(directory))

    def begin(self, history: History, budget: float) -> None:
        """Do nothing: earlier records were written when they were made."""

    def record(self, record: Record) -> None:
        """Write every number of the record."""
        for name, value in (record.to_dict() | (record.metrics or {})).items():
            if isinstance(value, float | int) and name not in ("iteration", "work"):
                self._writer.add_scalar(name, value, global_step=record.iteration, walltime=None)

    def end(self, status: Status) -> None:
        """Close the files."""
        self._writer.close()


class Progress:
    """Work done, loss, validation and radius: a bar on the terminal, else a line per record.

    `train(..., listeners=["progress"])` is shorthand for it. Pass a stream to print lines to it.

    Args:
        stream: where lines are printed. Default: a bar on the terminal, else lines on standard error.

    >>> import sys
    >>> progress = Progress(sys.stdout)
    >>> progress.begin(History(), budget=10)
    >>> progress.end(Status.WORK_SPENT)
    The work budget is spent.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def begin(self, history: History, budget: float) -> None:
        """Show the bar."""
        self._display = Display("train", "WU", self._stream)
        self._display.start(max(budget, 1.0) if budget < math.inf else None, history[-1].work if history else 0.0)

    def record(self, record: Record) -> None:
        """Move the bar, or print the line."""
        self._display.update(record.work, numbers(record), line(record))

    def end(self, status: Status) -> None:
        """Leave the last state on the screen, and print the status."""
        self._display.close()
        self._display.note(str(status))


class EachRecord:
    """Calls a function with every record.

    Args:
        function: called with every `Record`.

    >>> EachRecord(print).record("a record")
    a record
    """

    def __init__(self, function: Callable[[Record], object]) -> None:
        self._function = function

    def begin(self, history: History, budget: float) -> None:
        """Do nothing."""

    def record(self, record: Record) -> None:
        """Call the function."""
        self._function(record)

    def end(self, status: Status) -> None:
        """Do nothing."""


class LateProgress:
    """A progress bar for a run that takes longer than two seconds; `train` shows it on a terminal if it has no listener.

    >>> LateProgress().end(Status.SETTLED)
    """

    after: ClassVar[float] = 2.0  # seconds

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def begin(self, history: History, budget: float) -> None:
        """Store the time of the start."""
        self._begun, self._start = time.monotonic(), (History(list(history)), budget)

    def record(self, record: Record) -> None:
        """Move the bar, or show it if it is time."""
        if self._bar is None and time.monotonic() - self._begun > self.after:
            self._bar = Progress()
            self._bar.begin(*self._start)
        if self._bar is not None:
            self._bar.record(record)

    def end(self, status: Status) -> None:
        """Leave the bar standing, if there is one."""
        if self._bar is not None:
            self._bar.end(status)


class StageProgress:
    """One stage of several: a bar that vanishes, and one line at its end. Without a terminal there is only the line.

    Args:
        name: the stage, and why there is one.
        describe: returns the error of a record in words.
        every_step: whether to print a line for every record, too.

    >>> import contextlib, io
    >>> with contextlib.redirect_stderr(io.StringIO()) as said:
    ...     stage = StageProgress("first network", lambda record: f"error {record.loss:g}")
    ...     stage.begin(History(), budget=10)
    ...     stage.record(Record(0, 0.5, 0.4, None, None, None, None, True, work=1.0, seconds=0.1, inner_seconds=0.0))
    ...     stage.end(Status.SETTLED)
    >>> print(said.getvalue().strip())
    first network: error 0.5 after 0 iterations, 0.1 s
    """

    def __init__(self, name: str, describe: Callable[[Record], str], every_step: bool = False) -> None:
        self.name, self._describe, self._every_step = name, describe, every_step
        self._last: Record | None = None

    def begin(self, history: History, budget: float) -> None:
        """Show the bar."""
        short = self.name.split(",")[0]  # leaves room for the bar
        self._display = Display(short, "iterations", seconds_between=math.inf, vanishes=True)
        self._display.start(None)
        if self._every_step:
            self._display.note(self.name)

    def record(self, record: Record) -> None:
        """Move the bar."""
        self._last = record
        self._display.update(record.iteration, self._describe(record))
        if self._every_step:
            self._display.note(line(record))

    def end(self, status: Status) -> None:
        """Replace the bar by a line."""
        self._display.close()
        if self._last is not None:
            cost = f"after {self._last.iteration} iterations, {self._last.seconds:.2g} s"
            self._display.note(f"{self.name}: {self._describe(self._last)} {cost}")


def as_listeners(listeners: str | Listener | Callable[[Record], object] | Sequence[Any]) -> list[Listener]:
    """Convert `train(listeners=...)` to listeners.

    Args:
        listeners: one or several, as `as_listener` takes them; "silent" for none; an empty sequence for a progress bar
            after two seconds if standard error is a terminal, else none.

    >>> as_listeners("silent")
    []
    """
    if isinstance(listeners, str) and listeners == "silent":
        return []
    several = list(listeners) if isinstance(listeners, Sequence) and not isinstance(listeners, str) else [listeners]
    if not several:
        return [LateProgress()] if sys.stderr.isatty() else []
    return [as_listener(each) for each in several]


def as_listener(value: Listener | Callable[[Record], object] | str) -> Listener:
    """Convert an element of `train(listeners=...)` to a listener.

    Args:
        value: an object with the three methods of `Listener`; "progress", for `Progress()`; or a function of one
            record, which is called with every record of this call of `train`, including the start.

    Raises:
        TypeError: `value` is none of these.

    >>> isinstance(as_listener(print), Listener)
    True
    """
    if value == "progress":
        return Progress()
    # a class has the methods too and is callable, so the mistake would surface only when the run starts
    if not isinstance(value, type | str):
        if isinstance(value, Listener):
            return value
        if callable(value):
            return EachRecord(value)
    raise TypeError(
        'each of listeners must be an object with the methods begin, record and end, the string "progress", or a '
        f'function of one record; got {value!r} (listeners="silent" shows nothing)'
    )


def numbers(record: Record) -> str:
    """Format loss, validation, and the bound of the step: a radius, a damping or a learning rate."""
    parts = [f"loss {record.loss:.3e}"]
    if record.validation_loss is not None:
        parts.append(f"validation {record.validation_loss:.3e}")
    if record.validation_accuracy is not None:
        parts.append(f"{100 * record.validation_accuracy:.2f} %")
    parts += [f"{name} {value:.4g}" for name, value in (record.metrics or {}).items()]
    if record.radius is not None:
        parts.append(f"radius {record.radius:.1e}")
    elif record.damping is not None:
        parts.append(f"damping {record.damping:.1e}")
    elif record.learning_rate is not None:
        parts.append(f"learning rate {record.learning_rate:.1e}")
    return "  ".join(parts)


def line(record: Record) -> str:
    """Format one record as one line."""
    rank = "" if record.rank is None else f"  rank {record.rank}"
    verdict = "" if record.accepted else "  rejected"
    note = f"  ({record.note})" if record.note else ""
    return (
        f"{record.iteration:5d}  {numbers(record)}{rank}{verdict}  work {record.work:.4g}  {record.seconds:.1f} s{note}"
    )
