"""The objective of a head on a batch, held close to another head, and steps towards its minimum.

    misfit(Z W') + a2/2 |W|^2 + rho/2 |W - W_near|^2

Legend: a2 -> head_penalty, rho -> proximal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.linalg.columns import matmul_small, weighted_squares
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import ridge


@dataclass(frozen=True)
class Proximal:
    """The function misfit(Z W') + a2/2 |W|^2 + rho/2 |W - W_near|^2."""

    Z: Tensor
    misfit: Misfit
    head_penalty: float
    proximal: float
    W_near: Tensor

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

    def gradient(self, W: Tensor, outputs: Tensor) -> Tensor:
        """Return the derivative in W."""
        G = self.misfit.over.inner(self.misfit.gradient(outputs), self.Z) + self.head_penalty * W
        return G + self.proximal * (W - self.W_near) if self.proximal else G

    def hessian(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the second derivative as a map of dW."""
        apply, inner = self.misfit.hessian(outputs), self.misfit.over.inner
        return lambda dW: inner(apply(matmul_small(self.Z, dW.T)), self.Z) + self.ridge * dW

    def hessian_blocks(self, outputs: Tensor) -> Tensor:
        """Return the diagonal blocks of the misfit's Hessian, one for each row of W."""
        return self.misfit.over.sum(weighted_squares, self.Z, self.misfit.hessian_diagonal(outputs))

    def blocks(self, outputs: Tensor) -> Tensor:
        """Return their Cholesky factors, with the penalty and the proximal weight."""
        return factors(self.hessian_blocks(outputs), self.ridge)


def block_solver(blocks: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the inverse of the blocks, from a Cholesky factor for each row of W."""
    return lambda R: torch.cholesky_solve(R[:, :, None], blocks)[:, :, 0]


def factors(blocks: Tensor, ridge: float) -> Tensor:
    """Return a Cholesky factor for each block."""
    blocks = blocks.clone()
    blocks.diagonal(dim1=1, dim2=2).add_(ridge)
    return torch.stack([damped_cholesky(block)[0] for block in blocks])
