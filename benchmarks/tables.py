"""Compare estimators with default settings on real tables: errors, log losses and processor seconds.

    python -m benchmarks.tables confirm                     all contenders with defaults, one split
    python -m benchmarks.tables small-confirm              nineteen tables of at most 1500 rows; small-choose: those chosen on
    python -m benchmarks.tables choose --splits 2          also: wider, several, simulated, many, confirm-many
    python -m benchmarks.tables many --only gnvpro --searched      search for penalties at any number of rows
    python -m benchmarks.tables confirm --tuned             contenders with a small grid each, by three-fold cross-validation
    python -m benchmarks.tables confirm --sets quakes,pima --only gnvpro
    python -m benchmarks.tables confirm --only gnvpro --regression --penalty 1e-4     both penalties given by hand

Inputs and targets are standardised for contenders that need it. A fifth of the rows is held out. Errors are in units
of the targets' standard deviation. Coverage: share of held-out targets within 1.96 standard deviations. Needs `pip
install ".[tables]"`.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.simulated_tables import SIMULATED
from benchmarks.table_sets import (
    CHOOSE,
    CONFIRM,
    CONFIRM_MANY,
    MANY_ROWS,
    SEVERAL,
    SMALL_CHOOSE,
    SMALL_CONFIRM,
    WIDER,
    TableSet,
)
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from xgboost import XGBClassifier, XGBRegressor

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.sklearn import base

MAX_GP_ROWS = 1200  # a GP of more takes minutes
MANY = [t for t in (*SIMULATED, *CHOOSE) if t.name in ("fold", "all-diamonds")] + MANY_ROWS
HALVES = {
    "choose": CHOOSE,
    "wider": WIDER,
    "several": SEVERAL,
    "simulated": SIMULATED,
    "many": MANY,
    "confirm": CONFIRM,
    "confirm-many": CONFIRM_MANY,
    "small-choose": SMALL_CHOOSE,
    "small-confirm": SMALL_CONFIRM,
}


def scaled(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


def quiet(seed: int) -> dict[str, Any]:
    return {"random_seed": seed, "thread_count": 1, "verbose": 0, "allow_writing_files": False}


def regression(model: Any) -> Any:
    return TransformedTargetRegressor(scaled(model), transformer=StandardScaler())


def regressors(seed: int, n: int, own: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    kernel = ConstantKernel() * RBF(3.0) + WhiteKernel(0.1)
    return {
        "gnvpro": lambda: GNvproRegressor(random_state=seed, **own),
        "MLP lbfgs": lambda: regression(MLPRegressor(solver="lbfgs", random_state=seed)),
        "MLP adam": lambda: regression(MLPRegressor(random_state=seed)),
        **({"GP": lambda: regression(GaussianProcessRegressor(kernel))} if n <= MAX_GP_ROWS else {}),
        "ridge": lambda: regression(RidgeCV(np.logspace(-3, 3, 13))),
        "HistGradientBoosting": lambda: HistGradientBoostingRegressor(random_state=seed),
        "LightGBM": lambda: LGBMRegressor(random_state=seed, n_jobs=1, verbose=-1),
        "CatBoost": lambda: CatBoostRegressor(**quiet(seed)),
        "XGBoost": lambda: XGBRegressor(random_state=seed, n_jobs=1),
        "RandomForest": lambda: RandomForestRegressor(random_state=seed, n_jobs=1),
    }


def classifiers(seed: int, n: int, own: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    return {
        "gnvpro": lambda: GNvproClassifier(random_state=seed, **own),
        "MLP lbfgs": lambda: scaled(MLPClassifier(solver="lbfgs", random_state=seed)),
        "MLP adam": lambda: scaled(MLPClassifier(random_state=seed)),
        **(
            {"GP": lambda: scaled(GaussianProcessClassifier(RBF(3.0), random_state=seed))}
            if n <= MAX_GP_ROWS / 2
            else {}
        ),
        "logistic": lambda: scaled(LogisticRegression(max_iter=1000)),
        "HistGradientBoosting": lambda: HistGradientBoostingClassifier(random_state=seed),
        "LightGBM": lambda: LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1),
        "CatBoost": lambda: CatBoostClassifier(**quiet(seed)),
        "XGBoost": lambda: XGBClassifier(random_state=seed, n_jobs=1),
        "RandomForest": lambda: RandomForestClassifier(random_state=seed, n_jobs=1),
    }


GRIDS: dict[str, dict[str, list[Any]]] = {
    "MLP lbfgs": {"alpha": [1e-4, 1e-1, 1.0]},
    "MLP adam": {"alpha": [1e-4, 1e-1], "early_stopping": [False, True]},
    "logistic": {"C": [0.1, 1.0, 10.0]},
    "HistGradientBoosting": {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [8, 31]},
    "LightGBM": {"learning_rate": [0.03, 0.1], "num_leaves": [8, 31]},
    "RandomForest": {"max_features": [0.33, 1.0]},
}


def tuned(name: str, model: Any) -> Any:
    if name not in GRIDS:
        return model
    inner = model.regressor if isinstance(model, TransformedTargetRegressor) else model
    prefix = "regressor__" if inner is not model else ""
    prefix += f"{inner.steps[-1][0]}__" if hasattr(inner, "steps") else ""
    score = "neg_log_loss" if hasattr(model, "predict_proba") or "lassif" in repr(inner) else None
    return GridSearchCV(model, {prefix + key: values for key, values in GRIDS[name].items()}, cv=3, scoring=score)


def measure(table: TableSet, seed: int, only: str, tune: bool, own: dict[str, Any]) -> dict[str, dict[str, float]]:
    X, y = table.load()
    Xa, Xb, ya, yb = train_test_split(
        X, y, test_size=0.2, random_state=seed, stratify=y if table.classification else None
    )
    found = {}
    makers = (classifiers if table.classification else regressors)(seed, len(Xa), own)
    for name, make in makers.items():
        if only and name not in only.split(","):
            continue
        model = tuned(name, make()) if tune else make()
        begun = time.process_time()
        model.fit(Xa, ya)
        row = {"seconds": time.process_time() - begun}
        if table.classification:
            probabilities = np.clip(model.predict_proba(Xb), 1e-15, 1)
            row |= {
                "error": 100 * float((np.ravel(model.predict(Xb)) != yb).mean()),
                "log loss": log_loss(yb, probabilities),
            }
        else:
            mean = model.predict(Xb)
            row["error"] = float(np.sqrt(np.mean((mean - yb) ** 2)) / np.std(ya))
            if name == "gnvpro":
                mean, std = model.predict(Xb, return_std=True)
                row |= likelihood(yb, mean, std, np.std(ya))
            elif name == "GP":
                scaler, gp = model.transformer_, model.regressor_
                mean, std = gp.predict(Xb, return_std=True)
                row |= likelihood(yb, scaler.inverse_transform(mean[:, None])[:, 0], std * scaler.scale_, np.std(ya))
        found[name] = row
    return found


def likelihood(y: np.ndarray, mean: np.ndarray, std: np.ndarray, scale: float) -> dict[str, float]:
    z = (y - mean) / std
    density = -0.5 * z**2 - np.log(std / scale) - 0.5 * np.log(2 * np.pi)
    return {"coverage": 100 * float((abs(z) < 1.96).mean()), "log likelihood": float(density.mean())}


def show(table: TableSet, found: dict[str, dict[str, float]]) -> None:
    measures = ("error", "log loss", "coverage", "log likelihood", "seconds")
    print(f"\n{table.name}")
    for name, row in found.items():
        cells = (f"{key} {row[key]:.4g}" for key in measures if key in row)
        print(f"  {name:22}" + "  ".join(f"{cell:22}" for cell in cells), flush=True)


def summary(results: list[tuple[TableSet, dict[str, dict[str, float]]]]) -> None:
    for classification in (False, True):
        rows = [found for table, found in results if table.classification is classification and len(found) > 1]
        if not rows:
            continue
        names = list(dict.fromkeys(name for found in rows for name in found))
        print(
            "\nclassification: mean error above the best (points), mean log loss" if classification else "\nregression:"
        )
        for name in names:
            there = [found for found in rows if name in found]
            best = [min(row["error"] for row in found.values()) for found in there]
            own = [found[name]["error"] for found in there]
            if classification:
                text = f"{np.mean(np.subtract(own, best)):6.2f} {np.mean([f[name]['log loss'] for f in there]):7.4f}"
            else:
                text = f"geometric mean of error over the best {np.exp(np.mean(np.log(np.divide(own, best)))):.3f}"
            seconds = [found[name]["seconds"] for found in there]
            mean = np.exp(np.mean(np.log(seconds)))
            print(f"  {name:22} {text}   seconds {mean:6.2f} (geometric mean)   ({len(there)} sets)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=list(HALVES))
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--sets", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--penalty", type=float, help="of theta and head, instead of those found")
    parser.add_argument("--regression", action="store_true", help="these sets only")
    parser.add_argument("--searched", action="store_true", help="penalties are searched for at any size")
    options = parser.parse_args()
    if options.searched:
        base.MANY = math.inf
    own = {} if options.penalty is None else {"theta_penalty": options.penalty, "head_penalty": options.penalty}
    torch.set_num_threads(1)
    threadpool_limits(1)  # numpy's threads too: on small arrays extra threads wait, and their waiting counts
    warnings.simplefilter("ignore")
    tables = [t for t in HALVES[options.half] if not options.sets or t.name in options.sets.split(",")]
    tables = [t for t in tables if not (options.regression and t.classification)]
    results = []
    for table in tables:
        runs = [measure(table, seed, options.only, options.tuned, own) for seed in range(options.splits)]
        mean: dict[str, dict[str, float]] = defaultdict(dict)
        for name, row in runs[0].items():
            mean[name] = {key: float(np.mean([run[name][key] for run in runs])) for key in row}
        show(table, mean)
        results.append((table, dict(mean)))
    summary(results)


if __name__ == "__main__":
    main()
