"""What the defaults of the estimators were chosen by: variants of them on the choosing sets, beside the default.

    python benchmarks/estimator_choices.py regression        nine sets, three splits
    python benchmarks/estimator_choices.py tails             long tails compressed or not, more tables, one split
    python benchmarks/estimator_choices.py ranks             the rank of each value beside it
    python benchmarks/estimator_choices.py start             first penalties that do not grow with a unit's inputs
    python benchmarks/estimator_choices.py biases            penalties on biases smaller or larger than on weights
    python benchmarks/estimator_choices.py relevance         one penalty for all columns; one for each wherever possible
    python benchmarks/estimator_choices.py many-relevance    the same on tables of more rows, one split
    python benchmarks/estimator_choices.py confirm-relevance the same on confirming sets, seen after the choice
    python benchmarks/estimator_choices.py line              a second start after little was learnt: never, or always
    python benchmarks/estimator_choices.py calibrated

Per set the error (regression) or log loss, then geometric means, mean per cent of wrong labels, sum of the processor seconds.
Needs `pip install ".[tables]"`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.objectives.evidence import first_penalties
from gnvpro.sklearn.scaling import compress_tails
from simulated_tables import SIMULATED
from table_sets import CHOOSE, CONFIRM, WIDER, TableSet

TABLES = {table.name: table for table in [*CHOOSE, *WIDER, *SIMULATED, *CONFIRM]}
NO_TAILS = {"gnvpro.sklearn.base.compress_tails": lambda X, weights: None}
ENDS_AT_ONCE = {"gnvpro.training.penalty_search.MAX_FAILURES": 1}


@dataclass(frozen=True)
class Variant:
    """An estimator's settings, and names in the library that mean something else."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    patches: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """Variants, and the sets that say which is best."""

    variants: list[Variant]
    sets: str
    splits: int = 1


