"""Progress of a long piece of work: a rich bar if standard error is a terminal, else lines of text."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

WORDS = ("experiment", "what", "method", "model")  # columns of text


class Display:
    """Shows the progress of one piece of work, until it is closed.

    Args:
        name, unit: what is done, counted in what.
        stream: print lines there; left out, a bar on the terminal if rich is installed, else lines on standard error.
        seconds_between: shortest time between two lines; the final line is always printed.
        vanishes: whether the bar is removed when it is closed.

    >>> display = Display("cdr", "samples", sys.stdout)
    >>> display.start(total=3, done=1)
    >>> display.update(3)
    cdr: 3 of 3 samples, 0 s left
    """

    def __init__(
        self,
        name: str,
        unit: str,
        stream: TextIO | None = None,
        seconds_between: float = 0.0,
        vanishes: bool = False,
    ) -> None:
        self.name, self.unit, self.seconds_between = name, unit, seconds_between
        self.stream = stream or sys.stderr
        self.bar = _rich_bar(vanishes) if stream is None and sys.stderr.isatty() else None

    def start(self, total: float | None, done: float = 0) -> None:
        """Begin to count, with `done` of `total` there already (None: no limit); show the bar."""
        self.total, self.first = math.inf if total is None else total, done
        self.started = self.printed = time.monotonic()
        if self.bar is not None:
            most = "" if total is None else f"/{total:.0f}"
            left = "" if total is None else "left"
            self.task = self.bar.add_task(
                self.name, total=total, completed=done, unit=self.unit, most=most, text="", left=left
            )
            self.bar.start()

    def update(self, done: float, text: str = "", line: str = "") -> None:
        """Move the bar and show `text` next to it, or print `line` (default: how much is done, and the time left)."""
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update(self.task, completed=done, text=text)
        elif now - self.printed >= self.seconds_between or done >= self.total:
            self.printed = now
            left = (now - self.started) / max(done - self.first, 1e-9) * (self.total - done)
            self.note(line or f"{self.name}: {done:g} of {self.total:g} {self.unit}, {duration(left)} left")

    def note(self, text: str) -> None:
        """Print something worth reading; above the bar while it moves."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the last state of the bar standing."""
        if self.bar is not None:
            self.bar.stop()


def _rich_bar(vanishes: bool) -> Any:
    try:
        from rich import progress
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:.0f}{task.fields[most]} {task.fields[unit]}"),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}"),
        # the rate over the last minutes, so that a resumed run is not credited with what it found
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=vanishes,
        speed_estimate_period=120,
    )


def duration(seconds: float) -> str:
    """Seconds for people: 7 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> None:
    """Print a table on standard output; the columns named in `words`, and the usual ones, are aligned to the left."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in (*WORDS, *words) else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    if not console.is_terminal:
        console.width = 140  # in a log a table is not squeezed
    console.print(table)
