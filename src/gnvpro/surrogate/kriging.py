"""The kernel model at other points: values and derivatives with standard deviations, and predictions of left-out samples.

    mean       k(x)' w + h(x)' b
    variance   s (k(x, x) - |v|^2 + |R^-T u|^2)        v = L^-1 k(x)        u = h(x) - F' v

Both hold for any row kind, so that slopes and second derivatives come from the same lines as values. Everything is in the units
of the user: inputs are scaled to [-1, 1] and targets to variance one inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.surrogate.correlation import SMOOTHNESS
from gnvpro.surrogate.kernel import VALUES, Kind
from gnvpro.surrogate.likelihood import Eliminated, KernelRows
from gnvpro.surrogate.trend import Trend

MAX_ENTRIES = 2_000_000  # of the kernel's matrix at a time
CACHED_ENTRIES = 50_000  # that stay in a processor's cache, in memory that is used again without a page fault
FEW_POINTS = 16  # that share a call even if they do not
INFLATIONS = (0.5, 10.0)  # least and largest factor of standard deviations


@dataclass(frozen=True)
class Units:
    """Units of inputs and targets: middle and half range, mean and deviation."""

    middle: Tensor
    half: Tensor
    mean: Tensor
    size: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Units:
        """Return the units in which samples lie in [-1, 1] and targets have variance one."""
        low, high = x.min(0).values, x.max(0).values
        half, size = (high - low) / 2, y.std(0, correction=0)
        return cls((low + high) / 2, torch.where(half > 0, half, 1), y.mean(0), torch.where(size > 0, size, 1))

    def inner(self, x: Tensor) -> Tensor:
        """Return inputs as the model sees them."""
        return (x - self.middle) / self.half

    def of_kind(self, kind: Kind) -> Tensor:
        """Return what one inner unit of a row kind is outside, for each output."""
        return self.size / self.half[list(kind)].prod()


@dataclass(frozen=True)
class KernelModel:
    """Samples, the eliminated model and its units."""

    rows: KernelRows
    trend: Trend
    eliminated: Eliminated
    units: Units
    inflation: Tensor  # factor of standard deviations, from left-out samples

    @property
    def kind(self) -> str:
        """The kernel's kind."""
        return self.eliminated.theta.kernel.kind

    @property
    def noise_std(self) -> Tensor:
        """The standard deviation of the noise of each output."""
        found = self.eliminated
        return (found.theta.nugget * found.s).sqrt() * self.units.size * self.inflation

    def check(self, kinds: Sequence[Kind], with_std: bool) -> None:
        """Raise if the kernel is not smooth enough for these derivatives."""
        own = max(map(len, kinds))
        needed = max(2 * own if with_std else 0, own + max(map(len, self.rows.kinds)))
        if needed > SMOOTHNESS[self.kind]:
            raise ValueError(
                f"the kernel {self.kind!r} has too few derivatives for this; fit with kernel='rbf' or kernel='matern52'"
            )

    def mean(self, x: Tensor, kinds: Sequence[Kind] = VALUES) -> Tensor:
        """Return row kinds at points: (kinds, points, outputs)."""
        self.check(kinds, False)
        if torch.compiler.is_compiling():  # any number of points, so in one piece
            return self._mean(x, kinds)
        parts = [self._mean(part, kinds) for part in torch.split(x, self._at_once(kinds))]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _mean(self, x: Tensor, kinds: Sequence[Kind]) -> Tensor:
        inner = self.units.inner(x)
        w = self.eliminated.w
        if self.rows.kept is not None:  # unobserved rows have weight zero
            w = w.new_zeros(len(self.rows.kinds) * len(self.rows.x), w.shape[1]).index_copy(0, self.rows.kept, w)
        k = self.eliminated.theta.kernel.between(inner, self.rows.x, kinds, self.rows.kinds)
        found = (k @ w + self.trend.columns(inner, kinds) @ self.eliminated.b).reshape(len(kinds), x.shape[0], -1)
        outer = torch.stack([self.units.of_kind(kind) for kind in kinds])[:, None]
        none = torch.zeros_like(self.units.mean)
        shift = torch.stack([none if kind else self.units.mean for kind in kinds])[:, None]
        return found * outer + shift

    def std(self, x: Tensor, kinds: Sequence[Kind] = VALUES) -> Tensor:
        """Return standard deviations of row kinds at points, noise not included: (kinds, points, outputs)."""
        self.check(kinds, True)
        parts = [self._std(part, kinds) for part in torch.split(x, self._at_once(kinds))]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _std(self, x: Tensor, kinds: Sequence[Kind]) -> Tensor:
        prior = self.eliminated.theta.kernel.variances(kinds).repeat_interleave(len(x))
        v, t = self.whitened(x, kinds)
        variance = (prior - v.square().sum(0) + t.square().sum(0)).clamp_min(0).reshape(len(kinds), len(x), 1)
        outer = torch.stack([self.units.of_kind(kind) for kind in kinds])[:, None]
        own = (variance * self.eliminated.s).sqrt() * outer * self.inflation
        if not isinstance(self.trend.below, Cheaper):
            return own
        return torch.hypot(own, self.scale_of_below * self.trend.below.model._std(x, kinds))

    @property
    def scale_of_below(self) -> Tensor:
        """The coefficient of the cheaper simulator's model."""
        return self.eliminated.b[-1] * self.units.size

    def whitened(self, x: Tensor, kinds: Sequence[Kind] = VALUES) -> tuple[Tensor, Tensor]:
        """Return v and R^-T u at points, as columns."""
        inner, found = self.units.inner(x), self.eliminated
        k = found.theta.kernel.between(inner, self.rows.x, kinds, self.rows.kinds)
        k = k if self.rows.kept is None else k[:, self.rows.kept]
        v = torch.linalg.solve_triangular(found.L, k.T, upper=False)
        u = self.trend.columns(inner, kinds).T - found.F.T @ v
        return v, torch.linalg.solve_triangular(found.R.T, u, upper=False)

    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the covariance of values at points x and y, per unit of the prior's variance."""
        (v, t), (other_v, other_t) = self.whitened(x), self.whitened(y)
        prior = self.eliminated.theta.kernel.between(self.units.inner(x), self.units.inner(y))
        return prior - v.T @ other_v + t.T @ other_t

    def jet_covariance(self, x: Tensor, kinds: Sequence[Kind]) -> Tensor:
        """Return the covariance of row kinds at the same point: (points, kinds, kinds, outputs)."""
        self.check(kinds, True)
        return torch.cat([self._jet_covariance(part, kinds) for part in torch.split(x, self._at_once(kinds))])

    def _jet_covariance(self, x: Tensor, kinds: Sequence[Kind]) -> Tensor:
        zero = x.new_zeros(1, x.shape[1])
        prior = self.eliminated.theta.kernel.between(zero, zero, kinds, kinds)
        v, t = (each.reshape(len(each), len(kinds), len(x)) for each in self.whitened(x, kinds))
        inner = prior - torch.einsum("rkp,rlp->pkl", v, v) + torch.einsum("rkp,rlp->pkl", t, t)
        outer = torch.stack([self.units.of_kind(kind) for kind in kinds]) * self.inflation
        own = inner[..., None] * self.eliminated.s * outer[:, None] * outer
        if not isinstance(self.trend.below, Cheaper):
            return own
        return own + self.scale_of_below.square() * self.trend.below.model._jet_covariance(x, kinds)

    def _at_once(self, kinds: Sequence[Kind]) -> int:
        plain = self.eliminated.theta.kernel.is_plain and kinds == self.rows.kinds == VALUES  # one matrix product
        blocks = 1 if plain else max(len(kinds) * len(self.rows.kinds), self.rows.x.shape[1])
        entries = blocks * len(self.rows.x)  # of one point
        return max(1, CACHED_ENTRIES // entries, min(FEW_POINTS, MAX_ENTRIES // entries))

    def left_out(self) -> tuple[Tensor, Tensor]:
        """Predict each sample without it (values and slopes alike): means and standard deviations of new observations.

        KernelRows of one sample are left out together: P_BB^-1 w_B is their error, s P_BB^-1 its variance.
        """
        found, rows = self.eliminated, self.rows
        if len(rows.kinds) == 1:
            spread = 1 / found.P.diagonal()[:, None]
            errors = found.w * spread
        else:
            sample, errors = rows.sample, torch.zeros(len(rows.x), found.w.shape[1], dtype=found.w.dtype)
            spread = torch.zeros(len(rows.x), 1, dtype=found.w.dtype)
            for i in range(len(rows.x)):
                own = (sample == i).nonzero()[:, 0]  # the value comes first
                inverse = torch.linalg.inv(found.P[own][:, own])
                errors[i], spread[i] = (inverse @ found.w[own])[0], inverse[0, 0]
        y = rows.y[rows.is_value]
        std = (spread.clamp_min(0) * found.s).sqrt()
        return (y - errors) * self.units.size + self.units.mean, std * self.units.size * self.inflation

    def with_scores(self, scores: Tensor) -> KernelModel:
        """Return the model with standard deviations whose 95% intervals cover 95% of these errors over standard deviations."""
        factor = scores.abs().quantile(0.95, 0) / 1.96
        return replace(self, inflation=self.inflation * factor.clamp(*INFLATIONS))


@dataclass(frozen=True)
class Cheaper:
    """The model of a cheaper simulator as a column of a trend, and the inner units of that trend."""

    model: KernelModel
    units: Units

    def column(self, x: Tensor, kinds: Sequence[Kind]) -> Tensor:
        """Return values or derivatives in inner units."""
        outer = self.model.mean(x * self.units.half + self.units.middle, kinds)
        inner = torch.stack([self.units.half[list(kind)].prod() for kind in kinds])
        return (outer * inner[:, None, None]).reshape(-1, 1)
