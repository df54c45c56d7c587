"""Many outputs in a basis of few: the directions in which the outputs of the samples vary.

Y = mean + Z V' + rest        Z components, each with its own kernel model; rest is added to the variance
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.surrogate.candidates import Sampled

FEW_OUTPUTS = 8  # that have kernel models of their own
KEPT, MOST_COMPONENTS = 1e-10, 40  # part of the variance that components may leave out; their number


@dataclass(frozen=True)
class OutputBasis:
    """The mean of the outputs, directions in columns, and the variance that they leave."""

    mean: Tensor
    directions: Tensor
    rest: Tensor

    @classmethod
    def of(cls, y: Tensor) -> OutputBasis | None:
        """Return the basis of outputs, or None for few outputs."""
        if y.shape[1] <= FEW_OUTPUTS:
            return None
        mean = y.mean(0)
        _, sizes, vectors = torch.linalg.svd(y - mean, full_matrices=False)
        left = 1 - sizes.square().cumsum(0) / sizes.square().sum().clamp_min(torch.finfo(y.dtype).tiny)
        count = min(int((left > KEPT).sum()) + 1, MOST_COMPONENTS, len(sizes))
        directions = vectors[:count].T
        rest = (y - mean) - (y - mean) @ directions @ directions.T
        return cls(mean, directions, rest.square().mean(0))

    def project(self, data: Sampled) -> Sampled:
        """Return samples of the components."""
        slopes = None if data.gradients is None else torch.einsum("nmd,mr->nrd", data.gradients, self.directions)
        return replace(data, y=(data.y - self.mean) @ self.directions, gradients=slopes)

    def combined(self, components: Sequence[Tensor], values: bool) -> Tensor:
        """Return outputs, or their derivatives, from components: (points, outputs, ...)."""
        found = torch.einsum("pr...,mr->pm...", torch.stack(list(components), 1), self.directions)
        return found + self.mean if values else found

    def spread(self, components: Sequence[Tensor], values: bool) -> Tensor:
        """Return standard deviations of outputs, or of their derivatives, from components, which count as independent."""
        squares = torch.stack([each.square() for each in components], 1)
        variance = torch.einsum("pr...,mr->pm...", squares, self.directions.square())
        return (variance + self.rest).sqrt() if values else variance.sqrt()
