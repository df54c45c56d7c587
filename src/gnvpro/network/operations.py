"""Operations of a forward pass: tensor operations, multiplications and numbers, counted on a few samples.

A count is the same on every machine, busy or not, so decisions can be based on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnvpro.samples.several import Batch

CONTRACTED = {
    "mm": 0,
    "bmm": 0,
    "addmm": 1,
    "baddbmm": 1,
}  # matrix products, and the argument with the inner dimension


@dataclass
class Operations:
    """Number of operations of a forward pass, and their work per sample."""

    calls: int = 0
    products: float = 0.0  # multiplications, each with an addition
    numbers: float = 0.0  # numbers returned


def count_operations(run: Callable[[Any], object], few: Batch) -> Operations:
    """Count the operations of a computation per sample, from a few samples."""
    counts = []
    for size in sorted({min(1, len(few)), len(few)}):
        with _Counting() as counting:
            run(few[:size])
        counts.append(counting.found)
    less, more = counts if len(counts) == 2 else (Operations(), counts[0])
    added = max(1, len(few) - (len(counts) == 2))
    return Operations(more.calls, (more.products - less.products) / added, (more.numbers - less.numbers) / added)


class _Counting(TorchDispatchMode):
    """Counts the operations within a block."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Operations()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler, which takes a second and a half."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not getattr(func, "is_view", False):
            name = func.overloadpacket.__name__
            self.found.calls += 1
            self.found.numbers += result.numel()
            if name in CONTRACTED:
                self.found.products += result.numel() * args[CONTRACTED[name]].shape[-1]
            elif "convolution" in name:
                self.found.products += result.numel() * math.prod(args[1].shape[1:])
        return result
