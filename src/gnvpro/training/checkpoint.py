"""Checkpoints: a run's whole state in one file, written so that a kill at any moment leaves a whole one behind.

    gnvpro checkpoint 1\\n  <sha256 of the rest>\\n  <tensors, numbers and strings, by torch.save>

Writing goes to a file beside it, which then takes its place in one step. Reading checks the sum, and loads with
`weights_only=True`: nothing in the file is ever executed. The fingerprint tells whose run it is; resuming another one
is refused with the first thing that differs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.files import replacing

MAGIC = b"gnvpro checkpoint 1\n"


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content, whole or not at all; a ValueError where `path` is no ordinary file."""
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    payload = buffer.getvalue()
    with replacing(path) as file:
        file.write(MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; a file that is not one, or not a whole one, is a ValueError."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise ValueError(
            f"checkpoint {str(path)!r} was not written by this version of gnvpro; remove it or name another file"
        )
    checksum, _, payload = data[len(MAGIC) :].partition(b"\n")
    if hashlib.sha256(payload).hexdigest().encode() != checksum:
        raise ValueError(
            f"checkpoint {str(path)!r} is damaged (its checksum does not match); remove it to start afresh"
        )
    try:
        return torch.load(io.BytesIO(payload), weights_only=True)
    except Exception as error:  # torch does not say which ones it raises
        raise ValueError(f"checkpoint {str(path)!r} holds what gnvpro does not write: {error}") from None


def check_writable(path: Path) -> None:
    """Find out before any work whether a checkpoint can be written there."""
    if path.is_dir():
        raise ValueError(f"checkpoint={str(path)!r} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint={str(path)!r}: there is no directory {str(path.parent)!r}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"checkpoint={str(path)!r}: the directory {str(path.parent)!r} cannot be written to")


def check_same_run(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse the checkpoint of another model, other data or other settings, saying what differs."""
    for key, now in current.items():
        then = saved.get(key)
        if then != now:
            raise ValueError(
                f"checkpoint {str(path)!r} is of another run: {key} was {_shown(then)}, now it is {_shown(now)}; "
                "resume with the call that wrote it, or remove the file to start afresh"
            )


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def fingerprint(model: nn.Module, tensors: Mapping[str, Tensor | None], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run this run: the model's anatomy and frozen values, the data, the settings; not theta."""
    anatomy = {
        f"model parameter {name}": f"{tuple(p.shape)} {p.dtype} {'trained' if p.requires_grad else 'frozen'}"
        for name, p in model.named_parameters()
    }
    frozen = [p for p in model.parameters() if not p.requires_grad]
    digests = {name: _digest([tensor] if tensor is not None else []) for name, tensor in tensors.items()}
    return {
        "model class": type(model).__name__,
        "model text": repr(model),
        **anatomy,
        "model's frozen values": _digest([*frozen, *model.buffers()]),
        **digests,
        **settings,
    }


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def copied(state: Any) -> Any:
    """A deep copy of nested dictionaries and lists of tensors and numbers, so that later steps do not write into it."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state
