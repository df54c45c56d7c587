"""`gnvpro train` and `gnvpro predict`: a table in; a model, its scores, its predictions and a card out.

    OUT/   model.safetensors   the model, with everything that `gnvpro predict` needs
           model.md            the model card
           predictions.csv     the held-out rows: observed and predicted
           history.csv         one line per iteration
           config.json         what was asked for
           metrics.json        scores, also of other models on the same rows; written last

A share of the rows is held out, and scores are of these rows. The model is fitted to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.arguments import check_count, check_number
from gnvpro.experiments.run import CONFIG, HISTORY, METRICS, MODEL, write_json
from gnvpro.experiments.saved import kind
from gnvpro.extras import need
from gnvpro.files import replacing
from gnvpro.sklearn import GNvproClassifier, GNvproRegressor
from gnvpro.tabular import model_file
from gnvpro.tabular.model_file import TableModel
from gnvpro.tabular.read import Columns, check_complete, choose_columns, complete_rows, example, is_number, read_table
from gnvpro.tabular.scores import baselines, coverage, error_of, importance, scores
from gnvpro.training.summary import Summary, model_card, scores_of, took, versions

CARD, PREDICTIONS = "model.md", "predictions.csv"
KIND = "table"
FEW_VALUES = 10  # of a target of whole numbers: perhaps it is a class
MIN_ROWS = 10
Array = NDArray[Any]


@dataclass(frozen=True)
class TableOrder:
    """What the user asked for."""

    data: Path
    targets: tuple[str, ...]
    classify: bool
    out: Path
    drop: tuple[str, ...] = ()
    drop_incomplete: bool = False
    hidden: tuple[int, ...] | None = None
    work: float | None = None
    test: float = 0.2
    seed: int = 0
    overwrite: bool = False


@dataclass(frozen=True)
class Parts:
    """The rows to fit to, and those held out."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    rows: Array  # of the table, that were held out


def train_table(order: TableOrder, tell: Callable[[str], object] = print) -> dict[str, Any]:
    """Train on a table and write everything down; the metrics."""
    for name in ("safetensors", "matplotlib"):  # missing ones are named before the work, not after it
        need(name, "tabular")
    claim(order)
    tell(f"reading {order.data}")
    frame, columns = prepared(order)
    parts = split(order, frame, columns)
    n = len(columns.encoded)
    kinds = "classes" if order.classify else f"{len(order.targets)} target{'s' * (len(order.targets) > 1)}"
    tell(f"training on {len(parts.X)} rows, {n} input{'s' * (n > 1)}, {kinds}; {len(parts.X_test)} rows are held out")
    for hint in hints(order, frame):
        tell(hint)
    started = time.perf_counter()
    estimator = make_estimator(order).fit(parts.X, parts.y)
    seconds = time.perf_counter() - started
    tell("scoring, beside other models on the same rows")
    model = TableModel(estimator, columns)
    metrics = measured(order, model, parts, seconds)
    write(order, model, metrics, parts)
    return metrics


def claim(order: TableOrder) -> None:
    """Refuse to write over something else."""
    if (order.out / CONFIG).is_file() and not order.overwrite:
        raise ValueError(f"{order.out} holds another run; choose another --out, or --overwrite what is there")
    if not order.targets:
        raise ValueError("--target must name a column to predict; it may be repeated")
    if order.classify and len(order.targets) > 1:
        raise ValueError(f"--classify takes one --target, got {len(order.targets)}; train one model for each")
    check_number("test", order.test, 0.0)
    if order.test > 0.9:
        raise ValueError(f"test={order.test:g} leaves too few rows to train on; give a share such as 0.2")
    check_count("seed", order.seed, 0)


