"""GNvproRegressor and GNvproClassifier against scikit-learn's MLPRegressor and MLPClassifier, all with default
settings.

Five-fold cross-validation, repeated on other folds; mean score (R^2 or accuracy) and seconds of a five-fold run on
one core. The MLPs follow a StandardScaler, their targets are standardised too, and each of their solvers is
measured.

    python benchmarks/sklearn_mlp.py            the table of docs/lab/estimators.md
    python benchmarks/sklearn_mlp.py 1          one repetition
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gnvpro
from sklearn import datasets

SOLVERS = ("lbfgs", "adam", "sgd")


def california_like(samples: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Draw house values by income, age, rooms and place: skewed inputs, two peaks in the plane, growing noise, a
    cap.
    """
    rng = np.random.default_rng(0)
    income, rooms = rng.lognormal(1.2, 0.45, samples), rng.lognormal(1.65, 0.3, samples)
    age, bedrooms = rng.uniform(1, 52, samples), rng.normal(1.07, 0.1, samples)
    population, occupants = rng.lognormal(6.9, 0.7, samples), rng.lognormal(1.05, 0.25, samples)
    latitude = rng.uniform(32.5, 42, samples)
    longitude = -124 + 0.9 * (42 - latitude) + rng.uniform(-1, 3, samples)
    south, north = np.hypot(latitude - 34, longitude + 118.2), np.hypot(latitude - 37.8, longitude + 122.3)
    value = 0.42 * income + 0.9 * np.exp(-south) + 1.1 * np.exp(-north)
    value = value + 0.006 * age - 0.25 * np.log(occupants) + 0.1 * np.sin(rooms)
    value = np.clip(value * np.exp(0.15 * rng.normal(size=samples)), 0.15, 5)
    return np.c_[income, age, rooms, bedrooms, population, occupants, latitude, longitude], value


SETS = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "California-like": california_like,
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
}


def models(classify: bool, seed: int) -> dict[str, Any]:
    own = gnvpro.GNvproClassifier if classify else gnvpro.GNvproRegressor
    entries: dict[str, Any] = {"gnvpro": own(random_state=seed)}
    for solver in SOLVERS:
        mlp: Any = (MLPClassifier if classify else MLPRegressor)(solver=solver, random_state=seed)
        if not classify:
            mlp = TransformedTargetRegressor(mlp, transformer=StandardScaler())
        entries[f"MLP {solver}"] = make_pipeline(StandardScaler(), mlp)
    return entries


def measure(model: Any, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float]:
    """Mean score of five folds, and the seconds they took."""
    folds = (StratifiedKFold if is_classifier(model) else KFold)(5, shuffle=True, random_state=seed)
    start = time.process_time()
    score = float(cross_val_score(model, X, y, cv=folds, error_score="raise").mean())
    return score, time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)  # the MLPs' 200 iterations are their default
    seeds = range(
        1, 1 + (int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    )  # folds of seed 0 were used to set the defaults
    names = ["gnvpro", *(f"MLP {solver}" for solver in SOLVERS)]
    print("| set | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for name, load in SETS.items():
        X, y = load()
        classify = len(np.unique(y)) <= 10
        cells = []
        for entry in names:
            runs = np.array([measure(models(classify, seed)[entry], X, y, seed) for seed in seeds])
            score, seconds = runs.mean(0)
            cells.append(f"{score:.4f} ± {runs[:, 0].std():.4f}, {seconds:.2f} s")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
