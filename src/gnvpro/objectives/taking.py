"""The samples of a call: held in memory, or a source that every pass reads again."""

from __future__ import annotations

from typing import Any

import torch

from gnvpro.processes import Processes
from gnvpro.samples.held import held
from gnvpro.samples.source import Samples
from gnvpro.samples.sources import as_stream


def take_samples(
    processes: Processes, given: tuple[str, Any, Any, Any], same: bool, most: float, device: torch.device
) -> tuple[Samples | None, Any, Any, Any]:
    """Return a source that is not held in memory, or None, and inputs, targets and weights as given or read.

    `given` is what they are called in messages, inputs, targets and weights; `same`: every pass needs the same samples. All
    processes hold theirs, in at most this many bytes each, or none does.
    """
    name, inputs, targets, weights = given
    with processes.together():
        source = as_stream(name, inputs, targets, weights, same)
        part = held(source, most) if source is not None and same else None
    fits = processes.all(source is None or part is not None)
    if source is None or part is None or not fits:
        return source, inputs, targets, weights
    part = part.to(device)
    return None, part.inputs, part.targets, part.weights
