"""The kernel model with its weights eliminated, and the search for its lengths.

    f(x) = h(x)' b + sum_i w_i k(x, x_i; theta)             y = f + noise, variance of the noise  lambda s

The norm of the function space is the penalty on w, and b has none. With K the kernel matrix plus lambda, both are eliminated:

    P = K^-1 - K^-1 H (H' K^-1 H)^-1 H' K^-1      w = P y      s = y' P y / (n - p)
    -2 log p(y | theta) = log|K| + log|H' K^-1 H| + (n - p) log s + constant    (restricted likelihood, summed over outputs)
    its slope in K:  P - w w' / s                 left out:  y_i - f_(-i)(x_i) = w_i / P_ii,  variance  s / P_ii

The slope in theta is the slope in K, passed back through the kernel by automatic differentiation. A weak prior on the lengths
keeps inputs that the samples say little about at a moderate length.

    legend: s variance   lambda nugget   theta log lengths, shares, log nuggets   w weights   b trend coefficients
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gnvpro.surrogate.kernel import Kernel, Kind
from gnvpro.surrogate.trend import Trend

Array = NDArray[np.float64]

LOG_NUGGETS = (math.log(1e-11), 0.0)  # the least keeps the Cholesky factor of smooth kernels positive in float64
LOG_LENGTHS = (math.log(0.02), math.log(200.0))  # in half ranges of an input
LOGIT_SHARES = (-10.0, 10.0)  # of the share w of an input
PRIOR_DEVIATION = 1.5  # of log lengths, around the root of the number of inputs
MAX_EVALUATIONS = 150  # of the likelihood from one start
SETTLED = 1e-7  # relative change of the value that ends a search
HOPELESS = 1e25  # value where the matrix has no Cholesky factor


@dataclass(frozen=True)
class KernelRows:
    """Observed values and slopes: row kinds stacked, `kept` picks the rows that were observed (None: all)."""

    x: Tensor
    y: Tensor  # (rows, outputs)
    kinds: tuple[Kind, ...] = ((),)
    kept: Tensor | None = None

    def of(self, stacked: Tensor) -> Tensor:
        """Return the observed rows of a matrix of all row kinds."""
        return stacked if self.kept is None else stacked[self.kept]

    def square(self, stacked: Tensor) -> Tensor:
        """Return the observed rows and columns."""
        return stacked if self.kept is None else stacked[self.kept][:, self.kept]

    @property
    def sample(self) -> Tensor:
        """The sample that each row belongs to."""
        return self.of(torch.arange(len(self.x)).repeat(len(self.kinds)))

    @property
    def is_value(self) -> Tensor:
        """Whether each row is a value."""
        return self.of(torch.arange(len(self.x) * len(self.kinds)) < len(self.x))


@dataclass(frozen=True)
class Theta:
    """What is searched: a kernel and the nuggets of values and slopes, in units of the prior variance of each row."""

    kernel: Kernel
    nugget: Tensor
    slope_nugget: Tensor


@dataclass(frozen=True)
class Eliminated:
    """The weights and what follows from them."""

    theta: Theta
    L: Tensor  # K = L L'
    F: Tensor  # L^-1 H
    R: Tensor  # F' F = R' R
    P: Tensor
    w: Tensor
    b: Tensor
    s: Tensor
    value: float  # -log p(y | theta)


def noise_of_rows(theta: Theta, rows: KernelRows) -> Tensor:
    """Return the variance of each row's noise, in units of s."""
    prior = theta.kernel.variances(rows.kinds)
    each = torch.cat([theta.nugget.reshape(1), theta.slope_nugget.expand(len(rows.kinds) - 1)]) * prior
    return rows.of(each.repeat_interleave(len(rows.x)))


