"""Damped Gauss-Newton steps from the triangular factor of the Jacobian.

    J = Q R D,    D = diag(norms)        s = argmin |r - J s|^2 + damping |D s|^2  =  D^-1 y
    [R; sqrt(damping) I] = Q' R',        y = R'^-1 Q'' [Q'r; 0]

J is the derivative of the fitted curves, r = y - fit. With columns of length one the largest entry on the diagonal of the
matrix is one, which is the scale of the damping. It is the local model of `minimize.row_model` for a few variables: one
factorisation of all rows serves every damping, and no matrix is squared.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from gnvpro.curves.algebra import Array
from gnvpro.minimize.step_rules import Step


class TriangleModel:
    """The local model |r - J s|^2 / 2 around a point."""

    scale: ClassVar[float] = 1.0

    def __init__(self, R: Array, along: Array, lengths: Array, residual: float) -> None:
        self.R, self.along, self.lengths, self.residual = R, along, lengths, residual

    @property
    def rank(self) -> int:
        """Dimension of the space of its steps."""
        return len(self.along)

    @cached_property
    def gradient(self) -> Tensor:
        """Gradient at the point."""
        return torch.from_numpy(-self.lengths * (self.R.T @ self.along))

    @property
    def offset(self) -> float:
        """Length of the residual in the range of J, relative to the whole residual."""
        return math.sqrt(float(self.along @ self.along)) / self.residual if self.residual > 0 else 0.0

    @property
    def first_radius(self) -> float:
        """Length of a safely damped step."""
        return self.solve_damped(1e-3).norm

    def solve_within(self, radius: float) -> Step:
        """Raise an error: steps of this model are damped."""
        raise TypeError("steps from rows are bounded by a damping, not by a radius")

    def solve_damped(self, damping: float) -> Step:
        """Return the step for this damping."""
        p = len(self.along)
        stacked = np.zeros((2 * p, p + 1), order="F")
        stacked[:p, :p], stacked[:p, p] = self.R, self.along
        stacked[range(p, 2 * p), range(p)] = math.sqrt(damping)
        qr, _, _, _ = lapack.dgeqrf(stacked, overwrite_a=1)
        y, _ = lapack.dtrtrs(qr[:p, :p], qr[:p, p])
        moved = self.R @ y
        lengths = np.where(self.lengths != 0, self.lengths, 1.0)
        return Step(
            torch.from_numpy(y / lengths),
            math.sqrt(float(y @ y)) / max(abs(lengths)),
            float(self.along @ moved - 0.5 * moved @ moved),
            damping,
        )
