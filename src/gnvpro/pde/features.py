"""Feature networks for a box: sines of several wavelengths, layers of tanh, or both, drawn for the size of the box.

    sine of scale s     sin(a'z + b)     a ~ N(0, s^2 / d),   b uniform on a period
    tanh                tanh(a'z + b)    a ~ N(0, 1),         b uniform on [-1, 1]; further layers by Xavier's rule

with z in [-1, 1]^d the coordinates relative to the box. The linear map to z is folded into the first layer's weights, so the
networks are plain Linear layers and activations. Along periodic coordinates z is replaced by sin and cos of the period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro.pde.activations import Sine
from gnvpro.pde.beside import Beside
from gnvpro.pde.embedding import Periodic
from gnvpro.pde.points import Ball, Box


@dataclass(frozen=True)
class Domain:
    """A box in which a field lives.

    Args:
        low, high: corners.
        time: the coordinate that is time, if there is one.
        periodic: coordinates along which the field is periodic; the period is the extent of the box.
    """

    low: Tensor
    high: Tensor
    time: int | None = None
    periodic: tuple[int, ...] = ()

    @staticmethod
    def of(shape: Box | Ball, time: int | None, periodic: Sequence[int]) -> Domain:
        """The box, or the box around the ball."""
        if isinstance(shape, Ball):
            return Domain(shape.centre - shape.radius, shape.centre + shape.radius, time, tuple(periodic))
        return Domain(shape.low, shape.high, time, tuple(periodic))

    def __post_init__(self) -> None:
        axes = range(self.dimension)
        if self.time is not None and self.time not in axes:
            raise ValueError(f"time must be the number of a coordinate below {self.dimension}, got {self.time!r}")
        wrong = [axis for axis in self.periodic if axis not in axes or axis == self.time]
        if wrong:
            raise ValueError(
                f"periodic must list coordinates below {self.dimension} other than time, got {list(self.periodic)}"
            )

    @property
    def dimension(self) -> int:
        """Coordinates of a point."""
        return self.low.numel()

    def layers(self, *layers: nn.Module) -> nn.Sequential:
        """A network whose first layer is linear in relative coordinates, as one that takes points of the box."""
        first, rest = layers[0], layers[1:]
        assert isinstance(first, nn.Linear)
        half, middle = (self.high - self.low) / 2, (self.high + self.low) / 2
        straight = [axis for axis in range(self.dimension) if axis not in self.periodic]
        with torch.no_grad():
            first.weight[:, : len(straight)].div_(half[straight])
            first.bias.sub_(first.weight[:, : len(straight)] @ middle[straight])
        if not self.periodic:
            return nn.Sequential(first, *rest)
        periods = {axis: float(2 * half[axis]) for axis in self.periodic}
        return nn.Sequential(Periodic(self.dimension, periods), first, *rest)

    @property
    def n_coordinates(self) -> int:
        """Inputs of the first linear layer."""
        return self.dimension + len(self.periodic)


@dataclass(frozen=True)
class Kind:
    """A kind of features: sines of these scales, layers of tanh of these widths, or one after the other."""

    sines: int = 0
    scales: tuple[float, ...] = (1.0,)
    tanh: tuple[int, ...] = ()

    def __str__(self) -> str:
        scales = ", ".join(f"{scale:g}" for scale in self.scales)
        parts = [f"{self.sines} sines of scale {scales}"] if self.sines else []
        return ", then ".join([*parts, *(["-".join(map(str, self.tanh)) + " tanh"] if self.tanh else [])])

    def build(self, domain: Domain, seed: int) -> nn.Sequential:
        """A network of this kind for points of the domain, its weights drawn from the seed."""
        generator = torch.Generator().manual_seed(seed)
        width, layers = domain.n_coordinates, []
        if self.sines:
            layers += [_sine_layer(width, self.sines, self.scales, generator), Sine()]
            width = self.sines
        for size in self.tanh:
            layers += [_tanh_layer(width, size, generator, first=not layers), nn.Tanh()]
            width = size
        return domain.layers(*layers)

    def wider(self, factor: float) -> Kind:
        """Return features of the same kind with wider layers."""
        return Kind(round(factor * self.sines), self.scales, tuple(round(factor * size) for size in self.tanh))


def sines(
    low: Tensor,
    high: Tensor,
    count: int,
    scales: Sequence[float],
    seed: int,
    periods: Mapping[int, float] | None = None,
) -> nn.Sequential:
    """Sines of these scales in turn, for a box of these corners; coordinates without extent count as of extent one."""
    flat, periods = high <= low, periods or {}
    low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
    for axis, period in periods.items():
        high[axis] = low[axis] + period
    domain = Domain(low, high, periodic=tuple(sorted(periods)))
    return Kind(count, tuple(scales)).build(domain, seed)


def periods_of(features: nn.Module) -> dict[int, float]:
    """The periods, by coordinate, of a network that begins with `pde.Periodic`; none of any other."""
    if isinstance(features, Periodic):
        return features.periods
    inner = features.parts if isinstance(features, Beside) else features if isinstance(features, nn.Sequential) else ()
    return next((periods_of(part) for part in inner), {})


def _sine_layer(n_inputs: int, count: int, scales: Sequence[float], generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(n_inputs, count, dtype=torch.float64)
    each = torch.tensor([scales[i % len(scales)] for i in range(count)], dtype=torch.float64) / math.sqrt(n_inputs)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(count, n_inputs, dtype=torch.float64, generator=generator) * each[:, None])
        layer.bias.copy_(2 * math.pi * torch.rand(count, dtype=torch.float64, generator=generator))
    return layer


def _tanh_layer(n_inputs: int, count: int, generator: torch.Generator, first: bool) -> nn.Linear:
    layer = nn.Linear(n_inputs, count, dtype=torch.float64)
    deviation = 1.0 if first else math.sqrt(2 / (n_inputs + count))
    with torch.no_grad():
        layer.weight.copy_(deviation * torch.randn(count, n_inputs, dtype=torch.float64, generator=generator))
        layer.bias.copy_((2 * torch.rand(count, dtype=torch.float64, generator=generator) - 1) * float(first))
    return layer
