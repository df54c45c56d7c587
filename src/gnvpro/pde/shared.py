"""Points that several processes share.

    points   x_1 ... x_n in contiguous parts, one for each process
    jet      H = [H_1 ... H_P]            each process carries its own points; all receive the whole of H
    rows     J = [J_1; ...; J_P]          the same, with one backward pass of each process over its own points

Every process repeats the computations with the rows - factors, steps, decisions - from the same bits. So sharing
pays if the network's passes take more of an iteration than its linear algebra. A message has the size of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.pde.carry import Carrier, Params, Pass
from gnvpro.pde.jets import Channels
from gnvpro.processes import Processes

FEWEST_POINTS = 2  # per process; with fewer points every process runs the whole pass


@dataclass(frozen=True)
class SharedCarrier:
    """A carrier that runs on a part of the points."""

    carrier: Carrier
    processes: Processes

    def run(self, params: Params, points: Tensor, channels: Channels) -> Pass:
        """Return the jet of all points, a part of it from each process."""
        size, rank = self.processes.size, self.processes.rank
        if len(points) < FEWEST_POINTS * size:
            return self.carrier.run(params, points, channels)
        counts = [len(part) for part in torch.arange(len(points)).tensor_split(size)]
        first = sum(counts[:rank])
        own = slice(first, first + counts[rank])
        done = self.carrier.run(params, points[own], channels)
        jet = self.processes.rows(done.jet.transpose(0, 1), counts).transpose(0, 1).contiguous()
        return SharedPass(jet, done, own, counts, self.processes)


@dataclass(frozen=True)
class SharedPass:
    """The jet of all points, and a pass over the local ones."""

    jet: Tensor
    done: Pass
    own: slice
    counts: list[int]
    processes: Processes

    def jacobian(self, G: Tensor) -> Tensor:
        """Return the rows of all processes."""
        return self.processes.rows(self.done.jacobian(G[:, self.own]), self.counts)

    def gradient(self, G: Tensor) -> Tensor:
        """Return the sum of the rows of all processes."""
        return self.processes.total(self.done.gradient(G[:, self.own]))
