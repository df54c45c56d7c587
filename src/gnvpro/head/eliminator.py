"""Eliminating the head: what a solution of the inner problem holds, and who finds it.

    W(theta) = argmin_W  misfit(Z W') + head_penalty/2 |W|_F^2,        Z = features(theta), a column of ones for the bias

The inner problem is convex and small. It is always solved in float64, whatever the network computes in.

Legend: W(theta) -> HeadFit.W, inverse of the Hessian in W -> HeadFit.inverse_hessian, alpha_2 -> head_penalty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from gnvpro.problem.misfit import Misfit
from gnvpro.linalg.operators import LinearOperator
from gnvpro.minimize.status import Status
from gnvpro.linalg.columns import by_columns


@dataclass(frozen=True)
class WarmStart:
    """Where an elimination may begin: a head and, for Newton's method, a Cholesky factor of a Hessian near it."""

    W: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True)
class HeadFit:
    """The eliminated head, with the inverse Hessian of the inner problem there."""

    W: Tensor
    outputs: Tensor
    status: Status
    iterations: int
    build_inverse: Callable[[], tuple[LinearOperator, Tensor | None]]
    exact: bool  # whether the inverse is that of the Hessian, or only one on a Krylov space
    old_factor: Tensor | None = None
    rowwise: bool = False  # whether the inverse multiplies from the right, so that it takes any number of rows

    @cached_property
    def _inverse(self) -> tuple[LinearOperator, Tensor | None]:
        return self.build_inverse()

    @property
    def inverse_hessian(self) -> LinearOperator:
        """Maps (n_targets, n_features) to the same; built at the first use, since rejected trials never need it."""
        return self._inverse[0]

    @property
    def hessian_factor(self) -> Tensor | None:
        """The Cholesky factor behind the inverse, in vec(W), where it has one."""
        return self._inverse[1]

    @property
    def warm_start(self) -> WarmStart:
        """Where the elimination at a nearby theta should begin."""
        factor = self._inverse[1] if "_inverse" in self.__dict__ else self.old_factor
        return WarmStart(self.W, factor)


class Eliminator(Protocol):
    """Solves the inner problem."""

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """The head that minimises misfit plus penalty for these features; `start` may save work, never change the answer."""
        ...


def with_ones(features: Tensor, bias: bool) -> Tensor:
    """The features in float64, with a last column of ones where the head has a bias."""
    Z = by_columns(features.to(torch.float64))
    return torch.cat([Z.T, Z.new_ones((1, Z.shape[0]))]).T if bias else Z
