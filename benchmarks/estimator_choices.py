"""Compare the defaults of the estimators with variants, on the tables that they were chosen on.

    python -m benchmarks.estimator_choices regression        nine sets, three splits
    python -m benchmarks.estimator_choices tails             long tails compressed or not, more tables, one split
    python -m benchmarks.estimator_choices ranks             the rank of each value added
    python -m benchmarks.estimator_choices start             first penalties that do not grow with a unit's inputs
    python -m benchmarks.estimator_choices biases            penalties on biases smaller or larger than on weights
    python -m benchmarks.estimator_choices layers            two layers, the second one's penalty smaller or larger
    python -m benchmarks.estimator_choices loo               the head's penalty by leave-one-out
    python -m benchmarks.estimator_choices relevance         one penalty for all columns, or one per column whenever possible
    python -m benchmarks.estimator_choices many-relevance    the same on tables of more rows, one split
    python -m benchmarks.estimator_choices confirm-relevance the same on confirming sets, run after the choice
    python -m benchmarks.estimator_choices many-rows         relevances of all rows, quasi-Newton steps, on 5,000 to 36,000 rows
    python -m benchmarks.estimator_choices line              second start after little was learnt: never, or always
    python -m benchmarks.estimator_choices pieces            columns of classifiers in pieces or whole, two splits
    python -m benchmarks.estimator_choices regression-pieces columns of regressors whole, or chosen by the evidence, two splits
    python -m benchmarks.estimator_choices confirm-pieces    the same on confirming sets, run after the choice
    python -m benchmarks.estimator_choices few-pieces        pieces for any number of rows, small tables, one split
    python -m benchmarks.estimator_choices class-networks    other networks for classifiers, columns whole, one split
    python -m benchmarks.estimator_choices with-pieces       other networks, fixed penalties, means of two networks
    python -m benchmarks.estimator_choices calibrated        probabilities with the uncertainty of theta

Per set: error (regression) or log loss; then geometric means, mean per cent of wrong labels, sum of the processor
seconds. Needs `pip install ".[tables]"`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.simulated_tables import SIMULATED
from benchmarks.table_sets import CHOOSE, CONFIRM, LARGER, SEVERAL, WIDER, TableSet
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.objectives.evidence import Evidence, JointMatrix, Penalties, evidence, first_penalties
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.policy import EstimatorPolicy, Policy
from gnvpro.sklearn.scaling import compress_tails

TABLES = {table.name: table for table in [*CHOOSE, *WIDER, *SEVERAL, *LARGER, *SIMULATED, *CONFIRM]}
NO_TAILS = {"gnvpro.sklearn.scaling.compress_tails": lambda X, weights: None}
ENDS_AT_ONCE = {"gnvpro.training.penalty_search.MAX_FAILURES": 1}


@dataclass(frozen=True)
class Variant:
    """Settings of an estimator, and replacements of names in the library."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    patches: dict[str, Any] = field(default_factory=dict)
    members: int = 1  # number of networks whose outputs are averaged


@dataclass(frozen=True)
class Question:
    """Variants, and the sets that compare them."""

    variants: list[Variant]
    sets: str
    splits: int = 1


class Beside(nn.Module):
    """Hidden units, and the inputs themselves."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.units = nn.Sequential(nn.Linear(n_inputs, 16), nn.Tanh())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return both, side by side."""
        return torch.cat([self.units(inputs), inputs], 1)


