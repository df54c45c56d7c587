"""Sums over samples of which each of several processes holds a part (see `gnvpro.processes`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.linalg.sums import SampleSum
from gnvpro.processes import Processes


@dataclass(frozen=True)
class ProcessSum(SampleSum):
    """Adds up over the samples of all processes of a group."""

    group: Processes
    samples: int = 0  # of all processes together

    @property
    def processes(self) -> Processes:
        """The group."""
        return self.group

    def count(self, at_hand: int) -> int:
        """The samples of all processes."""
        return self.samples

    def of_samples(self, count: int) -> SampleSum:
        """The same for a batch."""
        return replace(self, samples=count)

    def largest(self, at_hand: float) -> float:
        """The largest of all processes."""
        return self.group.largest(at_hand)

    def total(self, part: Tensor) -> Tensor:
        """The sum over the processes."""
        return self.group.total(part)

    def totals(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Several sums in one message."""
        if len(parts) == 1:
            return (self.total(parts[0]),)
        whole = self.total(torch.cat([part.reshape(-1) for part in parts]))
        pieces = whole.split([part.numel() for part in parts])
        return tuple(piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True))

    def triangle(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the processes, stacked."""
        return self.group.triangle(*super().triangle(A, B))


def sum_over(processes: Processes) -> SampleSum:
    """Sums over the samples of these processes."""
    return SampleSum() if processes.alone else ProcessSum(processes)
