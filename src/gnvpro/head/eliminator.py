"""Eliminating the head: the result of the inner problem, and the protocol of its solvers.

    W(theta) = argmin_W  misfit(Z W') + head_penalty/2 |W|_F^2,        Z = features(theta), a column of ones for the bias

The inner problem is convex and small. It is always solved in float64, whatever the network's dtype.

Legend: W(theta) -> HeadFit.W, inverse of the Hessian in W -> HeadFit.inverse_hessian, alpha_2 -> head_penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.once import Once
from gnvpro.linalg.operators import LinearOperator
from gnvpro.linalg.rows import Rows, rowwise
from gnvpro.minimize.status import Status
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit
from gnvpro.state import State


@dataclass(frozen=True)
class WarmStart(State):
    """Start of an elimination: a head and, for Newton's method, a Cholesky factor of a nearby Hessian.

    Args:
        W: the head, shape (n_targets, n_features), its bias counted as the last feature.
        factor: Cholesky factor of the Hessian in vec(W), square with n_targets n_features rows. Default: none.

    >>> WarmStart(torch.zeros(1, 3)).factor is None
    True
    """

    W: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True)
class HeadFit:
    """The eliminated head, with the inverse Hessian of the inner problem there.

    `Eliminator.fit` returns it.

    Args:
        W: the head, shape (n_targets, n_features), its bias counted as the last feature.
        outputs: Z W', shape (samples, n_targets).
        status: why the elimination ended.
        iterations: number of its steps.
        inverse: makes, at its first call, the inverse Hessian and the Cholesky factor in vec(W) behind it, or None.
        inverse_is_exact: False if the inverse is that of the Hessian on a Krylov space.
        inverse_acts_on_rows: True if the inverse multiplies from the right, so that it accepts any number of rows.
        stale_factor: Cholesky factor of the Hessian at a nearby point.
        misfit: returns the misfit of a head, if available without a pass over the samples.

    >>> import gnvpro
    >>> Z = torch.tensor([[1.0], [1.0]], dtype=torch.float64)  # a bias alone
    >>> targets = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    >>> misfit = Misfit.mean(gnvpro.losses.HalfSquaredError(), targets)
    >>> fit = gnvpro.heads.LeastSquares().fit(Z, misfit, 0.0, None)
    >>> round(float(fit.W), 6), fit.outputs.shape
    (2.0, torch.Size([2, 1]))
    >>> round(float(fit.inverse_hessian.mv(torch.ones(1, 1, dtype=torch.float64))), 6)
    1.0
    """

    W: Tensor
    outputs: Tensor
    status: Status
    iterations: int
    inverse: Once[tuple[LinearOperator, Tensor | None]]
    inverse_is_exact: bool = True
    inverse_acts_on_rows: bool = False
    stale_factor: Tensor | None = None
    misfit: Callable[[Tensor], float] | None = None

    @property
    def inverse_hessian(self) -> LinearOperator:
        """Map from (n_targets, n_features) to the same shape; built at first use, because rejected trials never need it."""
        return self.inverse()[0]

    @property
    def hessian_factor(self) -> Tensor | None:
        """The Cholesky factor behind the inverse, in vec(W), if there is one."""
        return self.inverse()[1]

    def rounded(self, Z: Tensor, dtype: torch.dtype, stored: torch.dtype) -> HeadFit | None:
        """Return the head as a network of this dtype computes with it; None if it overflows in the dtype it is stored in."""
        W = self.W.to(dtype).to(torch.float64)
        largest = float(torch.linalg.vector_norm(W, math.inf))  # takes a third of the time of `isfinite`, then `all`
        if not largest <= torch.finfo(stored).max:
            return None
        return self if dtype == torch.float64 else self.with_head(Z, W)

    def with_head(self, Z: Tensor, W: Tensor) -> HeadFit:
        """Return the same fit with another head on these features."""
        return replace(self, W=W, outputs=matmul_small(Z, W.T), misfit=None)

    @property
    def warm_start(self) -> WarmStart:
        """Return the start for an elimination at a nearby theta."""
        return WarmStart(self.W, self.inverse.value[1] if self.inverse.made else self.stale_factor)


class Eliminator(Protocol):
    """Solves the inner problem; a frozen dataclass whose repr a checkpoint compares.

    The classes of `gnvpro.heads` have this form; give one as `eliminator` of a method.

    >>> import gnvpro
    >>> Z = torch.tensor([[1.0], [1.0]], dtype=torch.float64)  # a bias alone
    >>> targets = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    >>> misfit = Misfit.mean(gnvpro.losses.HalfSquaredError(), targets)
    >>> eliminator = gnvpro.heads.Newton()
    >>> round(float(eliminator.fit(Z, misfit, 0.0, None).W), 6)
    2.0
    >>> gnvpro.heads.LeastSquares().why_not(gnvpro.losses.Logistic())
    'it solves least squares only, and the loss is Logistic; use gnvpro.heads.Newton()'
    """

    @property
    def supports_exact_steps(self) -> bool:
        """True if exact steps can use its inverse Hessian: it is exact, and cheap to apply to many columns."""

    @property
    def inverse_acts_on_rows(self) -> bool:
        """True if the inverse Hessian multiplies from the right; exact steps for least squares need that."""

    def why_not(self, loss: Loss) -> str | None:
        """Return why it cannot eliminate the head under this loss; None if it can."""

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """Return the head that minimises misfit plus penalty for these features; `start` affects the cost, not the result."""


class ForAnyLoss:
    """An eliminator for any convex loss. Exact steps cannot use its inverse Hessian unless a subclass overrides this."""

    supports_exact_steps: ClassVar[bool] = False
    inverse_acts_on_rows: ClassVar[bool] = False

    def why_not(self, loss: Loss) -> str | None:
        """Return None: every convex loss is supported."""
        return None


def append_bias_column(features: Tensor, bias: bool) -> Tensor:
    """Return the features in float64, with a last column of ones if the head has a bias."""

    if isinstance(features, Rows):
        return rowwise(lambda held: append_bias_column(held, bias), features, columns=features.shape[1] + bias)
    columns = features.T.to(torch.float64)  # stored by columns: see `gnvpro.linalg.columns`
    return (torch.cat([columns, columns.new_ones((1, columns.shape[1]))]) if bias else columns.contiguous()).T
