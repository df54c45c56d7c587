"""Points of which each of several processes carries a part.

    points   x_1 ... x_n in contiguous parts, one for each process
    jet      H = [H_1 ... H_P]            each carries its own points; everybody receives all of H
    rows     J = [J_1; ...; J_P]          likewise, one backward pass of each over its own points

What is made of the rows - factors, steps, decisions - is made by every process again, from the same bits. So sharing pays
where the network's passes are the larger part of an iteration, not its linear algebra, and a message has the size of the
rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.pde.carry import Carrier, Params, Pass
from gnvpro.pde.jets import Channels
from gnvpro.processes import Processes

FEWEST_POINTS = 2  # for each process; a pass over fewer points is everybody's own


@dataclass(frozen=True)
class SharedCarrier:
    """A carrier that runs on a part of the points."""

    carrier: Carrier
    processes: Processes

    def run(self, params: Params, points: Tensor, channels: Channels) -> Pass:
        """The jet of all points, of which each process has carried a part."""
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
    """The jet of all points, and a pass over one's own."""

    jet: Tensor
    done: Pass
    own: slice
    counts: list[int]
    processes: Processes

    def jacobian(self, G: Tensor) -> Tensor:
        """Everybody's rows."""
        return self.processes.rows(self.done.jacobian(G[:, self.own]), self.counts)

    def gradient(self, G: Tensor) -> Tensor:
        """The sum of everybody's rows."""
        return self.processes.total(self.done.gradient(G[:, self.own]))
