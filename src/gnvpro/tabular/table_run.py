"""`gnvpro train` and `gnvpro predict`: a table in; a model, its scores and predictions out.

OUT/model.safetensors, model.md, history.csv, predictions.csv, config.json and, written last, metrics.json.

Everything that can be known before training is checked before it. Afterwards each output that can be written is written,
and the others are named.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.extras import need
from gnvpro.files import CONFIG, HISTORY, METRICS, MODEL, kind_of_run, replacing, write_json
from gnvpro.policy import as_policy
from gnvpro.sklearn import GNvproClassifier, GNvproRegressor
from gnvpro.sklearn.classifier import shares_of_classes
from gnvpro.sklearn.encoding import Encoding
from gnvpro.tabular import model_file
from gnvpro.tabular.model_file import Estimator, TableModel
from gnvpro.tabular.order import Reading, TableOrder
from gnvpro.tabular.prepare import Tell
from gnvpro.tabular.read import fresh, read_table
from gnvpro.tabular.table_columns import Columns, ReadTable
from gnvpro.tabular.table_scores import baselines, coverage, error_of, importance, scores
from gnvpro.training.summary import Summary, model_card, scores_of, took, versions

CARD, PREDICTIONS = "model.md", "predictions.csv"
KIND = "table"
Array = NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """The rows to fit to, and those held out."""

    X: Any  # DataFrame
    y: Array
    X_test: Any
    y_test: Array
    rows: Array  # of the file, that were held out


def train_table(order: TableOrder, table: ReadTable, tell: Tell = print) -> tuple[dict[str, Any], list[str]]:
    """Train on a table and write everything down.

    Returns:
        The metrics, and a sentence for each output that could not be written.
    """
    parts, notes = split(order, table)
    columns = table.columns
    n = len(columns.inputs)
    tell(f"training on {len(parts.X)} rows of {n} column{'s' * (n > 1)}; {len(parts.X_test)} rows are held out")
    if not order.classify:
        tell("errors of stages are root mean squares, in standard deviations of the target")
    for note in notes:
        tell(note)
    started = time.perf_counter()
    estimator = make_estimator(order).fit(parts.X, parts.y)
    seconds = time.perf_counter() - started
    tell("scoring, beside other models on the same rows")
    model = TableModel(estimator, columns)
    with telling(tell):
        metrics = measured(order, model, parts, seconds, tell)
        return metrics, write(order, model, metrics, parts)


def sizes(model: TableModel) -> str:
    """Return how many columns there are, and how many numbers the network sees of them."""
    n, m = len(model.columns.inputs), len(model.estimator.get_feature_names_out())
    text = f"{n} column{'s' * (n > 1)}"
    return text if n == m else f"{text} ({m} inputs)"


def split(order: TableOrder, table: ReadTable) -> tuple[Parts, list[str]]:
    """Draw the rows to train on and those held out by the seed; every class is among those to train on."""
    from sklearn.model_selection import train_test_split

    X, y = table.columns.as_frame(table.cells, order.data.name), targets_of(order, table)
    rows, notes = np.arange(len(X)), []
    held_out = round(order.test * len(X))
    if held_out == 0:
        return Parts(X, y, X.iloc[:0], y[:0], rows[:0]), [
            "no row is held out, so all scores are of rows the model has seen"
        ]
    counts = np.unique(y, return_counts=True)[1] if order.classify else np.array([0])
    stratify = y if order.classify and counts.min() >= 2 and held_out >= len(counts) else None
    kept, rest = train_test_split(rows, test_size=held_out, random_state=order.seed, stratify=stratify)
    unseen = sorted(set(y[rest]) - set(y[kept])) if order.classify else []
    if unseen:
        moved = np.isin(y[rest], unseen)
        kept, rest = np.concatenate([kept, rest[moved]]), rest[~moved]
        notes.append(f"note: all rows of the class {unseen[0]!r} are trained on, so it is not among the held-out rows")
    return Parts(X.iloc[kept], y[kept], X.iloc[rest], y[rest], table.rows[rest]), notes


def targets_of(order: TableOrder, table: ReadTable) -> Array:
    """Return what is to be predicted: classes as text or whole numbers, or numbers."""
    columns = [table.cells[name] for name in order.targets]
    if not order.classify:
        y = np.column_stack([each.values for each in columns])
        return y[:, 0] if len(columns) == 1 else y
    values = columns[0].values
    return values.astype(np.int64) if columns[0].kind == "number" else np.asarray([str(v) for v in values])


def make_estimator(order: TableOrder) -> GNvproRegressor | GNvproClassifier:
    """Return the estimator with the settings of the order, and defaults for the rest."""
    chosen: dict[str, Any] = {"random_state": order.seed, "verbose": 2 if order.verbose else 1}
    if order.hidden is not None:
        chosen["hidden"] = order.hidden
    if order.work is not None:
        chosen["work"] = order.work
    return GNvproClassifier(**chosen) if order.classify else GNvproRegressor(**chosen)


def measured(order: TableOrder, model: TableModel, parts: Parts, seconds: float, tell: Tell) -> dict[str, Any]:
    """Return everything that goes into metrics.json."""
    estimator, classify = model.estimator, order.classify
    metrics: dict[str, Any] = {
        "task": "classification" if classify else "regression",
        "rows": {"train": len(parts.X), "test": len(parts.X_test)},
        "train": scores(classify, estimator, parts.X, parts.y),
        "work": estimator.history_[-1].work,
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
    X, X_test = inputs_of(estimator, parts)
    for name, other in baselines(classify, len(order.targets), order.seed).items():
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a model that is not ours
                other.fit(X, parts.y)
                found = scores(classify, other, X_test, parts.y_test)
        except (ArithmeticError, ValueError) as error:
            tell(f"note: {name} could not be trained beside the model: {error}")
            continue
        metrics["baselines"][name] = {**found, "seconds": time.perf_counter() - started}
    few = len(model.columns.inputs) < 100
    metrics["importance"] = importance(
        error_of(classify, estimator, parts.y_test), parts.X_test, order.seed, 3 if few else 1
    )
    return metrics


def inputs_of(estimator: Estimator, parts: Parts) -> tuple[Array, Array]:
    """Return the numbers that other models are given, encoded as for the estimator, of training rows and those held out."""
    encoding = Encoding.of(parts.X)
    targets = parts.y.reshape(len(parts.y), -1)
    if isinstance(estimator, GNvproClassifier):
        targets = shares_of_classes(np.searchsorted(estimator.classes_, parts.y), len(estimator.classes_))
    limit = as_policy(estimator.policy).estimator.one_hot_up_to
    _, X = encoding.learn(encoding.codes(parts.X), targets, np.ones(len(targets)), limit)
    return X, estimator.encoding_.expand(estimator.encoding_.codes(parts.X_test))


@contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Tell each warning once, as a note."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(each.message) for each in found):
        tell(f"note: {text}")


def write(order: TableOrder, model: TableModel, metrics: dict[str, Any], parts: Parts) -> list[str]:
    """Write all files of the run, the metrics last; return a sentence for each that could not be written."""
    order.out.mkdir(parents=True, exist_ok=True)
    (order.out / METRICS).unlink(missing_ok=True)
    config = {
        "kind": KIND,
        "data": order.data.name,
        "targets": list(order.targets),
        "inputs": list(model.columns.inputs),
        "encoded": len(model.estimator.get_feature_names_out()),
        "task": metrics["task"],
        "test": order.test,
        "seed": order.seed,
    }
    outputs: dict[str, Callable[[], object]] = {
        CONFIG: lambda: write_json(order.out / CONFIG, config),
        MODEL: lambda: model_file.save(order.out / MODEL, model),
        HISTORY: lambda: model.estimator.history_.to_csv(order.out / HISTORY),
        PREDICTIONS: lambda: write_predictions(order, model, parts),
        CARD: lambda: write_text(order.out / CARD, card(order, model, metrics)),
        METRICS: lambda: write_json(order.out / METRICS, metrics),
    }
    return attempted(outputs)


def attempted(outputs: dict[str, Callable[[], object]]) -> list[str]:
    """Call every function; return a sentence for each that raised."""
    problems = []
    for name, output in outputs.items():
        try:
            output()
        except Exception as error:  # whatever it is, the other outputs are written
            problems.append(f"{name} could not be written: {error or type(error).__name__}")
    return problems


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with replacing(path) as file:
        file.write(text.encode())


def write_predictions(order: TableOrder, model: TableModel, parts: Parts) -> None:
    """Write the held-out rows: their number in the file, the targets, and then the predictions."""
    if not len(parts.X_test):
        return
    observed = parts.y_test.reshape(len(parts.y_test), -1)
    first = next(fresh(["row"], order.targets))
    columns = {first: parts.rows} | {name: observed[:, k] for k, name in enumerate(order.targets)}
    pandas = need("pandas", "tabular")
    table = pandas.concat([pandas.DataFrame(columns), predictions(model, parts.X_test, columns)], axis=1)
    write_text(order.out / PREDICTIONS, table.to_csv(index=False))


def predictions(model: TableModel, X: Any, taken: Iterable[str]) -> Any:
    """Return a table with predictions and their standard deviations, or the class and its probabilities.

    No column has one of the names that are taken.
    """
    estimator, targets = model.estimator, model.columns.targets
    if isinstance(estimator, GNvproClassifier):
        names = [f"predicted {targets[0]}", *(f"probability of {label}" for label in estimator.classes_)]
        values = [estimator.predict(X), *estimator.predict_proba(X).T]
    else:
        mean, std = (part.reshape(len(X), -1) for part in estimator.predict(X, return_std=True))
        names = [f"{what}{name}" for name in targets for what in ("predicted ", "std of ")]
        values = [part[:, k] for k in range(len(targets)) for part in (mean, std)]
    return need("pandas", "tabular").DataFrame(dict(zip(fresh(names, taken), values, strict=True)))


def predict_table(path: Path, data: Path, reading: Reading | None = None) -> Any:
    """Return the table's columns followed by the predictions of the model.

    Args:
        path: the model.
        data: the table.
        reading: how its cells are read; left out, as those that the model was trained on.
    """
    model, frame = model_file.load(path), read_table(data)
    columns = model.columns if reading is None else Columns(model.columns.inputs, model.columns.targets, reading)
    made = predictions(model, columns.typed(frame, data.name), frame.columns)
    made.index = frame.index
    return need("pandas", "tabular").concat([frame, made], axis=1)


def card(order: TableOrder, model: TableModel, metrics: dict[str, Any]) -> str:
    """Return the model card."""
    facts = {
        "data": f"{order.data.name}: {metrics['rows']['train']} rows to train on, {metrics['rows']['test']} held out",
        "inputs": f"{sizes(model)}: {', '.join(model.columns.inputs)}",
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
    """Return the directories of runs on tables at or below a directory."""
    paths = [path.parent for path in sorted(directory.rglob(CONFIG)) if kind_of_run(path) == KIND]
    return [path for path in paths if (path / METRICS).is_file()]