def eliminate(K: Tensor, H: Tensor, Y: Tensor, theta: Theta) -> Eliminated | None:
    """Eliminate weights and trend; None if K is not positive definite in float64."""
    L, failed = torch.linalg.cholesky_ex(K)
    if failed:
        return None
    F = torch.linalg.solve_triangular(L, H, upper=False)
    Z = torch.linalg.solve_triangular(L, Y, upper=False)
    Q, R = torch.linalg.qr(F)
    least = R.diagonal().abs().min()
    if not least > 0:
        return None
    b = torch.linalg.solve_triangular(R, Q.T @ Z, upper=True)
    rest = Z - F @ b
    w = torch.linalg.solve_triangular(L.T, rest, upper=True)
    across = torch.linalg.solve_triangular(L.T, Q, upper=True)
    P = torch.cholesky_inverse(L) - across @ across.T
    dof = len(Y) - H.shape[1]
    s = (rest.square().sum(0) / dof).clamp_min(torch.finfo(Y.dtype).tiny)
    logs = 2 * L.diagonal().log().sum() + 2 * R.diagonal().abs().log().sum()
    value = 0.5 * float(Y.shape[1] * logs + dof * s.log().sum())
    return Eliminated(theta, L, F, R, P, w, b, s, value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Likelihood:
    """-log p(y | theta) and its slope, for one kind of kernel and trend."""

    rows: KernelRows
    kind: str
    trend: Trend
    anova: bool
    noise: bool  # whether nuggets are searched; else they are the least

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.rows.x.shape[1]

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Bounds of the numbers that are searched."""
        shares = [LOGIT_SHARES] * self.inputs if self.anova else []
        nuggets = [LOG_NUGGETS] * (1 + (len(self.rows.kinds) > 1)) if self.noise else []
        return [LOG_LENGTHS] * self.inputs + shares + nuggets

    def theta(self, z: Tensor) -> Theta:
        """Return what numbers stand for."""
        d = self.inputs
        shares = torch.sigmoid(z[d : 2 * d]) if self.anova else None
        logs = z[d * (1 + self.anova) :] if self.noise else z.new_full((1,), LOG_NUGGETS[0])
        return Theta(Kernel(self.kind, z[:d].exp(), shares), logs[0].exp(), logs[-1].exp())

    def matrices(self, theta: Theta) -> tuple[Tensor, Tensor]:
        """Return the kernel's matrix with its nugget, and the trend."""
        rows = self.rows
        K = rows.square(theta.kernel.between(rows.x, rows.x, rows.kinds, rows.kinds))
        return K + torch.diag(noise_of_rows(theta, rows)), rows.of(self.trend.columns(rows.x, rows.kinds))

    def at(self, z: Tensor) -> Eliminated | None:
        """Return the eliminated model there."""
        with torch.no_grad():
            theta = self.theta(z)
            return eliminate(*self.matrices(theta), self.rows.y, theta)

    def slope(self, numbers: Array) -> tuple[float, Array]:
        """Return the value with the prior, and its slope."""
        z = torch.tensor(numbers, requires_grad=True)
        theta = self.theta(z)
        K, H = self.matrices(theta)
        with torch.no_grad():
            found = eliminate(K, H, self.rows.y, theta)
        if found is None:
            return HOPELESS, np.zeros_like(numbers)
        scaled = found.w / found.s.sqrt()
        G = 0.5 * (self.rows.y.shape[1] * found.P - scaled @ scaled.T)
        gradient: Array = torch.autograd.grad(K, z, G)[0].numpy()
        from_middle = (numbers[: self.inputs] - self.middle) / PRIOR_DEVIATION
        gradient[: self.inputs] += from_middle / PRIOR_DEVIATION
        return found.value + 0.5 * float(from_middle @ from_middle), gradient

    @property
    def middle(self) -> float:
        """The middle of the prior of log lengths."""
        return 0.5 * math.log(self.inputs)

    def start(self, length: float, nugget: float) -> Array:
        """Return numbers to start from: equal lengths, in units of the prior's middle."""
        nuggets = [math.log(nugget)] * (1 + (len(self.rows.kinds) > 1)) if self.noise else []
        shares = [1.0] * self.inputs if self.anova else []
        return np.array([self.middle + math.log(length)] * self.inputs + shares + nuggets)

    def searched(self, starts: Sequence[Array], most: int = MAX_EVALUATIONS) -> tuple[float, Array]:
        """Return the least value over all starts, and where it is."""
        best = (math.inf, starts[0])
        for start in starts:
            found = minimize(
                self.slope,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=self.bounds,
                options={"maxfun": most, "maxiter": most, "ftol": SETTLED},
            )
            if found.fun < best[0]:
                best = (float(found.fun), found.x)
        return best
