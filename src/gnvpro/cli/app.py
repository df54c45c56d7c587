"""Parts shared by all commands: the application, its version, and errors in one line."""

from __future__ import annotations

import platform
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

import gnvpro

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train networks that end in a linear layer by eliminating that layer.",
    epilog="A model of a table: gnvpro train data.csv --target y. The paper's experiments: gnvpro list.",
)
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets are kept; else GNVPRO_DATA, else the user's cache.")
]

LONGEST_WORD, LONGEST_LINE = 400, 2000  # characters of an error; paths are shorter


def show_version(asked: bool) -> None:
    """Print the versions and end."""
    if asked:
        typer.echo(f"gnvpro {gnvpro.__version__} (torch {version('torch')}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train networks that end in a linear layer by eliminating that layer."""


def check_files(*paths: Path) -> None:
    """Raise for a file that is not there, before libraries are imported that take seconds."""
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}; check its name")


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: after its checkpoint."""


def one_line(text: str) -> str:
    """Return a message on one line; cells and names in it may have line breaks or thousands of characters.

    >>> one_line("column 'a' holds '1" + chr(10) + "2'")
    "column 'a' holds '1 2'"
    """
    words = (f"{word[:60]}..." if len(word) > LONGEST_WORD else word for word in text.split())
    line = " ".join(words)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors and warnings in one line each; end with the customary status after Ctrl-C and SIGTERM."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: typer.echo(f"gnvpro: warning: {message}", err=True)
            yield
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        typer.echo(f"gnvpro: {one_line(text)}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interrupt:
        typer.echo(f"gnvpro: {str(interrupt) or 'interrupted'}", err=True)
        raise typer.Exit(128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
