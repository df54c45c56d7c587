"""A kernel model of targets or of their logarithms, with derivatives in the targets' units.

    f = log y:     y = e^f        y_e = e^f f_e        y_ef = e^f (f_e f_f + f_ef)

Standard deviations follow to first order from the joint covariance of f and its derivatives at a point.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.surrogate.kernel import Kind
from gnvpro.surrogate.kriging import KernelModel


@dataclass(frozen=True)
class Derived:
    """Values or derivatives at points, and their standard deviations if they were computed."""

    mean: Tensor
    std: Tensor | None


@dataclass(frozen=True)
class Member:
    """A kernel model behind a link: of the targets, or of their logarithms."""

    model: KernelModel
    log: bool

    @property
    def name(self) -> str:
        """Words for the summary."""
        model, kernel = self.model, self.model.eliminated.theta.kernel
        trend = {1: "constant", 1 + len(kernel.lengths): "linear"}.get(len(model.trend.terms), "quadratic")
        shares = "" if kernel.shares is None else " with shares of inputs"
        cheaper = "" if model.trend.below is None else " with the cheaper simulator"
        return f"{kernel.kind}{shares}, {trend} trend{cheaper}{', logarithm of the targets' if self.log else ''}"

    def values(self, x: Tensor, with_std: bool) -> Derived:
        """Return values at points: (points, outputs), noise included in the standard deviations."""
        f = self.model.mean(x)[0]
        std = (self.model.std(x)[0].square() + self.model.noise_std.square()).sqrt() if with_std else None
        if not self.log:
            return Derived(f, std)
        return Derived(f.exp(), None if std is None else f.exp() * std)

    def gradient(self, x: Tensor, with_std: bool) -> Derived:
        """Return slopes at points: (points, outputs, inputs)."""
        kinds: tuple[Kind, ...] = tuple((e,) for e in range(x.shape[1]))
        if not self.log:
            std = self.model.std(x, kinds).permute(1, 2, 0) if with_std else None
            return Derived(self.model.mean(x, kinds).permute(1, 2, 0), std)
        kinds = ((), *kinds)
        f, *slopes = self.model.mean(x, kinds)
        y, slope = f.exp(), torch.stack(slopes, -1)
        if not with_std:
            return Derived(y[..., None] * slope, None)
        change = torch.zeros(*f.shape, x.shape[1], len(kinds), dtype=f.dtype)  # of each slope, with each row kind
        change[..., 0] = slope
        for e in range(x.shape[1]):
            change[..., e, 1 + e] = 1
        return Derived(y[..., None] * slope, y[..., None] * self._moved(x, kinds, change))

    def hessian(self, x: Tensor, with_std: bool) -> Derived:
        """Return second derivatives at points: (points, outputs, inputs, inputs)."""
        d = x.shape[1]
        pairs = [(e, f) for e in range(d) for f in range(e, d)]
        place = torch.zeros(d, d, dtype=torch.long)
        for i, (e, f) in enumerate(pairs):
            place[e, f] = place[f, e] = i
        if not self.log:
            std = self.model.std(x, pairs)[place].permute(2, 3, 0, 1) if with_std else None
            return Derived(self.model.mean(x, pairs)[place].permute(2, 3, 0, 1), std)
        kinds: tuple[Kind, ...] = ((), *((e,) for e in range(d)), *pairs)
        jet = self.model.mean(x, kinds)
        y, slope = jet[0].exp(), jet[1 : 1 + d].movedim(0, -1)
        second = jet[1 + d :][place].permute(2, 3, 0, 1) + slope[..., None] * slope[..., None, :]
        mean = y[..., None, None] * second
        if not with_std:
            return Derived(mean, None)
        change = torch.zeros(*jet.shape[1:], len(pairs), len(kinds), dtype=y.dtype)
        for i, (e, f) in enumerate(pairs):
            change[..., i, 0] = second[..., e, f]
            change[..., i, 1 + e] += slope[..., f]
            change[..., i, 1 + f] += slope[..., e]
            change[..., i, 1 + d + i] = 1
        return Derived(mean, y[..., None, None] * self._moved(x, kinds, change)[..., place])

    def _moved(self, x: Tensor, kinds: tuple[Kind, ...], change: Tensor) -> Tensor:
        """Return standard deviations of linear combinations of row kinds: (points, outputs, combinations)."""
        covariance = self.model.jet_covariance(x, kinds)
        return torch.einsum("pock,pklo,pocl->poc", change, covariance, change).clamp_min(0).sqrt()

    def left_out(self) -> Derived:
        """Predict each sample without it."""
        f, std = self.model.left_out()
        return Derived(f.exp(), f.exp() * std) if self.log else Derived(f, std)
