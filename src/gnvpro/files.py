"""Files that are written whole or not at all.

The content goes to a temporary file in the folder of its target, reaches the disk, and takes the target's place in one step: a
kill or a full disk at any moment leaves the old file, or none, and never a part of the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# of every run that the command line writes; the metrics come last, so that a directory which has them is whole
CONFIG, HISTORY, MODEL, METRICS = "config.json", "history.csv", "model.safetensors", "metrics.json"
MAX_CONFIG_BYTES = 10_000_000


def content_hash(parts: Iterable[str | bytes | memoryview]) -> str:
    """Return the SHA-256 of these parts, one after the other, in hexadecimal digits.

    >>> content_hash(["a", b"b"])[:8]
    'fb8e20fc'
    """
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() if isinstance(part, str) else part)
    return total.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write; it replaces `path` when the block ends, and is dropped when the block raises.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "notes.txt") as file:
    ...         _ = file.write(b"whole")
    ...     print([(path.name, path.read_text()) for path in Path(folder).iterdir()])
    [('notes.txt', 'whole')]
    """
    target = regular_file(path)
    # a random name: processes (also of other machines) and threads that write the same target do not meet
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or str(target)  # a failed write does not name its file
        raise


def regular_file(path: Path, argument: str = "path") -> Path:
    """The file that `path` names, symbolic links followed; it need not exist yet.

    Raises:
        ValueError: `path` is a directory, a FIFO, a device or a socket. The message names the argument.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise ValueError(f"{argument}={str(path)!r} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{argument}={str(path)!r} is a FIFO, a device or a socket; name an ordinary file")
    return target


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ValueError: the file holds none.
    """
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it or choose another --out") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} should hold a JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file in one step."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def kind_of_run(path: Path) -> str | None:
    """Return the kind that a configuration names, "equation" or "table"; None if it names none."""
    try:
        small = (
            path.is_file() and path.stat().st_size <= MAX_CONFIG_BYTES
        )  # nothing that would never end, such as a FIFO
        found = read_json(path).get("kind") if small else None
    except (ValueError, OSError, RecursionError):
        return None
    return found if found in ("equation", "table") else None
