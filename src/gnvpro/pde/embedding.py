"""A first layer without parameters that makes every function of it periodic in some coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Periodic(nn.Module):
    """x -> sin and cos of 2 pi k x_a / period, k = 1, ..., harmonics, for periodic coordinates a; others are unchanged.

    Args:
        n_inputs: coordinates of a point.
        periods: the period of each periodic coordinate, by axis.
        harmonics: number of multiples of the lowest frequency.

    >>> Periodic(2, {1: 2.0})(torch.tensor([[0.5, 1.5]], dtype=torch.float64)).round(decimals=9).abs().tolist()
    [[0.5, 1.0, 0.0]]
    """

    matrix: Tensor
    shift: Tensor

    def __init__(self, n_inputs: int, periods: Mapping[int, float], harmonics: int = 1) -> None:
        super().__init__()
        if any(not 0 <= axis < n_inputs for axis in periods):
            raise ValueError(f"periods name axes {sorted(periods)}, but points have {n_inputs} coordinates")
        if harmonics < 1 or any(not period > 0 for period in periods.values()):
            raise ValueError(f"periods must be positive and harmonics at least 1, got {dict(periods)} and {harmonics}")
        straight = [axis for axis in range(n_inputs) if axis not in periods]
        waves = [
            (axis, 2 * math.pi * k / period, shift)
            for axis, period in sorted(periods.items())
            for k in range(1, harmonics + 1)
            for shift in (0.0, math.pi / 2)
        ]
        matrix = torch.zeros(len(straight) + len(waves), n_inputs, dtype=torch.float64)
        shifts = torch.zeros(len(matrix), dtype=torch.float64)
        for row, axis in enumerate(straight):
            matrix[row, axis] = 1.0
        for row, (axis, frequency, shift) in enumerate(waves, start=len(straight)):
            matrix[row, axis], shifts[row] = frequency, shift
        self.periods = dict(periods)
        self.n_inputs, self.n_straight, self.n_features = n_inputs, len(straight), len(matrix)
        self.register_buffer("matrix", matrix)
        self.register_buffer("shift", shifts)

    def forward(self, points: Tensor) -> Tensor:
        """Return the coordinates that are not periodic, then the waves."""
        phases = points @ self.matrix.T + self.shift
        return torch.cat([phases[..., : self.n_straight], torch.sin(phases[..., self.n_straight :])], -1)

    def phases(self, H: Tensor) -> Tensor:
        """Return the jet of the arguments of the sines."""
        out = H @ self.matrix.T
        out[0] += self.shift
        return out

    def derivatives(self, x: Tensor, order: int) -> list[Tensor]:
        """Differentiate the identity for the first units and the sine for the others."""
        straight, waves = x[..., : self.n_straight], x[..., self.n_straight :]
        s, c = torch.sin(waves), torch.cos(waves)
        made = []
        for k in range(order + 1):
            line = straight if k == 0 else torch.full_like(straight, 1.0 if k == 1 else 0.0)
            made.append(torch.cat([line, (s, c, -s, -c)[k % 4]], -1))
        return made
