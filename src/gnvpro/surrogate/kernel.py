"""Kernels over all inputs, with every derivative: a product of one correlation per input.

    k(x, y) = prod_e c_e(x_e - y_e)        c_e(h) = 1 - w_e + w_e rho(h / length_e)

With w = 1 the kernel has relevance lengths only (ARD). With w < 1 it contains all products of some inputs (an ANOVA kernel), so
that a sum of functions of few inputs is cheap to represent. KernelRows of a matrix are values or derivatives; the entry of the
derivative alpha in x and beta in y is

    (-1)^|beta| k(x, y) prod_e c_e^(alpha_e + beta_e) / c_e

    legend: alpha, beta   one tuple of inputs per row kind: () is a value, (2,) the slope in input 2, (0, 1) a second derivative
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.surrogate.correlation import correlation

Kind = tuple[int, ...]
VALUES: tuple[Kind, ...] = ((),)


@dataclass(frozen=True)
class Kernel:
    """A product kernel: its kind, a length per input, and a share w per input (None: all one)."""

    kind: str
    lengths: Tensor
    shares: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether values follow from distances alone."""
        return self.kind == "rbf" and self.shares is None

    def between(self, x: Tensor, y: Tensor, rows: Sequence[Kind] = VALUES, columns: Sequence[Kind] = VALUES) -> Tensor:
        """Return the matrix of all row kinds at x (one after another) and all column kinds at y."""
        order = max(max(Counter(alpha + beta).values(), default=0) for alpha in rows for beta in columns)
        if order == 0 and self.is_plain:
            return self._smooth(x, y)
        K, ratios = self._parts(x, y, order)
        blocks = []
        for alpha in rows:
            line = []
            for beta in columns:
                block = K if len(beta) % 2 == 0 else -K
                for e, times in Counter(alpha + beta).items():
                    block = block * ratios[times][e]
                line.append(block)
            blocks.append(torch.cat(line, 1) if len(line) > 1 else line[0])
        return torch.cat(blocks) if len(blocks) > 1 else blocks[0]

    def variances(self, rows: Sequence[Kind]) -> Tensor:
        """Return the prior variance of each row kind, the same at every point."""
        zero = torch.zeros(1, len(self.lengths), dtype=self.lengths.dtype)
        return torch.stack([self.between(zero, zero, (kind,), (kind,))[0, 0] for kind in rows])

    def _smooth(self, x: Tensor, y: Tensor) -> Tensor:
        """Values of the rbf kernel, by one matrix product."""
        x, y = x / self.lengths, y / self.lengths
        squares = torch.addmm(x.square().sum(1)[:, None] + y.square().sum(1), x, y.T, alpha=-2)
        return torch.exp(-0.5 * squares.clamp_min(0))

    def _parts(self, x: Tensor, y: Tensor, order: int) -> tuple[Tensor, list[Tensor]]:
        """The values, and the derivatives of each input's factor over the factor, order by order: (inputs, points, points)."""
        h = x.T[:, :, None] - y.T[:, None]
        decay, polynomials = correlation(self.kind, h, self.lengths[:, None, None], order)
        if self.shares is None:
            c = decay * polynomials[0]
            return c.prod(0), [p / polynomials[0] for p in polynomials] if order else []
        w = self.shares[:, None, None]
        c = 1 - w + w * decay * polynomials[0]
        return c.prod(0), [w * decay * p / c for p in polynomials] if order else []
