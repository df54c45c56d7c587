"""The objective of a head on a batch, held close to another head, and steps towards its minimum.

    misfit(Z W') + a2/2 |W|^2 + rho/2 |W - W_near|^2

Legend: a2 -> head_penalty, rho -> proximal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnvpro.head.newton import HeadObjective, HeadPoint
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.columns import weighted_squares
from gnvpro.linalg.rows import rowwise
from gnvpro.problem.penalties import ridge


@dataclass(frozen=True)
class Proximal(HeadObjective):
    """The function misfit(Z W') + a2/2 |W|^2 + rho/2 |W - W_near|^2."""

    proximal: float = 0.0
    W_near: Tensor = field(default_factory=lambda: torch.zeros(()))

    @property
    def ridge(self) -> float:
        """Total weight of |W|^2 / 2."""
        return self.head_penalty + self.proximal

    @property
    def rows(self) -> float:
        """Rows of the batch in all processes."""
        return float(self.misfit.over.total(self.W_near.new_tensor(float(len(self.Z)))))

    def value(self, W: Tensor, outputs: Tensor) -> float:
        """Return the objective of a head with these outputs."""
        away = 0.5 * self.proximal * float((W - self.W_near).square().sum()) if self.proximal else 0.0
        return self.misfit.value(outputs) + ridge(self.head_penalty, W) + away

    def at(self, x: Tensor, near: HeadPoint | None) -> HeadPoint:
        """Evaluate the objective; `near` is not needed."""
        point = super().at(x, near)
        if not self.proximal:
            return point
        away = point.W - self.W_near
        value = point.value + 0.5 * self.proximal * float(away.square().sum())
        return replace(point, value=value, gradient_W=point.gradient_W + self.proximal * away)

    def hessian(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the second derivative as a map of dW."""
        return HeadObjective(self.Z, self.misfit, self.ridge).hessian(outputs)

    def hessian_blocks(self, outputs: Tensor) -> Tensor:
        """Return the diagonal blocks of the misfit's Hessian, one for each row of W.

        With fewer rows than features none has full rank, and their mean stands for all: the factors of ten wide blocks
        would take most of the time of a batch.
        """
        diagonal = self.misfit.hessian_diagonal(outputs)
        if self.rows < self.Z.shape[1]:
            diagonal = rowwise(lambda each: each.mean(1, keepdim=True), diagonal, columns=1)
        return self.misfit.over.sum(weighted_squares, self.Z, diagonal)

    def blocks(self, outputs: Tensor) -> Tensor:
        """Return their Cholesky factors, with the penalty and the proximal weight."""
        return factors(self.hessian_blocks(outputs), self.ridge)


def block_solver(blocks: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the inverse of the blocks, from a Cholesky factor for each row of W, or one for all."""
    if len(blocks) == 1:
        return lambda R: torch.cholesky_solve(R.T, blocks[0]).T
    return lambda R: torch.cholesky_solve(R[:, :, None], blocks)[:, :, 0]


def factors(blocks: Tensor, ridge: float) -> Tensor:
    """Return a Cholesky factor for each block."""
    blocks = blocks.clone()
    blocks.diagonal(dim1=1, dim2=2).add_(ridge)
    return torch.stack([damped_cholesky(block)[0] for block in blocks])
