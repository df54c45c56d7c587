"""Scaling of inputs: what has long tails is compressed, all else is left alone."""

from __future__ import annotations

import numpy as np
import torch

from gnvpro.sklearn.scaling import CompressTails, compress_tails, weighted_median


def columns(n: int = 400) -> np.ndarray:
    """Gaussian, log-normal, rarely one, mostly zero."""
    rng = np.random.default_rng(0)
    return np.c_[
        rng.normal(size=n), np.exp(2 * rng.normal(size=n)), rng.random(n) < 0.02, rng.poisson(0.2, n) * rng.random(n)
    ]


def kurtosis(x: np.ndarray) -> float:
    return float((((x - x.mean()) / x.std()) ** 4).mean())


def test_only_long_tails_are_compressed() -> None:
    X = columns()
    tails = compress_tails(X, np.ones(len(X)))
    assert isinstance(tails, CompressTails)
    assert (tails.width > 0).tolist() == [False, True, False, True]
    seen = tails(torch.tensor(X)).numpy()
    assert np.array_equal(seen[:, [0, 2]], X[:, [0, 2]])
    assert kurtosis(X[:, 1]) > 20 > 5 > kurtosis(seen[:, 1])
    assert (np.argsort(seen[:, 1]) == np.argsort(X[:, 1])).all()
    assert compress_tails(X[:, [0, 2]], np.ones(len(X))) is None


def test_a_weight_counts_samples() -> None:
    X, counts = columns(150), np.random.default_rng(1).integers(1, 4, 150)
    repeated = np.repeat(X, counts, axis=0)
    weighted, plain = compress_tails(X, counts.astype(float)), compress_tails(repeated, np.ones(len(repeated)))
    assert weighted is not None
    assert plain is not None
    assert torch.allclose(weighted.width, plain.width)
    assert torch.allclose(weighted.centre, plain.centre)
    assert weighted_median(np.array([[3.0], [1.0], [2.0]]), np.array([1.0, 1.0, 5.0]))[0] == 2.0