class Beside(nn.Module):
    """Units, and the inputs as they are."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.units = nn.Sequential(nn.Linear(n_inputs, 16), nn.Tanh())

    def forward(self, inputs: Tensor) -> Tensor:
        """Both."""
        return torch.cat([self.units(inputs), inputs], 1)


class Biased(nn.Module):
    """16 units with biases scale * b: the same penalty on b is one of 1 / scale^2 on the biases."""

    def __init__(self, n_inputs: int, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(n_inputs, 16), scale
        with torch.no_grad():
            self.linear.bias /= scale

    def forward(self, inputs: Tensor) -> Tensor:
        """Hyperbolic tangents."""
        return torch.tanh(nn.functional.linear(inputs, self.linear.weight, self.scale * self.linear.bias))


class Ranks(nn.Module):
    """The share of the training samples below each value of a column, beside or in place of the columns."""

    def __init__(self, X: np.ndarray, weights: np.ndarray, beside: bool) -> None:
        super().__init__()
        self.tails, self.beside = compress_tails(X, weights), beside
        self.columns = [j for j in range(X.shape[1]) if len(np.unique(X[:, j])) > 2]
        self.sorted = [np.sort(X[:, j]) for j in self.columns]

    def forward(self, inputs: Tensor) -> Tensor:
        """Columns and ranks."""
        X, levels = inputs.numpy(), inputs.clone() if self.tails is None else self.tails(inputs)
        for j, column in zip(self.columns, self.sorted, strict=True):
            low, high = (np.searchsorted(column, X[:, j], side) for side in ("left", "right"))
            rank = torch.tensor((low + high) / (2 * len(column)))
            if self.beside:
                levels = torch.cat([levels, rank[:, None]], 1)
            else:
                levels[:, j] = rank
        return levels


def ranks(beside: bool) -> dict[str, Callable[..., nn.Module]]:
    return {"gnvpro.sklearn.base.compress_tails": lambda X, weights: Ranks(X, weights, beside)}


DEFAULT = Variant("default")
SCALES = (0.3, 1.0, 3.0, 10.0)  # of biases
SMALL = "diabetes,auto,bdims,cps1985,dietox,housing,college,mixture,arm"
LABELS = "glass,churn,cut,oj,attrition,credit-status,email,hmda,hawks"
NUMBERS = "txhousing,guns,gapminder,airfare,chicago,deliveries,storms,biomass,hitters"
SMALL_LABELS = "glass,iris,wine,olive,mroz,biopsy,two-class,oj,swiss-labor,hawks"
RELEVANCE = [
    DEFAULT,
    Variant("one penalty for all columns", {}, {"gnvpro.sklearn.base.column_scales": lambda trained: None}),
    Variant("one penalty for each column wherever possible", {}, {"gnvpro.sklearn.relevance.LEAST_GAIN": -np.inf}),
]
QUESTIONS = {
    "regression": Question(
        [
            Variant("ends as soon as the evidence falls, tails as they are", {}, NO_TAILS | ENDS_AT_ONCE),
            Variant("ends as soon as the evidence falls", {}, ENDS_AT_ONCE),
            DEFAULT,
            Variant("silu", {"activation": "silu"}),
            Variant("32 units", {"hidden": 32}),
            Variant("8 units", {"hidden": 8}),
            Variant("inputs beside 16 units", {"features": Beside}),
        ],
        SMALL,
        3,
    ),
    "tails": Question([DEFAULT, Variant("tails as they are", {}, NO_TAILS)], f"{LABELS},{NUMBERS}"),
    "ranks": Question(
        [DEFAULT, Variant("beside", {}, ranks(True)), Variant("instead", {}, ranks(False))], f"{LABELS},{NUMBERS}"
    ),
    "start": Question(
        [
            DEFAULT,
            Variant(
                "the same for all",
                {},
                {"gnvpro.objectives.problem.first_penalties": lambda m, n, _: first_penalties(m, n, 1)},
            ),
        ],
        "attrition,alzheimer,churn,oj,credit-status,wa-churn,email",
    ),
    "biases": Question(
        [Variant(f"penalty on biases {scale**-2:.2g}", {"features": partial(Biased, scale=scale)}) for scale in SCALES],
        SMALL,
        2,
    ),
    "relevance": Question(RELEVANCE, f"{SMALL},{SMALL_LABELS},hull,suburb,building,tasting,credit,biomass,guns", 3),
    "many-relevance": Question(RELEVANCE, f"{LABELS},wa-churn,stack,lending,diamonds,airfare,storms,chicago,plant"),
    "confirm-relevance": Question(RELEVANCE[:2], "car-prices,computers,hpc", 3),
    "line": Question(
        [
            DEFAULT,
            Variant("never", {}, {"gnvpro.training.penalty_search.MAX_RESTARTS": 0}),
            Variant("after good fits too", {}, {"gnvpro.training.judgement.LITTLE": 1.0}),
        ],
        "sine,cps1985,swiss-labor,hmda,attrition,wine,olive,hawks",
    ),
    "calibrated": Question([DEFAULT, Variant("calibrated", {"calibrated": True})], "glass,iris,olive,email", 2),
}


def measure(table: TableSet, variant: Variant, split: int) -> tuple[float, float, float]:
    """Error or log loss, per cent of wrong labels, and processor seconds."""
    X, y = table.load()
    labels = y if table.classification else None
    Xa, Xb, ya, yb = train_test_split(X, y, test_size=0.2, random_state=split, stratify=labels)
    kind = GNvproClassifier if table.classification else GNvproRegressor
    with ExitStack() as stack:
        for name, value in variant.patches.items():
            stack.enter_context(patch(name, value))
        begun = time.process_time()
        model = kind(random_state=split, **variant.settings).fit(Xa, ya)
        seconds = time.process_time() - begun
    if table.classification:
        wrong = 100 * float(np.mean(model.predict(Xb) != yb))
        return float(log_loss(yb, np.clip(model.predict_proba(Xb), 1e-15, 1))), wrong, seconds
    return float(np.sqrt(np.mean((model.predict(Xb) - yb) ** 2)) / np.std(ya)), 0.0, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=list(QUESTIONS))
    question = QUESTIONS[parser.parse_args().question]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tables = [TABLES[name] for name in question.sets.split(",")]
    found = np.zeros((len(tables), len(question.variants), 3))
    for i, table in enumerate(tables):
        for j, variant in enumerate(question.variants):
            found[i, j] = np.mean([measure(table, variant, split) for split in range(question.splits)], axis=0)
        print(f"{table.name:14}", *(f"{error:8.4f}" for error in found[i, :, 0]), flush=True)
    kinds = np.array([table.classification for table in tables])
    for j, variant in enumerate(question.variants):
        means = [
            f"{label} {np.exp(np.log(found[kinds == kind, j, 0]).mean()):.4f}"
            for label, kind in (("error", False), ("log loss", True))
            if (kinds == kind).any()
        ]
        wrong = f", {found[kinds, j, 1].mean():.2f}% wrong" if kinds.any() else ""
        print(f"{variant.name}: {', '.join(means)}{wrong}, {found[:, j, 2].sum():.1f} s")


if __name__ == "__main__":
    main()
