"""Surrogates of known functions: `gnvpro.surrogate` beside scikit-learn's Gaussian process (constant times RBF, ARD).

    python -m benchmarks.surrogates
    python -m benchmarks.surrogates --functions borehole piston --samples 50 100 200 --draws 5
    python -m benchmarks.surrogates --speed      points per second, 10 inputs and 100 samples

Latin hypercubes in the unit box of each function's ranges, 2000 random test points. Printed: the root mean square error over
the deviation of the test values (geometric mean over draws), the share of test values within 1.96 standard deviations, and
processor seconds of the fit.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

Array = NDArray[np.float64]
TEST_POINTS = 2000


def borehole(x: Array) -> Array:
    rw, r, Tu, Hu, Tl, Hl, L, Kw = x.T
    log = np.log(r / rw)
    return 2 * np.pi * Tu * (Hu - Hl) / (log * (1 + 2 * L * Tu / (log * rw**2 * Kw) + Tu / Tl))


def wing_weight(x: Array) -> Array:
    S, fuel, A, sweep, q, taper, thick, load, W, paint = x.T
    cos = np.cos(np.deg2rad(sweep))
    shape = S**0.758 * fuel**0.0035 * (A / cos**2) ** 0.6 * q**0.006 * taper**0.04 * (100 * thick / cos) ** -0.3
    return 0.036 * shape * (load * W) ** 0.49 + S * paint


def piston(x: Array) -> Array:
    M, S, V0, k, P0, Ta, T0 = x.T
    A = P0 * S + 19.62 * M - k * V0 / S
    V = S / (2 * k) * (np.sqrt(A**2 + 4 * k * P0 * V0 / T0 * Ta) - A)
    return 2 * np.pi * np.sqrt(M / (k + S**2 * P0 * V0 / T0 * Ta / V**2))


def otl(x: Array) -> Array:
    b1, b2, f, c1, c2, beta = x.T
    c = beta * (c2 + 9)
    return (12 * b2 / (b1 + b2) + 0.74) * c / (c + f) + 11.35 * f / (c + f) + 0.74 * f * c / ((c + f) * c1)


def robot_arm(x: Array) -> Array:
    angles, lengths = np.cumsum(x[:, :4], 1), x[:, 4:]
    return np.hypot((lengths * np.cos(angles)).sum(1), (lengths * np.sin(angles)).sum(1))


def ishigami(x: Array) -> Array:
    return np.sin(x[:, 0]) + 7 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0])


def friedman(x: Array) -> Array:
    return 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], list[float], list[float]]] = {
    "borehole": (
        borehole,
        [0.05, 100, 63070, 990, 63.1, 700, 1120, 9855],
        [0.15, 50000, 115600, 1110, 116, 820, 1680, 12045],
    ),
    "wing": (
        wing_weight,
        [150, 220, 6, -10, 16, 0.5, 0.08, 2.5, 1700, 0.025],
        [200, 300, 10, 10, 45, 1, 0.18, 6, 2500, 0.08],
    ),
    "piston": (piston, [30, 0.005, 0.002, 1000, 90000, 290, 340], [60, 0.02, 0.01, 5000, 110000, 296, 360]),
    "otl": (otl, [50, 25, 0.5, 1.2, 0.25, 50], [150, 70, 3, 2.5, 1.2, 300]),
    "arm": (robot_arm, [0] * 8, [2 * np.pi] * 4 + [1] * 4),
    "ishigami": (ishigami, [-np.pi] * 3, [np.pi] * 3),
    "friedman": (friedman, [0] * 5, [1] * 5),
}


@dataclass(frozen=True)
class Draw:
    """Samples and test points in the unit box, with values."""

    X: Array
    y: Array
    at: Array
    truth: Array

    @classmethod
    def of(cls, name: str, samples: int, seed: int) -> Draw:
        """Return the draw of a seed."""
        f, low, high = FUNCTIONS[name]
        width = np.subtract(high, low)
        X = qmc.LatinHypercube(len(low), rng=seed).random(samples)
        at = np.random.default_rng([seed, samples]).random((TEST_POINTS, len(low)))
        return cls(X, f(low + width * X), at, f(low + width * at))


def ours(draw: Draw) -> tuple[Array, Array]:
    from gnvpro.surrogate import fit

    mean, std, _ = fit(draw.X, draw.y).predict(draw.at, return_std=True, return_outside=True)
    return mean, std


def gaussian_process(draw: Draw) -> tuple[Array, Array]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(1.0, (1e-6, 1e8)) * RBF(np.ones(draw.X.shape[1]), (1e-3, 1e4))
    middle, size = draw.X.mean(0), draw.X.std(0)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit((draw.X - middle) / size, draw.y)
    return model.predict((draw.at - middle) / size, return_std=True)


def speed() -> None:
    """Print points per processor second of a kernel with shares of inputs and of one without: values, slopes."""
    import torch

    from gnvpro.surrogate.candidates import Form, Sampled

    draw, at = Draw.of("wing", 100, 0), torch.rand(20_000, 10, dtype=torch.float64)
    data = Sampled(torch.as_tensor(draw.X), torch.as_tensor(draw.y)[:, None])
    for shares in (True, False):
        trial = Form("rbf", shares, log=False, trend="constant", noise=True).tried(data, most=2)
        assert trial is not None
        for function in (trial.member.values, trial.member.gradient):
            function(at[:100], False)
            start = time.process_time()
            function(at, False)
            print(f"shares {shares}, {function.__name__}: {len(at) / (time.process_time() - start):.2g} points/s")


CONTENDERS = {"gnvpro.surrogate": ours, "Gaussian process": gaussian_process}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="+", choices=list(FUNCTIONS), default=list(FUNCTIONS))
    parser.add_argument("--samples", nargs="+", type=int, default=[50, 100, 200])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--speed", action="store_true", help="measure points per second only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.speed:
        speed()
        return
    print("| function | samples | " + " | ".join(f"{name}: error, covered, s" for name in CONTENDERS) + " |")
    print("|---|---|" + "---|" * len(CONTENDERS))
    for name in options.functions:
        for samples in options.samples:
            draws = [Draw.of(name, samples, options.first_draw + k) for k in range(options.draws)]
            cells = [measured(contender, draws) for contender in CONTENDERS.values()]
            print(f"| {name} | {samples} | " + " | ".join(cells) + " |", flush=True)


def measured(contender: Callable[[Draw], tuple[Array, Array]], draws: list[Draw]) -> str:
    found = []
    for draw in draws:
        start = time.process_time()
        mean, std = contender(draw)
        seconds = time.process_time() - start
        error = np.sqrt(np.mean((mean - draw.truth) ** 2)) / draw.truth.std()
        found.append((np.log(error), np.mean(np.abs(mean - draw.truth) < 1.96 * std), seconds))
    error, covered, seconds = np.mean(found, 0)
    return f"{np.exp(error):.2g}, {covered:.0%}, {seconds:.2f}"


if __name__ == "__main__":
    main()
