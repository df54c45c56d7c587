"""Huber's loss by reweighting: least squares with weights v that make outliers count less.

    rho(r) = r^2 / 2 if |r| <= delta, else delta |r| - delta^2 / 2          v = min(1, delta / |r|)

Each least-squares fit lowers the sum of rho, and once the weights repeat themselves, its gradient is zero. delta is 1.345 times
the noise, estimated from the median of |r| (95% efficiency for Gaussian noise). Variances are Huber's (1981):

    s^2 = (sum psi^2 / (N - P)) / (mean psi')^2,          psi = v r,  psi' = [|r| <= delta]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gnvpro.curves.algebra import Array

EFFICIENT = 1.345
OF_MEDIAN = 1.4826  # standard deviation of Gaussian noise, in medians of its absolute value
REWEIGHTINGS = 200
SCALED = 30  # reweightings after which the noise is no longer estimated again: weights then converge
RESTARTED = 4  # reweightings that search from the first start, too
REPEATED = 1e-8  # change of the weights below which they repeat themselves


@dataclass(frozen=True)
class Huber:
    """Weights of residuals, given the noise."""

    delta: float

    @staticmethod
    def of(residual: Array, counted: Array) -> Huber:
        """The threshold for these residuals."""
        sizes = abs(residual[counted])
        middle = (len(sizes) - 1) // 2
        return Huber(EFFICIENT * OF_MEDIAN * float(np.partition(sizes, middle)[middle]))

    def weights(self, residual: Array) -> Array:
        """v."""
        return np.minimum(self.delta / np.maximum(abs(residual), 1e-300), 1.0)

    def loss(self, residual: Array) -> float:
        """The sum of rho."""
        inside = np.minimum(abs(residual), self.delta)
        return float(np.sum(inside * (abs(residual) - 0.5 * inside)))

    def variance(self, residual: Array, counted: Array, dof: int) -> float:
        """s^2."""
        r = residual[counted]
        inside = float(np.mean(abs(r) <= self.delta))
        psi = np.clip(r, -self.delta, self.delta)
        return float(psi @ psi) / dof / inside**2 if dof > 0 else math.nan
