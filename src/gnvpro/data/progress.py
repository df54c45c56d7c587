"""Listeners to a long simulation: a bar with the time left on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO


class Listener(Protocol):
    """Told once what is to come, then every advance; notes are for things worth reading."""

    def start(self, name: str, total: int, finished: int) -> None:
        """The work begins, `finished` of `total` samples being there already."""

    def advance(self, samples: int) -> None:
        """So many more samples are finished."""

    def note(self, text: str) -> None:
        """Something the user should know."""


class Silent:
    """Says nothing."""

    def start(self, name: str, total: int, finished: int) -> None:
        """Ignore."""

    def advance(self, samples: int) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""


class PlainLines:
    """A line every few seconds, for logs."""

    def __init__(self, stream: TextIO, every: float = 10.0) -> None:
        self.stream, self.every = stream, every

    def start(self, name: str, total: int, finished: int) -> None:
        """Remember where and when it began."""
        self.name, self.total, self.finished, self.new = name, total, finished, 0
        self.began = self.spoke = time.monotonic()
        self.note(f"{name}: {total - finished} of {total} samples to simulate")

    def advance(self, samples: int) -> None:
        """Say how far it is and how long it will take, if it is time to."""
        self.new += samples
        done, now = self.finished + self.new, time.monotonic()
        if now - self.spoke >= self.every or done == self.total:
            self.spoke = now
            left = (now - self.began) / self.new * (self.total - done)
            self.note(f"{self.name}: {done} of {self.total} samples, {duration(left)} left")

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=self.stream, flush=True)


class Bar:
    """A rich progress bar with the time left."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self.progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            # the rate over the last minutes, so that a resumed run is not credited with what it found
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            speed_estimate_period=120,
        )

    def start(self, name: str, total: int, finished: int) -> None:
        """Show the bar."""
        self.task = self.progress.add_task(name, total=total, completed=finished)

    def advance(self, samples: int) -> None:
        """Move it."""
        self.progress.update(self.task, advance=samples)

    def note(self, text: str) -> None:
        """Print above it."""
        self.progress.console.print(text, highlight=False)


@contextmanager
def listening(wanted: bool) -> Iterator[Listener]:
    """The listener that suits where standard error goes."""
    if not wanted:
        yield Silent()
    elif not sys.stderr.isatty():
        yield PlainLines(sys.stderr)
    else:
        try:
            bar = Bar()
        except ModuleNotFoundError:
            yield PlainLines(sys.stderr)
            return
        with bar.progress:
            yield bar


def duration(seconds: float) -> str:
    """Seconds for people: 7 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
