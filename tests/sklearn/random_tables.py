"""Tables of every shape that people have, drawn by a seed, and what an estimator must do on each.

regressor     R2 on 500 new rows at most 0.05 below the better of the mean and ridge regression, for every target
classifier    log loss at most 0.05 above the better of the classes' shares and logistic regression
both          finite numbers, or a ValueError of one sentence that names what is wrong; a row's prediction is its own
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gnvpro import GNvproClassifier, GNvproRegressor

NEW = 500
BEHIND = 0.05
SHAPES = ["tiny", "small", "wide", "tall"]
FLAWS = ["", "", "constant", "duplicated", "tails", "huge", "minute", "collinear", "integers", "equal rows", "outlier"]
TRUTHS = ["linear", "smooth", "steps", "noise", "product"]


@dataclass(frozen=True)
class RandomTable:
    """Training rows and new rows."""

    words: str  # what it is
    X: NDArray[Any]
    y: NDArray[Any]
    new_X: NDArray[Any]
    new_y: NDArray[Any]
    classes: bool


def drawn(seed: int) -> RandomTable:
    """Return the table of this seed."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    shape, flaw, truth = draw.choice(SHAPES), draw.choice(FLAWS), draw.choice(TRUTHS)
    n = {"tiny": draw.randrange(4, 20), "small": draw.randrange(20, 80), "wide": draw.randrange(10, 50), "tall": 200}[
        shape
    ]
    columns = draw.randrange(2 * n, 4 * n) if shape == "wide" else draw.choice([1, 2, 3, 5, 10])
    classes = draw.random() < 0.35
    X = rng.standard_cauchy((n + NEW, columns)) if flaw == "tails" else rng.normal(size=(n + NEW, columns))
    if flaw == "integers":
        X = np.round(2 * X)
    if flaw == "collinear":
        X = np.c_[X, X @ rng.normal(size=(columns, 2)), X[:, 0] + 1e-9 * rng.normal(size=n + NEW)]
    first, second = X[:, 0], X[:, -1]
    clean = {
        "linear": X[:, : min(4, columns)].sum(1),
        "smooth": np.sin(2 * first) + 0.5 * np.tanh(second),
        "steps": 1.0 * (first > 0) + 0.5 * (second > 1),
        "noise": np.zeros(n + NEW),
        "product": np.tanh(first) * np.tanh(second) + 0.3 * np.tanh(first),
    }[truth]
    noise = draw.choice([0.0, 0.1, 0.5, 1.0]) if truth != "noise" else 1.0
    if flaw == "constant":
        X = np.c_[X, np.full(n + NEW, 3.0)]
    if flaw == "duplicated":
        X = np.c_[X, X[:, :1]]
    if flaw == "equal rows":
        X[: n // 2], clean[: n // 2] = X[n - n // 2 : n], clean[n - n // 2 : n]
    if flaw == "outlier":
        X[0, 0] = 1e6
    y = clean + noise * rng.normal(size=n + NEW)
    if flaw == "huge":
        X[:, 0] *= 10.0 ** draw.choice([10, 100, 200])
    if flaw == "minute":
        X[:, 0] *= 10.0 ** -draw.choice([10, 100, 200])
    if classes:
        edges = np.quantile(y[:n], [0.5] if draw.random() < 0.7 else [0.4, 0.8])
        y = np.array(["low", "middle", "high"])[np.searchsorted(edges, y)]
    elif draw.random() < 0.2:
        y = np.c_[y, rng.normal(size=n + NEW), np.full(n + NEW, 2.0)]
    elif flaw in ("huge", "minute"):
        y = y * 10.0 ** draw.choice([0, 150, -150])
    words = f"{n} rows, {X.shape[1]} columns, {truth}, noise {noise}, {'classes' if classes else 'numbers'} {flaw}"
    return RandomTable(words, X[:n], y[:n], X[n:], y[n:], classes)


def check(seed: int) -> None:
    """Raise an AssertionError if an estimator falls behind on this table.

    With fewer than about 20 rows chance decides which simple model is the better one: no choice made before the new rows
    are seen can be never behind.
    """
    table = drawn(seed)
    made = GNvproClassifier(random_state=0) if table.classes else GNvproRegressor(random_state=0)
    few = len(table.y) < 2 or (table.classes and len(np.unique(table.y)) < 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.fit(table.X, table.y)
    except ValueError as error:
        if few and "\n" not in str(error):
            return
        raise AssertionError(f"{table.words}: refused: {error}") from error
    behind = (classes_behind if table.classes else numbers_behind)(made, table)
    assert behind <= BEHIND, f"{table.words}: behind a simple model by {behind:.3f}"


def numbers_behind(made: GNvproRegressor, table: RandomTable) -> float:
    """The largest R2 by which a target is behind the better of mean and ridge."""
    found = made.predict(table.new_X).reshape(len(table.new_y), -1)
    assert np.isfinite(found).all(), f"{table.words}: a prediction is not finite"
    few, sizes = made.predict(table.new_X[:3]).reshape(3, -1), abs(found).max(0)
    assert (abs(found[:3] - few) <= 1e-9 * sizes).all(), f"{table.words}: a prediction depends on other rows"
    y, new_y = (each.reshape(len(each), -1) for each in (table.y, table.new_y))
    size = np.maximum(abs(y).max(0), np.finfo(float).tiny)
    scale = 2.0 ** -np.frexp(abs(table.X).max(0))[1].clip(-1000, 1000)
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-6, 3, 19) * len(y)))
    behind = []
    for k in range(y.shape[1]):
        truth, mean = new_y[:, k] / size[k], np.full(NEW, (y[:, k] / size[k]).mean())
        if (truth == truth[0]).all():
            assert np.allclose(found[:, k], new_y[:, k]), f"{table.words}: a constant target is not predicted"
            continue
        line = ridge.fit(table.X * scale, y[:, k] / size[k]).predict(table.new_X * scale)
        best = max(r2_score(truth, mean), r2_score(truth, line))
        behind.append(best - r2_score(truth, found[:, k] / size[k]))
    return max(behind)


def classes_behind(made: GNvproClassifier, table: RandomTable) -> float:
    """The log loss by which the estimator is behind the better of the classes' shares and logistic regression."""
    kept = np.isin(table.new_y, made.classes_)
    shares = made.predict_proba(table.new_X)[kept]
    assert np.isfinite(shares).all(), f"{table.words}: a probability is not finite"
    assert np.array_equal(made.classes_[shares.argmax(1)], made.predict(table.new_X)[kept])
    scale = 2.0 ** -np.frexp(abs(table.X).max(0))[1].clip(-1000, 1000)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(table.X * scale, table.y)
    prior = np.array([(table.y == label).mean() for label in made.classes_])
    simple = (np.tile(prior, (kept.sum(), 1)), logistic.predict_proba(table.new_X[kept] * scale))
    losses = [log_loss(table.new_y[kept], each, labels=made.classes_) for each in simple]
    return log_loss(table.new_y[kept], shares, labels=made.classes_) - min(losses)
