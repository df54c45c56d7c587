"""Points at which equations hold: in boxes and balls, on their boundaries, and in given clouds.

A `PointSet` holds points and can draw others from the same place. So `pde.solve` can check the residuals on fresh
points, and add points if the check fails. Draws are scrambled Sobol sequences (scipy.stats.qmc), one for each face
of a boundary, because the part of a single sequence on one face would not be spread evenly over it.

    square = pde.points.Box([0, 0], [1, 1])
    square.inside(900)           square.boundary(120)          square.face(0, "low", 50)         square.grid(30)
    pde.points.Ball([0, 0], 1.0).boundary(100)                 pde.points.Cloud(tensor)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.stats import norm, qmc
from torch import Tensor

from gnvpro.arguments import check_count

MOST_TRIED = 1024  # maximum number of points of a box for each accepted one

Draw = Callable[[int, int], Tensor]  # (count, seed) -> points


@dataclass(frozen=True)
class PointSet:
    """Points (n, dimension), and a way to draw others from the same place.

    Args:
        points: shape (n, dimension).
        draw: function of (count, seed) that returns other points from the same place. Default: none.
        seed: seed that `points` were drawn with.

    >>> inside = Box([0, 0], [1, 1]).inside(50)
    >>> len(inside), inside.points.shape, inside.fresh(7, seed=1).shape
    (50, torch.Size([50, 2]), torch.Size([7, 2]))
    """

    points: Tensor
    draw: Draw | None = None
    seed: int = 0

    def __len__(self) -> int:
        return self.points.shape[0]

    def fresh(self, count: int, seed: int) -> Tensor:
        """Return other points from the same place."""
        if self.draw is None:
            raise ValueError("these points were given, not drawn: there are no fresh ones")
        return self.draw(count, seed)

    def grown(self, count: int) -> PointSet:
        """Return more points from the same place, by continuing the sequence."""
        if self.draw is None:
            raise ValueError("these points were given, not drawn: there are no others")
        return replace(self, points=self.draw(count, self.seed))


def drawn(draw: Draw, count: int, seed: int) -> PointSet:
    """Make a set from a function of (count, seed).

    Args:
        draw: function of (count, seed) that returns points (count, dimension).
        count: number of points.
        seed: seed of the points.

    Returns:
        The set, from which `fresh` draws others.

    >>> circle = Ball([0.0, 0.0], 1.0)
    >>> upper = drawn(lambda count, seed: circle.boundary(count, seed=seed).points.abs(), 20, seed=0)
    >>> bool((upper.points >= 0).all())
    True
    """
    check_count("the number of points", count, 1)
    check_count("the seed of points", seed, 0)
    return PointSet(draw(count, seed), draw, seed)


def unit(count: int, dimension: int, seed: int, how: str = "sobol") -> Tensor:
    """Draw points of the unit cube."""
    if how == "uniform":
        return torch.rand(count, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if how != "sobol":
        raise ValueError(f'points are drawn by how="sobol" or "uniform", got {how!r}')
    with warnings.catch_warnings():  # any number of points is accepted
        warnings.filterwarnings("ignore", message="The balance properties")
        return torch.from_numpy(qmc.Sobol(dimension, rng=seed).random(count))


class Box:
    """low <= x <= high, coordinate by coordinate.

    Args:
        low: smallest value of each coordinate.
        high: largest value of each coordinate.

    Raises:
        ValueError: low is not below high, or a side is infinite.

    >>> len(Box([0, 0], [1, 2]).boundary(30))
    30
    """

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        self.low, self.high = (torch.as_tensor(side, dtype=torch.float64) for side in (low, high))
        if self.low.dim() != 1 or self.low.shape != self.high.shape or not bool((self.low < self.high).all()):
            raise ValueError(f"a box needs low < high in every coordinate, got {low} and {high}")
        if not bool(torch.isfinite(self.low).all() and torch.isfinite(self.high).all()):
            raise ValueError(f"a box ends somewhere, got {low} and {high}; cut the domain off where little happens")

    @property
    def dimension(self) -> int:
        """Number of coordinates of a point."""
        return self.low.numel()

    def _scaled(self, cube: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * cube

    def inside(self, count: int, seed: int = 0, how: str = "sobol") -> PointSet:
        """Draw points inside."""
        return drawn(lambda n, s: self._scaled(unit(n, self.dimension, s, how)), count, seed)

    def grid(self, count: int | Sequence[int]) -> PointSet:
        """Return a regular grid with `count` points along each axis, boundary included; fresh points are drawn inside."""
        counts = [count] * self.dimension if isinstance(count, int) else list(count)
        if len(counts) != self.dimension:
            raise ValueError(f"a grid has a number of points for each of its {self.dimension} axes, got {counts}")
        for each in counts:
            check_count("the number of points of a grid", each, 1)
        axes = [
            torch.linspace(float(a), float(b), n, dtype=torch.float64)
            for a, b, n in zip(self.low, self.high, counts, strict=True)
        ]
        points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, self.dimension)
        return PointSet(points, lambda n, s: self._scaled(unit(n, self.dimension, s)))

    def face(self, axis: int, side: str, count: int, seed: int = 0, how: str = "sobol") -> PointSet:
        """Draw points on one face: side "low" or "high" of an axis."""
        self._check_face((axis, side))
        return drawn(lambda n, s: self._face(axis, side == "high", n, s, how), count, seed)

    def boundary(
        self, count: int, seed: int = 0, faces: Sequence[tuple[int, str]] | None = None, how: str = "sobol"
    ) -> PointSet:
        """Draw points on all faces, or on some, given as (axis, side), with the same share for each."""
        chosen = [(a, s) for a in range(self.dimension) for s in ("low", "high")] if faces is None else list(faces)
        if not chosen:
            raise ValueError('faces are empty: name one, as in faces=[(0, "low")]')
        for face in chosen:
            self._check_face(face)

        def draw(n: int, seed: int) -> Tensor:
            shares = [(n + k) // len(chosen) for k in reversed(range(len(chosen)))]
            parts = [
                self._face(axis, side == "high", share, seed * 101 + i, how)
                for i, ((axis, side), share) in enumerate(zip(chosen, shares, strict=True))
                if share
            ]
            return torch.cat(parts)

        return drawn(draw, count, seed)

    def _check_face(self, face: tuple[int, str]) -> None:
        if face not in [(axis, side) for axis in range(self.dimension) for side in ("low", "high")]:
            raise ValueError(f'a face is an axis below {self.dimension} and a side "low" or "high", got {face}')

    def _face(self, axis: int, high: bool, count: int, seed: int, how: str) -> Tensor:
        points = self._scaled(unit(count, self.dimension, seed, how))
        points[:, axis] = (self.high if high else self.low)[axis]
        return points

    def normal(self, points: Tensor) -> Tensor:
        """Return the outward normal of the face that is nearest to each point."""
        distances = torch.stack([points - self.low, self.high - points], -1) / (self.high - self.low)[:, None]
        nearest = distances.flatten(1).argmin(1)
        normals = torch.zeros_like(points)
        normals[torch.arange(len(points)), nearest // 2] = (2.0 * (nearest % 2) - 1.0).to(points)
        return normals


class Ball:
    """|x - centre| <= radius: a disc, a ball, in any dimension.

    Args:
        centre: coordinates of the centre.
        radius: the radius, positive.

    Raises:
        ValueError: the radius is not positive.

    >>> float((Ball([1.0, 0.0], 2.0).boundary(4).points - torch.tensor([1.0, 0.0])).norm(dim=1).max())
    2.0
    """

    def __init__(self, centre: Sequence[float], radius: float) -> None:
        self.centre, self.radius = torch.as_tensor(centre, dtype=torch.float64), float(radius)
        if self.centre.dim() != 1 or not 0 < self.radius < math.inf:
            raise ValueError(f"a ball needs a centre and a positive radius, got {centre} and {radius}")

    @property
    def dimension(self) -> int:
        """Number of coordinates of a point."""
        return self.centre.numel()

    def inside(self, count: int, seed: int = 0, how: str = "sobol") -> PointSet:
        """Draw points inside, evenly by volume."""
        return drawn(lambda n, s: self._drawn(n, s, how, inside=True), count, seed)

    def boundary(self, count: int, seed: int = 0, how: str = "sobol") -> PointSet:
        """Draw points on the sphere."""
        return drawn(lambda n, s: self._drawn(n, s, how, inside=False), count, seed)

    def _drawn(self, count: int, seed: int, how: str, inside: bool) -> Tensor:
        """Draw directions from normal quantiles (in the plane from the angle) and radii from the share of the volume."""
        cube = unit(count, self.dimension + 1 if self.dimension != 2 else 2, seed, how)
        if self.dimension == 2:
            angle = 2 * math.pi * cube[:, 1]
            directions = torch.stack([angle.cos(), angle.sin()], 1)
        else:
            directions = torch.from_numpy(norm.ppf(cube[:, 1:].clamp(1e-12, 1 - 1e-12).numpy()))
            directions = directions / directions.norm(dim=1, keepdim=True)
        radii = cube[:, :1] ** (1 / self.dimension) if inside else 1.0
        return self.centre + self.radius * radii * directions

    def normal(self, points: Tensor) -> Tensor:
        """Return the outward normal at points of the sphere."""
        away = points - self.centre
        return away / away.norm(dim=1, keepdim=True)


def Cloud(points: Any) -> PointSet:
    """Return a set of given points; their residuals are checked by leaving each of them out.

    Args:
        points: a tensor or an array of shape (n, dimension).

    >>> Cloud([[0.0, 1.0], [0.5, 1.0]]).points.shape
    torch.Size([2, 2])
    """
    return PointSet(as_points(points, "a cloud"))


def within(box: Box, belongs: Callable[[Tensor], Tensor], count: int, seed: int = 0) -> PointSet:
    """Draw points of a box for which a function is true: any domain with a membership test.

    Args:
        box: a box around the domain.
        belongs: function of points (n, dimension) that returns n truth values.
        count: number of points.
        seed: seed of the points.

    Returns:
        The set.

    Raises:
        ValueError: the domain fills too little of the box.

    >>> disc = within(Box([-1, -1], [1, 1]), lambda x: x.norm(dim=1) <= 1, 40)
    >>> len(disc), bool(disc.points.norm(dim=1).max() <= 1)
    (40, True)
    """

    def draw(n: int, seed: int) -> Tensor:
        size = n
        while size <= MOST_TRIED * n:
            points = box._scaled(unit(size, box.dimension, seed))
            kept = points[_mask(belongs(points), size)]
            if len(kept) >= n:
                return kept[:n]
            size *= 2
        raise ValueError(f"fewer than one in {MOST_TRIED} points of the box belong to the domain; give a smaller box")

    return drawn(draw, count, seed)


def _mask(belongs: Tensor, count: int) -> Tensor:
    if not isinstance(belongs, Tensor) or belongs.dtype is not torch.bool or belongs.shape != (count,):
        got = f"{belongs.dtype} {tuple(belongs.shape)}" if isinstance(belongs, Tensor) else type(belongs).__name__
        raise TypeError(f"what tells a domain from its outside gives True or False for each point, (n,), got {got}")
    return belongs


def as_points(value: Any, what: str) -> Tensor:
    """Return points as a float64 tensor (n, dimension); a set returns its points."""
    if isinstance(value, PointSet):
        value = value.points
    if isinstance(value, Box | Ball):
        raise TypeError(f"{what}: draw points from the {type(value).__name__.lower()}, as in .inside(900)")
    try:
        points = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{what}: points are rows of coordinates, (n, dimension), or drawn as in box.inside(900), got {value!r}"
        ) from None
    if points.dim() != 2 or 0 in points.shape:
        raise ValueError(f"{what}: points are rows of coordinates, (n, dimension), got shape {tuple(points.shape)}")
    if not bool(torch.isfinite(points).all()):
        raise ValueError(f"{what}: some coordinates of the points are not finite")
    return points
