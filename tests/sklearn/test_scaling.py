"""Scaling of inputs: what has long tails is compressed, all else is left alone."""

from __future__ import annotations

import numpy as np
import torch

from gnvpro.sklearn.scaling import CompressTails, compress_tails, cut_into_pieces, weighted_median


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


def test_a_column_is_the_sum_of_its_pieces_within_what_was_seen() -> None:
    X = np.c_[columns(), np.full(400, 3.0)]
    pieces = cut_into_pieces(X, np.ones(len(X)))
    counts = np.bincount(pieces.column.numpy(), minlength=5).tolist()
    assert counts[:3] == [4, 4, 1]
    assert counts[3] < 4  # most of its values are zero: quantiles fall together
    seen = pieces(torch.tensor(X))
    assert 0 <= float(seen.min()) < float(seen.max()) <= 1
    for j in range(4):
        own = pieces.column == j
        rises = (pieces.high - pieces.low)[own]
        assert np.allclose(X[:, j].min() + (seen[:, own] * rises).sum(1).numpy(), X[:, j])
    assert not seen[:, pieces.column == 4].any()
    beyond = np.stack([X.min(0) - 5, X.max(0) + 5])
    ends = np.stack([X.min(0), X.max(0)])
    assert torch.equal(pieces(torch.tensor(beyond))[:, :-1], pieces(torch.tensor(ends))[:, :-1])


def test_between_two_knots_lie_as_many_samples_and_a_column_of_few_values_has_a_knot_at_each() -> None:
    rng = np.random.default_rng(0)
    X = np.c_[np.exp(rng.normal(size=1000)), rng.choice([0.0, 1.0, 5.0, 7.0], 1000, p=[0.9, 0.04, 0.03, 0.03])]
    pieces = cut_into_pieces(X, np.ones(1000))
    first = pieces.column == 0
    for low, high in zip(pieces.low[first].tolist(), pieces.high[first].tolist(), strict=True):
        assert abs(int(((low < X[:, 0]) & (X[:, 0] <= high)).sum()) - 250) <= 1
    assert pieces.low[~first].tolist() == [0.0, 1.0, 5.0]
    assert pieces.high[~first].tolist() == [1.0, 5.0, 7.0]


def test_a_weight_counts_samples_for_knots_too() -> None:
    X, counts = columns(150), np.random.default_rng(1).integers(1, 4, 150)
    weighted = cut_into_pieces(X, counts.astype(float))
    repeated = cut_into_pieces(np.repeat(X, counts, axis=0), np.ones(counts.sum()))
    for name, value in weighted.state_dict().items():
        assert torch.equal(value, repeated.state_dict()[name]), name
