"""Which kernel, which trend, and whether of the logarithm: the search, judged by left-out samples.

Kernels come first (with and without shares of inputs), then the logarithm of positive targets, then trends. Each later step
starts where the best of the former ended. Many samples are searched in two stages: kernels on a part, the lengths of the best
on a larger part, and its weights on all samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.surrogate.kernel import Kind
from gnvpro.surrogate.kriging import Cheaper, KernelModel, Units
from gnvpro.surrogate.likelihood import MAX_EVALUATIONS, Array, KernelRows, Likelihood
from gnvpro.surrogate.member import Member
from gnvpro.surrogate.trend import TRENDS, Trend, monomials

KERNELS = ("rbf", "matern52", "matern32")
SAMPLES_PER_COLUMN = 2.0  # of a trend
MOST_ROWS = 4000  # of a kernel model: the time of its Cholesky factor grows with the cube
FOLDS, FOLD_EVALUATIONS = 4, 25  # that calibrate standard deviations; of the likelihood in each


@dataclass(frozen=True)
class Sampled:
    """Samples as they were given: inputs, targets, and slopes or None; NaN where a slope is missing."""

    x: Tensor
    y: Tensor
    gradients: Tensor | None = None  # (samples, outputs, inputs)
    cheaper: Member | None = None  # the model of a cheaper simulator

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> Sampled:
        """Return some samples."""
        gradients = None if self.gradients is None else self.gradients[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], gradients=gradients)

    def output(self, k: int) -> Sampled:
        """Return one output."""
        return replace(self, y=self.y[:, [k]], gradients=None if self.gradients is None else self.gradients[:, [k]])

    def logarithm(self) -> Sampled:
        """Return the samples with logarithms of the targets."""
        slopes = None if self.gradients is None else self.gradients / self.y[..., None]
        return replace(self, y=self.y.log(), gradients=slopes)

    def rows(self, units: Units) -> KernelRows:
        """Return the rows of the kernel model."""
        x, y = units.inner(self.x), (self.y - units.mean) / units.size
        if self.gradients is None:
            return KernelRows(x, y)
        inner = self.gradients / units.size[:, None] * units.half
        stacked = torch.cat([y, inner.permute(2, 0, 1).reshape(-1, y.shape[1])])
        kept = stacked.isfinite().all(1).nonzero()[:, 0]
        kinds: tuple[Kind, ...] = ((), *((e,) for e in range(x.shape[1])))
        return KernelRows(x, stacked[kept], kinds, kept)


@dataclass(frozen=True)
class Choices:
    """What the user fixed; None is left to the search, which compares forms on `pilot_rows` samples."""

    kernel: str | None = None
    trend: str | None = None
    log: bool | None = None
    noise: bool = True
    pilot_rows: int = 200


def spread_out(data: Sampled, count: int) -> Sampled:
    """Return a part of the samples, evenly spread through the order in which they came."""
    if len(data) <= count:
        return data
    return data.take(torch.linspace(0, len(data) - 1, count).round().long())


@dataclass(frozen=True)
class Form:
    """A form of the model: its kernel, whether inputs have shares, whether of the logarithm, its trend, whether with noise."""

    kernel: str
    anova: bool
    log: bool
    trend: str
    noise: bool

    def likelihood(self, data: Sampled) -> tuple[Likelihood, Units]:
        """Return the likelihood of samples under this form, and the units that it is computed in."""
        fitted = data.logarithm() if self.log else data
        units = Units.of(fitted.x, fitted.y)
        below = None if data.cheaper is None else Cheaper(data.cheaper.model, units)
        trend = Trend(monomials(self.trend, data.x.shape[1]), below)
        return Likelihood(fitted.rows(units), self.kernel, trend, self.anova, self.noise), units

    def tried(self, data: Sampled, starts: Sequence[Array] = (), most: int = MAX_EVALUATIONS) -> FittedForm | None:
        """Search the lengths; None if no matrix has a Cholesky factor."""
        likelihood, _ = self.likelihood(data)
        usual = [likelihood.start(1.0, 1e-6), likelihood.start(3.0, 1e-3)]
        return self.built(data, likelihood.searched(list(starts) or usual, most)[1])

    def built(self, data: Sampled, numbers: Array, inflation: Tensor | None = None) -> FittedForm | None:
        """Eliminate the weights for given lengths."""
        likelihood, units = self.likelihood(data)
        found = likelihood.at(torch.as_tensor(numbers))
        if found is None:
            return None
        factor = torch.ones_like(units.size) if inflation is None else inflation
        member = Member(KernelModel(likelihood.rows, likelihood.trend, found, units, factor), self.log)
        errors = (member.left_out().mean - data.y) / Units.of(data.x, data.y).size
        error = float(errors.square().mean().sqrt())
        return FittedForm(self, numbers, member, error) if math.isfinite(error) else None


@dataclass(frozen=True)
class FittedForm:
    """A form of the model, what its search found, and the error at left-out samples."""

    form: Form
    numbers: Array
    member: Member
    error: float

    def calibrated(self, data: Sampled) -> FittedForm:
        """Return the trial with standard deviations that fit errors at samples left out of the search of the lengths too."""
        scores = []
        for fold in range(FOLDS):
            held = torch.arange(len(data)) % FOLDS == fold
            found = self.form.tried(data.take(~held), [self.numbers], FOLD_EVALUATIONS)
            if found is not None:
                rest = data.take(held)
                model, y = found.member.model, (rest.logarithm() if self.form.log else rest).y
                std = (model.std(rest.x)[0].square() + model.noise_std.square()).sqrt()
                scores.append((y - model.mean(rest.x)[0]) / std.clamp_min(torch.finfo(std.dtype).tiny))
        if not scores:
            return self
        return replace(self, member=replace(self.member, model=self.member.model.with_scores(torch.cat(scores))))


def search(data: Sampled, fixed: Choices) -> FittedForm:
    """Return the best form, its weights eliminated on all samples."""
    if data.cheaper is not None:  # their values or logarithms are columns of this model
        fixed = replace(fixed, log=data.cheaper.log)
    data = spread_out(data, MOST_ROWS)
    pilot = spread_out(data, fixed.pilot_rows)
    found = [trial for trial in _forms(pilot, fixed) if trial is not None]
    if not found:
        raise ValueError(
            f"no kernel model fits these {len(data)} samples: their kernel matrices have no Cholesky factor; "
            "pass noise=True, and check X for equal rows"
        )
    best = min(found, key=lambda trial: trial.error).calibrated(pilot)
    inflation, numbers = best.member.model.inflation, best.numbers
    larger = spread_out(data, 3 * fixed.pilot_rows)
    if len(larger) > len(pilot):
        longer = best.form.tried(larger, [numbers])
        numbers = numbers if longer is None else longer.numbers
    return best.form.built(data, numbers, inflation) or best


def _forms(data: Sampled, fixed: Choices) -> Iterator[FittedForm | None]:
    """Try kernels, then the logarithm, then trends, each with the best so far."""
    several = (False, True) if data.x.shape[1] > 1 else (False,)
    log = bool(fixed.log)
    kernels = [
        Form(kernel, anova, log, fixed.trend or "constant", fixed.noise)
        for kernel in ([fixed.kernel] if fixed.kernel else KERNELS[:2])
        for anova in several
    ]
    yield from (found := [form.tried(data) for form in kernels])
    best = _best(found)
    if best is None:
        return
    if fixed.log is None and bool((data.y > 0).all()):
        yield from (more := [replace(best.form, log=True, anova=anova).tried(data) for anova in several])
        best = _best([best, *more]) or best
    if fixed.trend is None:
        for trend in TRENDS[1:]:
            if len(monomials(trend, data.x.shape[1])) * SAMPLES_PER_COLUMN <= len(data):
                yield replace(best.form, trend=trend).tried(data, [best.numbers])


def _best(trials: Sequence[FittedForm | None]) -> FittedForm | None:
    return min((trial for trial in trials if trial is not None), key=lambda trial: trial.error, default=None)
