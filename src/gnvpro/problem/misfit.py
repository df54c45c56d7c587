"""The misfit: the weighted mean of a loss over a batch, as a function of the outputs alone.

    misfit(X) = sum_i w_i l(x_i, c_i),    w_i = 1/n unless the samples are weighted

All code that eliminates the head or steps in theta uses the loss through the misfit. Targets, weights and outputs
are tensors, or `Rows` computed chunk by chunk if samples are not held in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.linalg.columns import by_columns
from gnvpro.linalg.rows import Rows, rowwise
from gnvpro.linalg.sums import SampleSum
from gnvpro.problem.compress import compressed
from gnvpro.problem.loss import Loss


@dataclass(frozen=True)
class Misfit:
    """The weighted mean of a loss over a batch, as a function of the outputs alone."""

    loss: Loss
    targets: Tensor
    weights: Tensor  # (rows, 1), summing to one over the training set; or (rows, n_targets), one per entry
    weighted: bool = False  # True if samples differ in weight
    over: SampleSum = field(default_factory=SampleSum)  # adds up samples

    @staticmethod
    def mean(loss: Loss, targets: Tensor, sample_weight: Tensor | None = None, over: SampleSum | None = None) -> Misfit:
        """Return a uniform mean, or use one weight per sample, shared by all rows (pixels, positions) of that sample."""
        rows, over = targets.shape[0], over or SampleSum()
        if sample_weight is None:
            every = float(over.total(torch.tensor(float(rows), dtype=torch.float64)))
            weights = torch.full((rows, 1), 1.0 / every, dtype=torch.float64, device=targets.device)
        else:
            each = sample_weight if sample_weight.ndim == 2 else sample_weight[:, None]
            weights = each.repeat_interleave(rows // max(sample_weight.shape[0], 1), 0)
            largest = over.largest(float(weights.max()) if rows else 0.0)
            weights = weights / largest  # before the sum, which could overflow
            weights = by_columns(weights / (over.total(weights.sum()) / weights.shape[1]))
        return Misfit(loss, by_columns(targets), weights, weighted=sample_weight is not None, over=over)

    @cached_property
    def sqrt_weights(self) -> Tensor:
        """Square roots of the weights."""
        return rowwise(torch.sqrt, self.weights)

    @cached_property
    def rotated(self) -> Misfit:
        """Return the same sum of squares with at most as many targets as rows; itself for other losses or fewer targets."""
        held = isinstance(self.targets, Tensor) and self.over.processes.alone
        if not (self.identity_hessian and held and self.targets.shape[1] > self.targets.shape[0]):
            return self
        return replace(self, targets=by_columns(compressed(self.targets)))

    @property
    def pieces(self) -> Misfit:
        """Return the misfit of the local rows only, for functions inside a sum, without communication."""
        return rowwise(lambda C, w: replace(self, targets=C, weights=w, over=SampleSum()), self.targets, self.weights)

    def take(self, samples: Tensor, n_samples: int, count: int | None = None) -> Misfit:
        """Return the part of some of the n local samples, scaled so that the average over equal parts is the whole.

        If samples are weighted, a part's weights need not sum to one. Normalising them would overweight samples that
        share a part with light ones. `count` is the number of samples in the part over all processes.
        """
        each = self.targets.shape[0] // max(n_samples, 1)
        rows = samples
        if each != 1:
            rows = (samples[:, None] * each + torch.arange(each, device=samples.device)).reshape(-1)
        part = replace(self, targets=by_columns(self.targets[rows]), weights=self.weights[rows])
        return part.scaled(samples.shape[0] if count is None else count, n_samples)

    def scaled(self, count: int, n_samples: int) -> Misfit:
        """Return the misfit of a batch with `count` samples in all, of which `n_samples` are local."""
        at_hand = self.over.processes.alone
        share = self.weights.sum() if at_hand and not self.weighted else count / self.over.count(n_samples)
        return replace(self, weights=self.weights / share, over=self.over.of_samples(count))

    @cached_property
    def identity_hessian(self) -> bool:
        """True if the Hessian only multiplies each row by its weight."""
        return self.loss.is_least_squares and not self.by_entry

    @cached_property
    def by_entry(self) -> bool:
        """True if entries of a row differ in weight; each output is then a separate least-squares problem."""
        return self.weights.shape[1] > 1

    def value(self, outputs: Tensor) -> float:
        """Return the mean loss."""
        return float(self.mean_loss(outputs))

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """Return the mean loss as a tensor."""
        if self.by_entry:  # squared errors: 1/2 w (x - c)^2

            def add(root: Tensor, X: Tensor, C: Tensor) -> Tensor:
                return self.loss.value(root * X, root * C).sum()

            return self.over.sum(add, self.sqrt_weights, outputs, self.targets)

        def add_rows(w: Tensor, X: Tensor, C: Tensor) -> Tensor:
            return w[:, 0] @ self.loss.value(X, C).to(w.dtype)

        rows = self.weights, outputs, self.targets
        return self.over.sum(add_rows, *rows) if Rows in map(type, rows) else self.over.total(add_rows(*rows))

    def gradient(self, outputs: Tensor) -> Tensor:
        """Return the derivative in the outputs."""
        of_rows = self.loss.gradient
        slope = rowwise(of_rows, outputs, self.targets) if isinstance(outputs, Rows) else of_rows(outputs, self.targets)
        return self.weights * slope

    def hessian(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the second derivative in the outputs, as a map of d_outputs."""
        if self.loss.is_least_squares:
            return lambda d_outputs: self.weights * d_outputs
        apply = rowwise(self.loss.hessian, outputs, self.targets)
        return lambda d_outputs: rowwise(lambda w, map, d: w * map(d), self.weights, apply, d_outputs)

    def hessian_diagonal(self, outputs: Tensor) -> Tensor:
        """Return the diagonal of the second derivative in the outputs, (rows, n_targets)."""

        def diagonal(w: Tensor, X: Tensor, C: Tensor) -> Tensor:
            apply, units = self.loss.hessian(X, C), torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
            return w * torch.stack([apply(unit.expand_as(X).contiguous())[:, k] for k, unit in enumerate(units)]).T

        return rowwise(diagonal, self.weights, outputs, self.targets)

    @property
    def has_hessian_factors(self) -> bool:
        """True if the loss has a Hessian of the form diag(d) - v v'."""
        return self.loss.hessian_factors(*self._one_row()) is not None

    def _one_row(self) -> tuple[Tensor, Tensor]:
        """Return zero outputs and targets for one row, which show what a loss supports without a pass over the samples."""
        zeros = torch.zeros((1, self.targets.shape[1]), dtype=torch.float64)
        return zeros, zeros

    def hessian_factors(self, outputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return d and v with Hessian diag(d) - v v' row by row, if the loss provides them: cheaper to assemble."""
        factors = self.loss.hessian_factors(outputs, self.targets)
        if factors is None:
            return None
        d, v = factors
        return self.weights * d, self.sqrt_weights * v

    def hessian_root(self, outputs: Tensor) -> Tensor:
        """Return C (rows, n_targets, .) such that C C' is the second derivative of each row."""
        return self.sqrt_weights[..., None] * self.loss.hessian_root(outputs, self.targets)

    @cached_property
    def classifies(self) -> bool:
        """True if the loss has an accuracy."""
        return self.loss.accuracy(*self._one_row()) is not None

    def accuracy(self, outputs: Tensor) -> float | None:
        """Return the weighted share of rows classified correctly; None if the loss does not classify."""
        if not self.classifies:
            return None

        def add(w: Tensor, X: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
            correct = self.loss.accuracy(X, C)
            assert correct is not None
            return w[:, 0] @ correct.to(w.dtype), w.sum()

        right, every = self.over.sums(add, self.weights, outputs, self.targets)
        return float(right) / float(every)
