"""Checkpoints: the complete state of a run in one file, which survives a kill at any moment.

    MAGIC  <sha256 of the rest>\n  <tensors, numbers and strings, by torch.save>

The content goes to a temporary file, which then replaces the old one in one step. Reading checks the sum, and loads
with `weights_only=True`, so nothing in the file is ever executed. `gnvpro.training.fingerprint` identifies the run.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnvpro.arguments import check_count, check_number
from gnvpro.files import content_hash, regular_file, replacing


@dataclass(frozen=True)
class Checkpoint:
    """A file to which the state of a run is written, so that it can be resumed.

    Args:
        path: the file.
        every: iterations between two checkpoints; one is also written on interruption.
        longest: seconds after which one is written however few iterations were taken.
        share: largest share of the time that writing may take.

    >>> Checkpoint("run.checkpoint").every
    5
    """

    path: str | Path
    every: int = 5
    longest: float = 30.0
    share: float = 0.05

    def __post_init__(self) -> None:
        check_count("Checkpoint: every", self.every, 1)
        check_number("Checkpoint: longest", self.longest, 0.0)
        check_number("Checkpoint: share", self.share, 0.0, strict=True)
        check_writable(Path(self.path))


def path_of(checkpoint: str | Path | Checkpoint | None) -> Path | None:
    """Return the file of a checkpoint."""
    if checkpoint is None:
        return None
    return Path(checkpoint.path if isinstance(checkpoint, Checkpoint) else checkpoint)


def as_checkpoint(checkpoint: str | Path | Checkpoint | None) -> Checkpoint | None:
    """Return a path as a checkpoint with its defaults."""
    return checkpoint if checkpoint is None or isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


NUMBERS = {"memory", "sample_passes", "inner_seconds", "seconds"}
MAGIC = b"gnvpro checkpoint 5\n"


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content in one step; raise a ValueError if `path` is no ordinary file."""
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    payload = buffer.getvalue()
    try:
        with replacing(path) as file:
            file.write(MAGIC + content_hash([payload]).encode() + b"\n" + payload)
    except OSError as error:
        text = f"checkpoint {str(path)!r} cannot be written: {error.strerror or error}; what was there before is kept"
        raise OSError(error.errno, text, str(path)) from error


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; raise a ValueError if the file is none, or incomplete."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise ValueError(
            f"checkpoint {str(path)!r} was not written by this version of gnvpro; remove it or name another file"
        )
    checksum, _, payload = data[len(MAGIC) :].partition(b"\n")
    if content_hash([payload]).encode() != checksum:
        raise ValueError(
            f"checkpoint {str(path)!r} is damaged (its checksum does not match); remove it to start afresh"
        )
    try:
        content = torch.load(io.BytesIO(payload), weights_only=True)
    except Exception as error:  # torch does not document which ones it raises
        raise ValueError(f"checkpoint {str(path)!r} holds what gnvpro does not write: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint {str(path)!r} holds a {type(content).__name__}; remove it to start afresh")
    for key in NUMBERS & content.keys():
        if type(content[key]) not in (int, float):
            raise ValueError(f"checkpoint {str(path)!r} holds no number as its {key!r}; remove it to start afresh")
    return content


@contextmanager
def taken_up(path: Path, model: nn.Module, taking_up: Callable[[], bool]) -> Iterator[None]:
    """Add the file name to any error while a run resumes from a checkpoint, and leave the model unchanged.

    A matching checksum shows that the file is complete, not that gnvpro wrote it.
    """
    before = [(p, p.detach().clone()) for p in model.parameters()]
    try:
        yield
    except Exception as error:
        if not taking_up():
            raise
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)
        if isinstance(error, ValueError | TypeError) and str(error).startswith("checkpoint"):
            raise
        raise ValueError(
            f"checkpoint {str(path)!r} does not hold what gnvpro writes ({type(error).__name__}: {error}); "
            "remove it to start afresh"
        ) from error


def check_writable(path: Path) -> None:
    """Check before any work that a checkpoint can be written there."""
    regular_file(path, "checkpoint")
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint={str(path)!r}: there is no directory {str(path.parent)!r}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"checkpoint={str(path)!r}: the directory {str(path.parent)!r} cannot be written to")


def check_same_run(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise an error for the checkpoint of another model, other data or other settings, naming the difference."""
    for key, now in current.items():
        then = saved.get(key)
        if then != now:
            raise ValueError(
                f"checkpoint {str(path)!r} is of another run: {key} was {_shown(then, now)}, now it is {_shown(now, then)}; "
                "resume with the call that wrote it, or remove the file to start afresh"
            )


def _shown(value: Any, other: Any) -> str:
    """Return a value, or the part of a long one that differs from the other."""
    text, against = (v if isinstance(v, str) else json.dumps(v) for v in (value, other))
    if len(text) <= 120:
        return text
    same = next((i for i, (a, b) in enumerate(zip(text, against, strict=False)) if a != b), len(text))
    first = max(0, min(same - 60, len(text) - 110))
    return ("..." if first else "") + text[first : first + 110] + ("..." if first + 110 < len(text) else "")
