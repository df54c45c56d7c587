"""Tensors and a description of them in one safetensors file, with a checksum over both.

The description is JSON in the file's header. Nothing in the file is code. Reading compares the checksum first, so that a
damaged or edited file is refused instead of giving other predictions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnvpro.extras import need
from gnvpro.files import content_hash, replacing

DESCRIPTION, CHECKSUM = "gnvpro", "sha256"  # keys of the header


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write the file whole or not at all."""
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(description)
    header = {DESCRIPTION: text, CHECKSUM: checksum(plain, text)}
    content = need("safetensors.torch", "safetensors").save(plain, header)
    with replacing(path) as file:
        file.write(content)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description, empty for a file of another program, and the tensors.

    Raises:
        ValueError: the file is damaged, or no safetensors file.
    """
    try:
        with need("safetensors", "safetensors").safe_open(path, "pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:  # safetensors raises its own exception
        raise ValueError(f"{path} is no safetensors file ({error})") from error
    text = header.get(DESCRIPTION)
    if text is None:
        return {}, tensors
    if header.get(CHECKSUM) != checksum(tensors, text):
        raise ValueError(f"{path} is damaged, or was edited: its checksum is not that of its content; write it again")
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its description is no JSON ({error})") from error
    return description if isinstance(description, dict) else {}, tensors


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of the description and of every tensor's name, type, shape and bytes."""
    parts: list[str | memoryview] = [text]
    for name in sorted(tensors):
        tensor = tensors[name]
        parts += [f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0", bytes_of(tensor)]
    return content_hash(parts)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor's entries, in order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.stride(0) != 1:  # a single number that was expanded counts as contiguous for any stride
        flat = flat.new_empty(flat.shape).copy_(flat)
    return flat.view(torch.uint8).numpy().data
