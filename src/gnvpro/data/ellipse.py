"""The set of the paper's first figure: points of the plane, inside an ellipse (label 0) or outside (1).

    angle U(0, 2 pi),    radius U(0, 1) inside, U(1, 2) outside,    point (radius cos(angle), 0.4 radius sin(angle))

Uniform in angle and radius, so the classes touch without a margin. Drawn by a seed: 5000 / 1000 / 8000.
"""

from __future__ import annotations

import math

import torch

from . import Samples, Split

SIZES = (5000, 1000, 8000)
CLASSES = ("inside", "outside")


def load(sizes: tuple[int, int, int] = SIZES, *, seed: int = 0) -> Split:
    """Three sets drawn one after the other by the seed.

    Args:
        sizes: samples of the training, validation and test set, at least 2 each.
        seed: seed of the points.

    Returns:
        The sets, with inputs (samples, 2) and labels 0 and 1 (samples,).

    Raises:
        ValueError: a set has fewer than 2 samples.

    >>> [len(labels) for _, labels in (load().train, load().validation, load().test)]
    [5000, 1000, 8000]
    """
    generator = torch.Generator().manual_seed(seed)
    train, validation, test = (draw(samples, generator) for samples in sizes)
    return Split(train, validation, test)


def draw(samples: int, generator: torch.Generator) -> Samples:
    """Draw points and labels, alternating between inside and outside."""
    if samples < 2:
        raise ValueError(f"samples must be at least 2, one of each class, got {samples}")
    labels = torch.arange(samples) % 2
    angle = 2 * math.pi * torch.rand(samples, generator=generator, dtype=torch.float64)
    radius = labels + torch.rand(samples, generator=generator, dtype=torch.float64)
    return torch.stack([radius * angle.cos(), 0.4 * radius * angle.sin()], dim=1), labels
