"""Agreement of the processes of a run: on its settings before any work, and on its state after every iteration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gnvpro.files import content_hash
from gnvpro.processes import Processes
from gnvpro.tensor_file import bytes_of
from gnvpro.training.fingerprint import describe
from gnvpro.training.history import Record


def check_settings(processes: Processes, settings: Mapping[str, Any]) -> None:
    """Raise an error everywhere if a process was called with other settings."""
    if not processes.alone:
        processes.check_same({name: _described(name, value) for name, value in settings.items()})


def _described(name: str, value: Any) -> str:
    try:
        return describe(name, value)
    except TypeError:  # an object without a usable repr: compare its class
        return f"{type(value).__module__}.{type(value).__qualname__}"


def agreed(processes: Processes, record: Record, theta: Tensor, W: Tensor) -> Record:
    """Return the record with the first process's clock; raise an error that names processes with another state."""
    timeless = dataclasses.replace(record, seconds=0.0, inner_seconds=0.0)
    checksum = int(content_hash([json.dumps(timeless.to_dict()), bytes_of(theta), bytes_of(W)])[:8], 16)
    everyone = processes.gather([checksum, record.seconds, record.inner_seconds])
    processes.check_sums(everyone[:, 0].tolist())
    seconds, inner = everyone[0, 1:].tolist()
    return dataclasses.replace(record, seconds=seconds, inner_seconds=inner)
