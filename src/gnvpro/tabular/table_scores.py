"""Scores of a model of a table on held-out rows, compared with simpler and common models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, r2_score, root_mean_squared_error
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gnvpro.tabular.model_file import Estimator

Array = NDArray[Any]
MAX_TARGETS_OF_TREES = 8  # each of which takes a model of its own


def scores(classify: bool, model: Any, X: Any, y: Array) -> dict[str, float]:
    """The numbers of one set."""
    if classify:
        probabilities = model.predict_proba(X)
        return {
            "accuracy": float(accuracy_score(y, model.predict(X))),
            "log_loss": float(log_loss(y, probabilities, labels=model.classes_)),
        }
    predicted = model.predict(X)
    return {
        "r2": float(r2_score(y, predicted)) if len(y) > 1 else float("nan"),
        "rmse": float(root_mean_squared_error(y, predicted)),
        "mae": float(mean_absolute_error(y, predicted)),
    }


def coverage(y: Array, mean: Array, std: Array) -> dict[str, float]:
    """Shares of observations within one and two standard deviations; 68% and 95% if these are calibrated."""
    far = np.abs(y - mean) / np.maximum(std, np.finfo(float).tiny)
    return {"within_1_std": float((far <= 1).mean()), "within_2_std": float((far <= 2).mean())}


def baselines(classify: bool, n_targets: int, seed: int) -> dict[str, Any]:
    """Models to compare with, each with its defaults."""
    if classify:
        return {
            "most frequent class": DummyClassifier(strategy="prior"),
            "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
            "boosted trees": HistGradientBoostingClassifier(random_state=seed),
        }
    trees: Any = HistGradientBoostingRegressor(random_state=seed)
    found: dict[str, Any] = {"mean": DummyRegressor(), "linear regression": LinearRegression()}
    if n_targets <= MAX_TARGETS_OF_TREES:
        found["boosted trees"] = trees if n_targets == 1 else MultiOutputRegressor(trees)
    return found


def importance(score: Callable[[Any], float], X: Any, seed: int, rounds: int = 3) -> dict[str, float]:
    """By how much the error grows when a column of the table is shuffled among the rows: the mean over a few rounds."""
    random = np.random.default_rng(seed)
    before = score(X)
    found = {}
    for name in X.columns:
        grown = [score(X.assign(**{name: X[name].array[random.permutation(len(X))]})) - before for _ in range(rounds)]
        found[name] = float(np.mean(grown))
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def error_of(classify: bool, model: Estimator, y: Array) -> Callable[[Any], float]:
    """Increase of the error if an input is shuffled: root mean square error, or log loss."""
    return lambda X: scores(classify, model, X, y)["log_loss" if classify else "rmse"]
