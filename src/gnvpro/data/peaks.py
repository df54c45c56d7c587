"""The set of appendix A: the heights of MATLAB's `peaks` on [-3, 3]^2, cut into five bands of equal height.

    f(x, y) = 3 (1 - x)^2 e^(-x^2 - (y + 1)^2) - 10 (x/5 - x^3 - y^5) e^(-x^2 - y^2) - e^(-(x + 1)^2 - y^2) / 3

The label of a point is the band that f falls into. Points are uniform within each class, and all classes have
equally many, although the middle band covers most of the square. Drawn by a seed: 5000 / 1000 / 1000.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import Samples, Split

SIZES = (5000, 1000, 1000)
N_CLASSES = 5
LOWEST, HIGHEST = -6.5511333, 8.1062136  # values of f on the square


def load(sizes: tuple[int, int, int] = SIZES, *, seed: int = 0) -> Split:
    """Three sets drawn one after the other by the seed.

    Args:
        sizes: samples of the training, validation and test set, multiples of 5.
        seed: seed of the points.

    Returns:
        The sets, with inputs (samples, 2) and labels 0 to 4 (samples,).

    Raises:
        ValueError: a size is not a positive multiple of 5.

    >>> load((10, 5, 5)).train[1].bincount()  # equally many of each class
    tensor([2, 2, 2, 2, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    train, validation, test = (draw(samples, generator) for samples in sizes)
    return Split(train, validation, test)


def draw(samples: int, generator: torch.Generator) -> Samples:
    """Points and labels 0 to 4, lowest band first, in random order."""
    if samples < N_CLASSES or samples % N_CLASSES:
        raise ValueError(f"samples must be a multiple of {N_CLASSES}, equally many of each class, got {samples}")
    found: list[list[Tensor]] = [[] for _ in range(N_CLASSES)]
    wanted = samples // N_CLASSES
    while min(sum(map(len, points)) for points in found) < wanted:
        points = 6 * torch.rand(10 * samples, 2, generator=generator, dtype=torch.float64) - 3
        bands = band(points)
        for label in range(N_CLASSES):
            found[label].append(points[bands == label])
    inputs = torch.cat([torch.cat(points)[:wanted] for points in found])
    order = torch.randperm(samples, generator=generator)
    return inputs[order], torch.arange(N_CLASSES).repeat_interleave(wanted)[order]


def band(points: Tensor) -> Tensor:
    """The label of each point."""
    share = (height(points) - LOWEST) / (HIGHEST - LOWEST)
    return (N_CLASSES * share).long().clamp(0, N_CLASSES - 1)


def height(points: Tensor) -> Tensor:
    """f at each point."""
    x, y = points.unbind(-1)
    first = 3 * (1 - x) ** 2 * torch.exp(-(x**2) - (y + 1) ** 2)
    second = 10 * (x / 5 - x**3 - y**5) * torch.exp(-(x**2) - y**2)
    return first - second - torch.exp(-((x + 1) ** 2) - y**2) / 3