def prepared(order: TableOrder) -> tuple[Any, Columns]:
    """The table, checked, and its columns."""
    frame, source = read_table(order.data), order.data.name
    columns = choose_columns(frame, order.targets, order.drop, source)
    used = [*columns.inputs, *columns.targets]
    if order.drop_incomplete:
        frame = complete_rows(frame, used)
    check_complete(frame, used, source)
    if len(frame) < MIN_ROWS:
        raise ValueError(f"{source} has {len(frame)} complete rows; a model needs {MIN_ROWS} or more")
    if not order.classify:
        for name in order.targets:
            if not is_number(frame[name]):
                raise ValueError(
                    f"the target {name!r} holds {example(frame[name])}, which is no number; for classes add --classify"
                )
    return frame, columns


def hints(order: TableOrder, frame: Any) -> list[str]:
    """What may have been meant otherwise."""
    if order.classify:
        return []
    found = []
    for name in order.targets:
        values = frame[name].unique()
        if len(values) <= FEW_VALUES and all(float(value).is_integer() for value in values):
            found.append(f"note: {name} has only {len(values)} different values; for classes add --classify")
    return found


def split(order: TableOrder, frame: Any, columns: Columns) -> Parts:
    """Rows to train on and rows held out, drawn by the seed; every class in both where it has two rows."""
    from sklearn.model_selection import train_test_split

    X = columns.matrix(frame, order.data.name)
    y = frame[list(columns.targets)].to_numpy()
    y = y[:, 0] if len(columns.targets) == 1 else y
    y = np.asarray([str(v) for v in y]) if order.classify and y.dtype == object else y
    y = y if order.classify else y.astype(np.float64)
    rows = np.arange(len(X))
    held_out = round(order.test * len(X))
    if held_out == 0:
        return Parts(X, y, X[:0], y[:0], rows[:0])
    counts = np.unique(y, return_counts=True)[1] if order.classify else np.array([0])
    stratify = y if order.classify and counts.min() >= 2 and held_out >= len(counts) else None
    kept, rest = train_test_split(rows, test_size=held_out, random_state=order.seed, stratify=stratify)
    return Parts(X[kept], y[kept], X[rest], y[rest], rest)


def make_estimator(order: TableOrder) -> GNvproRegressor | GNvproClassifier:
    """The library's estimator with its defaults, but for what was asked for."""
    chosen: dict[str, Any] = {"random_state": order.seed, "verbose": True}
    if order.hidden is not None:
        chosen["hidden"] = order.hidden
    if order.work is not None:
        chosen["work"] = check_number("work", order.work, 0.0)
    return GNvproClassifier(**chosen) if order.classify else GNvproRegressor(**chosen)


def measured(order: TableOrder, model: TableModel, parts: Parts, seconds: float) -> dict[str, Any]:
    """Everything that goes into metrics.json."""
    estimator, classify = model.estimator, order.classify
    last = estimator.history_[-1]
    metrics: dict[str, Any] = {
        "task": "classification" if classify else "regression",
        "rows": {"train": len(parts.X), "test": len(parts.X_test)},
        "train": scores(classify, estimator, parts.X, parts.y),
        "work": last.work,
        "seconds": seconds,
        "status": str(estimator.status_),
        "versions": versions(),
    }
    if not len(parts.X_test):
        return metrics
    metrics["test"] = scores(classify, estimator, parts.X_test, parts.y_test)
    if isinstance(estimator, GNvproRegressor):
        metrics["test"] |= coverage(parts.y_test, *estimator.predict(parts.X_test, return_std=True))
    metrics["baselines"] = {}
    for name, other in baselines(classify, len(order.targets), order.seed).items():
        started = time.perf_counter()
        other.fit(parts.X, parts.y)
        metrics["baselines"][name] = {
            **scores(classify, other, parts.X_test, parts.y_test),
            "seconds": time.perf_counter() - started,
        }
    groups: dict[str, list[int]] = {}
    for k, (name, _) in enumerate(model.columns.encoded):
        groups.setdefault(name, []).append(k)
    metrics["importance"] = importance(
        error_of(classify, estimator, parts.y_test), parts.X_test, groups, order.seed, 3 if len(groups) < 100 else 1
    )
    return metrics