class Biased(nn.Module):
    """16 units with biases scale * b: an equal penalty on b means a penalty divided by scale^2 on the biases."""

    def __init__(self, n_inputs: int, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(n_inputs, 16), scale
        with torch.no_grad():
            self.linear.bias /= scale

    def forward(self, inputs: Tensor) -> Tensor:
        """Hyperbolic tangents."""
        return torch.tanh(nn.functional.linear(inputs, self.linear.weight, self.scale * self.linear.bias))


class Layered(nn.Module):
    """Two layers of 16 units; the second has weights and biases scale * w, a penalty of 1 / scale^2 on them."""

    def __init__(self, n_inputs: int, scale: float) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(n_inputs, 16), nn.Linear(16, 16), scale
        with torch.no_grad():
            self.second.weight /= scale
            self.second.bias /= scale

    def forward(self, inputs: Tensor) -> Tensor:
        """Hyperbolic tangents."""
        return torch.tanh(self.scale * self.second(torch.tanh(self.first(inputs))))


def leave_one_out(point: ReducedPoint, head_penalty: float) -> float:
    """Mean square of the residuals r / (1 - h), which the samples would have if the head (not theta) had not seen
    them.
    """
    misfit, Z = point.problem.misfit, point.Z
    H = (misfit.weights * Z).T @ Z + head_penalty * torch.eye(Z.shape[1]).to(Z)
    solved = torch.linalg.solve(H, Z.T).T
    leverage = misfit.weights * (Z * solved).sum(1, keepdim=True)
    residuals = misfit.targets - solved @ (Z.T @ (misfit.weights * misfit.targets))
    return float((misfit.weights * (residuals / (1 - leverage)).square()).sum() / misfit.targets.shape[1])


def evidence_with_loo(decides: bool, point: ReducedPoint, matrix: JointMatrix, at: Penalties, n: float) -> Evidence:
    """Return the evidence, with the head's next penalty by leave-one-out, which may also decide between models."""
    found = evidence(point, matrix, at, n)
    tried = at.head * np.logspace(-1, 1, 21)
    best = float(min(tried, key=lambda alpha: leave_one_out(point, alpha)))
    score = -0.5 * n * point.W.shape[0] * float(np.log(leave_one_out(point, at.head)))
    return replace(found, targets=(found.targets[0], best), log=score if decides else found.log)


class Ranks(nn.Module):
    """Share of the training samples below each value of a column, added to the columns or replacing them."""

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
    return {"gnvpro.sklearn.scaling.compress_tails": lambda X, weights: Ranks(X, weights, beside)}


DEFAULT = Variant("default")
SCALES = (0.3, 1.0, 3.0, 10.0)  # scales of the biases
SMALL = "diabetes,auto,bdims,cps1985,dietox,housing,college,mixture,arm"
LABELS = "churn,cut,oj,attrition,credit-status,email,hmda,hawks"
NUMBERS = "txhousing,guns,gapminder,airfare,chicago,deliveries,storms,biomass,hitters"
SMALL_LABELS = "iris,olive,mroz,biopsy,two-class,oj,swiss-labor,hawks"
ALIKE = Variant("one penalty for all columns", {}, {"gnvpro.sklearn.base.column_scales": lambda trained: (None, 0.0)})


def rules(**rows: Any) -> dict[str, Any]:
    """Return settings of an estimator with these rows of its policy."""
    return {"policy": Policy(estimator=EstimatorPolicy(**rows))}


RELEVANCE = [
    DEFAULT,
    ALIKE,
    Variant("one penalty for each column wherever possible", rules(column_gain=-np.inf)),
]
WHOLE = rules(pieces_from=10**9)
ANY_ROWS = rules(pieces_from=0)
ALL_WHOLE = rules(pieces_from=10**9)
MANY_TARGETS = (
    "gapminder,guns,txhousing,wages,storms,diamonds,airfare,chicago,deliveries,sacramento,dietox,college,mixture,building,"
    "tasting,arm,plant"
)
MANY_LABELS = (
    "attrition,beps,hmda,yogurt,digits,email,churn,cut,credit-status,wa-churn,stack,lending,storm-status,market,meal,"
    "occupation,clarity"
)
STEPS = "email,churn,cut,storm-status,market"
FEW_LABELS = "olive,iris,hawks,mroz,oj,biopsy,fishing"
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
    "layers": Question(
        [DEFAULT]
        + [
            Variant(f"second layer {scale**-2:.2g}", {"features": partial(Layered, scale=scale)})
            for scale in SCALES[:3]
        ],
        SMALL,
        2,
    ),
    "loo": Question(
        [
            ALIKE,
            *(
                Variant(
                    name,
                    {},
                    ALIKE.patches | {"gnvpro.training.judgement.evidence": partial(evidence_with_loo, decides)},
                )
                for name, decides in (("leave-one-out for the head's penalty", False), ("and between models", True))
            ),
        ],
        "diabetes,auto,bdims,dietox,college,mixture",
        3,
    ),
    "relevance": Question(RELEVANCE, f"{SMALL},{SMALL_LABELS},hull,suburb,building,tasting,credit,biomass,guns", 3),
    "many-relevance": Question(RELEVANCE, f"{LABELS},wa-churn,stack,lending,diamonds,airfare,storms,chicago,plant"),
    "many-rows": Question(
        [
            DEFAULT,
            Variant("relevances of all rows", rules(part_rows=10**9)),
            Variant("and quasi-Newton steps", rules(part_rows=10**9, matrix_below=0.0)),
        ],
        "all-storms,all-deliveries,all-gapminder,turbine,cps1988,fold",
        2,
    ),
    "confirm-relevance": Question(RELEVANCE[:2], "car-prices,computers,hpc", 3),
    "line": Question(
        [
            DEFAULT,
            Variant("never", {}, {"gnvpro.training.penalty_search.MAX_RESTARTS": 0}),
            Variant("after good fits too", {}, {"gnvpro.training.judgement.LITTLE": 1.0}),
        ],
        "sine,cps1985,swiss-labor,hmda,attrition,olive,hawks",
    ),
    "pieces": Question([DEFAULT, Variant("columns whole", WHOLE)], MANY_LABELS, 2),
    "regression-pieces": Question([DEFAULT, Variant("columns whole", ALL_WHOLE)], MANY_TARGETS, 2),
    "confirm-pieces": Question(
        [DEFAULT, Variant("columns whole", ALL_WHOLE)], "computers,saratoga,car-prices,quakes", 2
    ),
    "few-pieces": Question([DEFAULT, Variant("pieces", ANY_ROWS)], FEW_LABELS),
    "class-networks": Question(
        [
            Variant("columns whole", WHOLE),
            Variant("relu", {"activation": "relu"} | WHOLE),
            Variant("32 relu units", {"activation": "relu", "hidden": 32} | WHOLE),
        ],
        "olive,iris,hawks,mroz,oj,biopsy,hmda,yogurt,email,churn,credit-status,cut,storm-status,market,meal",
    ),
    "with-pieces": Question(
        [
            DEFAULT,
            Variant("relu", {"activation": "relu"}),
            Variant("16 units", {"hidden": 16}),
            Variant("means of two networks", members=2),
            *(Variant(f"penalties {a:g}", {"theta_penalty": a, "head_penalty": a}) for a in (1e-2, 1e-3)),
        ],
        STEPS,
    ),
    "calibrated": Question([DEFAULT, Variant("calibrated", {"calibrated": True})], "iris,olive,email", 2),
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
        models = [kind(random_state=split + 100 * i, **variant.settings).fit(Xa, ya) for i in range(variant.members)]
        seconds = time.process_time() - begun
    if table.classification:
        shares = np.mean([model.predict_proba(Xb) for model in models], axis=0)
        wrong = 100 * float(np.mean(shares.argmax(1) != yb))
        return float(log_loss(yb, np.clip(shares, 1e-15, 1))), wrong, seconds
    mean = np.mean([model.predict(Xb) for model in models], axis=0)
    return float(np.sqrt(np.mean((mean - yb) ** 2)) / np.std(ya)), 0.0, seconds


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
