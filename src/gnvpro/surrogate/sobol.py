"""Sobol indices: the part of the variance of the outputs that each input causes.

    first order  S_i = E[f(B) (f(A_i) - f(A))] / V           by input i alone            (Saltelli 2010)
    total        T_i = E[(f(A) - f(A_i))^2] / (2 V)          with all its interactions   (Jansen 1999)

A and B are samples of all inputs, A_i is A with input i from B. Independent scrambled Sobol sequences give replicates of each
index, and their spread an interval. It contains the error of the integration, not the error of the surrogate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.stats import qmc

from gnvpro.surrogate.distribution import Inputs
from gnvpro.surrogate.likelihood import Array

REPLICATES = 16


@dataclass(frozen=True)
class SobolIndices:
    """Indices of each input, (inputs,) or (outputs, inputs), with lower and upper ends of their intervals."""

    first: Array
    total: Array
    first_interval: tuple[Array, Array]
    total_interval: tuple[Array, Array]


def sobol_indices(function: Callable[[Array], Array], inputs: Inputs, n: int, level: float, seed: int) -> SobolIndices:
    """Return the indices of a function of (points, inputs) with values (points, outputs), from n points per replicate."""
    d = len(inputs)
    found = []
    for each in range(REPLICATES):
        unit = qmc.Sobol(2 * d, rng=np.random.default_rng([seed, each])).random(n)
        A, B = inputs.at(unit[:, :d]), inputs.at(unit[:, d:])
        mixed = []
        for i in range(d):
            Ai = A.copy()
            Ai[:, i] = B[:, i]
            mixed.append(Ai)
        values = function(np.concatenate([A, B, *mixed])).reshape(d + 2, n, -1)
        middle = values[:2].mean((0, 1))
        a, b, m = values[0] - middle, values[1] - middle, values[2:] - middle
        variance = np.square(values[:2] - middle).mean((0, 1))
        variance = np.where(variance > 0, variance, np.inf)  # a constant output has indices of zero
        found.append(((b * (m - a)).mean(1) / variance, 0.5 * np.square(m - a).mean(1) / variance))
    first, total = (np.stack(each).transpose(0, 2, 1) for each in zip(*found, strict=True))
    quantile = float(special.stdtrit(REPLICATES - 1, 0.5 + level / 2))
    return SobolIndices(first.mean(0), total.mean(0), _interval(first, quantile), _interval(total, quantile))


def _interval(replicates: Array, quantile: float) -> tuple[Array, Array]:
    middle, error = replicates.mean(0), replicates.std(0, ddof=1) / np.sqrt(REPLICATES)
    return middle - quantile * error, middle + quantile * error