def write(order: TableOrder, model: TableModel, metrics: dict[str, Any], parts: Parts) -> None:
    """All files of the run; the metrics last, so that what has them is whole."""
    order.out.mkdir(parents=True, exist_ok=True)
    (order.out / METRICS).unlink(missing_ok=True)
    config = {
        "kind": KIND,
        "data": order.data.name,
        "targets": list(order.targets),
        "inputs": list(model.columns.inputs),
        "task": metrics["task"],
        "test": order.test,
        "seed": order.seed,
    }
    write_json(order.out / CONFIG, config)
    model_file.save(order.out / MODEL, model)
    model.estimator.history_.to_csv(order.out / HISTORY)
    if len(parts.X_test):
        table = predictions(model, parts.X_test)
        for k, name in enumerate(order.targets):
            table.insert(0, name, parts.y_test if parts.y_test.ndim == 1 else parts.y_test[:, k])
        table.insert(0, "row", parts.rows)
        table.to_csv(order.out / PREDICTIONS, index=False)
    with replacing(order.out / CARD) as file:
        file.write(card(order, model, metrics).encode())
    write_json(order.out / METRICS, metrics)


def predictions(model: TableModel, X: Array) -> Any:
    """A table with the prediction of each target and its standard deviation, or the class and its probabilities."""
    pandas = need("pandas", "tabular")
    estimator = model.estimator
    if isinstance(estimator, GNvproClassifier):
        probabilities = estimator.predict_proba(X)
        columns = {f"predicted {model.columns.targets[0]}": estimator.predict(X)}
        columns |= {f"probability of {label}": probabilities[:, k] for k, label in enumerate(estimator.classes_)}
        return pandas.DataFrame(columns)
    mean, std = (part.reshape(len(X), -1) for part in estimator.predict(X, return_std=True))
    pairs = {}
    for k, name in enumerate(model.columns.targets):
        pairs[f"predicted {name}"] = mean[:, k]
        pairs[f"std of {name}"] = std[:, k]
    return pandas.DataFrame(pairs)


def predict_table(path: Path, data: Path) -> Any:
    """The table's columns and the predictions of the model beside them."""
    model = model_file.load(path)
    frame = read_table(data)
    made = predictions(model, model.columns.matrix(frame, data.name))
    made.index = frame.index
    return need("pandas", "tabular").concat([frame, made], axis=1)


def card(order: TableOrder, model: TableModel, metrics: dict[str, Any]) -> str:
    """The model card."""
    inputs = ", ".join(model.columns.inputs)
    facts = {
        "data": f"{order.data.name}: {metrics['rows']['train']} rows to train on, {metrics['rows']['test']} held out",
        "inputs": inputs,
        "targets": ", ".join(order.targets),
        "method": f"{type(model.estimator).__name__}, seed {order.seed}",
        "ended": metrics["status"],
        "cost": f"{metrics['work']:.4g} work units in {took(metrics['seconds'])}",
    }
    rows = scores_of(model.estimator.history_)
    notes = "Load it with `gnvpro predict MODEL NEW.csv`. It answers for rows like those it was trained on."
    if "test" in metrics:
        names = [name for name in metrics["test"] if not name.startswith("within")]
        shown = [("this model", metrics["test"]), *metrics["baselines"].items()]
        rows = [["held-out rows", *names], *([label, *(f"{own[n]:.4g}" for n in names)] for label, own in shown)]
    name = f"{order.data.stem} -> {', '.join(order.targets)}"
    return model_card(name, model.estimator.module_, Summary.of(facts, rows), notes)


def finished_tables(directory: Path) -> list[Path]:
    """The directories of runs on tables at or below a directory."""
    paths = [path.parent for path in sorted(directory.rglob(CONFIG)) if kind(path) == KIND]
    return [path for path in paths if (path / METRICS).is_file()]
