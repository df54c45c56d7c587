"""Relevances of the columns: the slopes they come from, what they gain, and when they are left alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

import gnvpro
from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.objectives.evidence import Penalties
from gnvpro.objectives.problem import Problem
from gnvpro.policy import EstimatorPolicy, Policy
from gnvpro.sklearn.base import usual_solver
from gnvpro.sklearn.relevance import slopes_by_column
from gnvpro.sklearn.trained import RowSet, RowSets, Trained, trained_point
from gnvpro.training.judgement import assembled, joint_posterior


def rules(**rows: Any) -> Policy:
    """A policy with these rows; columns are seen whole, however many samples there are."""
    return Policy(estimator=EstimatorPolicy(**{"pieces_from": np.inf, **rows}))


ALIKE = patch("gnvpro.sklearn.base.column_scales", lambda trained: (None, 0.0))


def two_columns_matter(samples: int = 400, columns: int = 10, noise: float = 0.05):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (samples, columns))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] ** 2 - 0.3 + noise * rng.normal(size=samples)


def test_slopes_are_the_derivatives_of_the_evidence_with_a_penalty_of_each_column() -> None:
    for loss in ("least_squares", "logistic"):
        X, y = (torch.tensor(a) for a in two_columns_matter(60, 3))
        targets = y[:, None] if loss == "least_squares" else (y > 0).long()
        torch.manual_seed(0)
        model = nn.Sequential()
        model.add_module("features", gnvpro.networks.MLP(3, [4], dtype=torch.float64))
        model.add_module("head", nn.Linear(4, 1, dtype=torch.float64))
        result = gnvpro.train(model, X, targets, loss=loss, theta_penalty=0.01, head_penalty=0.02)
        problem = Problem(model, X, targets, loss=loss, theta_penalty=0.01, head_penalty=0.02)
        samples = RowSets(RowSet(X, targets, torch.ones(60)), None)
        weight = model.features[0].weight.detach()
        gamma, pull = slopes_by_column(Trained(model, result, problem, samples), weight)
        point = trained_point(problem)
        matrix = assembled(point)[0]

        def log_evidence(column: int, step: float, weight=weight, point=point, matrix=matrix) -> float:
            """With exp(step) times the penalty on that column; theta and W held."""
            factors = torch.ones(16, dtype=torch.float64)
            factors[:12].view(4, 3)[:, column] = math.exp(step)
            more = (math.exp(step) - 1) * 0.5 * 0.01 * float(weight[:, column].square().sum())
            phi = point.value + more
            fit = -60 / 2 * math.log(2 * phi) if point.problem.misfit.identity_hessian else -60 * phi
            H = replace(matrix, prior=torch.diag(factors))
            return fit + 4 / 2 * step - 0.5 * H.spectrum(Penalties(0.01, 0.02)).log_det

        for j in range(3):
            slope = (log_evidence(j, 1e-4) - log_evidence(j, -1e-4)) / 2e-4
            assert float(gamma[j] - pull[j]) / 2 == pytest.approx(slope, rel=1e-5, abs=1e-6), (loss, j)


def test_columns_that_do_not_matter_are_made_small_and_the_error_falls() -> None:
    X, y = two_columns_matter()
    new, clean = two_columns_matter(2000, noise=0.0)
    model = GNvproRegressor(n_members=1, random_state=0).fit(X, y)
    with ALIKE:
        alike = GNvproRegressor(n_members=1, random_state=0).fit(X, y)
    scales = model._columns
    assert float(scales[0]) > 1 > 0.3 > float(scales[2:].max())
    assert model.chosen_.log_evidence > alike.chosen_.log_evidence + len(scales)
    errors = [np.sqrt(np.mean((each.predict(new) - clean) ** 2)) for each in (model, alike)]
    assert errors[0] < 0.7 * errors[1]
    assert np.allclose(model.module_(torch.tensor(new))[:, 0].detach(), model.predict(new))
    mean, std = model.predict(new, return_std=True)
    assert np.mean(abs(mean - clean) < 1.96 * std) > 0.9
    assert model.noise_std_[0] == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize("hidden", [None, (8, 8)])
def test_classes_too(hidden) -> None:
    X, y = two_columns_matter(600)
    new, clean = two_columns_matter(2000, noise=0.0)
    model = GNvproClassifier(hidden, n_members=1, random_state=0).fit(X, y > 0)
    assert model._columns.argmax() == 0
    assert float(model._columns[2:].max()) < 0.7
    with ALIKE:
        alike = GNvproClassifier(hidden, n_members=1, random_state=0).fit(X, y > 0)
    assert model.score(new, clean > 0) > alike.score(new, clean > 0)


def test_columns_stay_alike_where_relevances_promise_little() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = GNvproRegressor(n_members=1, random_state=0).fit(X, y)
    assert torch.equal(model._columns, torch.ones(10, dtype=torch.float64))
    assert np.allclose(model.module_.scaling.scale, StandardScaler().fit(X).scale_)


@pytest.mark.parametrize(
    "settings",
    [
        {"work": 200},
        {"max_iter": 30},
        {"theta_penalty": 1e-3},
        {"standardize": False},
        {"features": lambda n: nn.Sequential(nn.Linear(n, 16), nn.Tanh())},
        {"hidden": ()},
    ],
)
def test_there_is_one_training_where_work_is_capped_or_columns_are_not_ours_to_scale(settings) -> None:
    X, y = two_columns_matter(200, 5)
    with patch.object(GNvproRegressor, "_train", autospec=True, side_effect=GNvproRegressor._train) as trainings:
        model = GNvproRegressor(n_members=1, random_state=0, **settings).fit(X, y)
        assert trainings.call_count == 1
        assert torch.equal(model._columns, torch.ones(5, dtype=torch.float64))


def sizes_of_trainings(model, X, y) -> list[int]:
    """Numbers of samples in each training of a fit."""
    kind = type(model)
    with patch.object(kind, "_train", autospec=True, side_effect=kind._train) as trainings:
        model.fit(X, y)
    return [len(call.args[2].part.inputs) for call in trainings.call_args_list]


def test_relevances_of_many_samples_come_from_a_part_of_them() -> None:
    X, y = two_columns_matter(500)
    model = GNvproRegressor(n_members=1, random_state=0, policy=rules(part_rows=200))
    assert sizes_of_trainings(model, X, y) == [200, 500]
    assert model._columns.argmax() == 0
    assert float(model._columns[2:].max()) < 0.7
    new, clean = two_columns_matter(2000, noise=0.0)
    assert np.sqrt(np.mean((model.predict(new) - clean) ** 2)) < 0.03
    with ALIKE:  # the part's model is no result
        assert sizes_of_trainings(clone(model), X, y) == [200, 500]
    assert sizes_of_trainings(clone(model), X[:399], y[:399]) == [399, 399]


def test_the_part_takes_no_more_iterations_than_relevances_need() -> None:
    X, y = two_columns_matter(500)
    made = []

    def train(*args, **settings):
        made.append(gnvpro.train(*args, **settings))
        return made[-1]

    with patch("gnvpro.sklearn.base.train", train):
        GNvproRegressor(n_members=1, random_state=0, policy=rules(part_rows=200, part_iterations=6)).fit(X, y)
    assert [result.status for result in made] == [gnvpro.Status.ITERATIONS_SPENT, gnvpro.Status.SETTLED]
    assert len(made[0].history) - 1 == 6 < len(made[1].history) - 1


def test_what_is_not_known_is_found_out_once_for_relevances_and_intervals() -> None:
    X, y = two_columns_matter(200, 5)
    counted = patch("gnvpro.sklearn.trained.joint_posterior", side_effect=joint_posterior)
    with counted as judged, ALIKE:  # which needs no search
        GNvproRegressor(n_members=1, random_state=0).fit(X, y)
        alone = judged.call_count
    with counted as judged:
        GNvproRegressor(n_members=1, random_state=0, policy=Policy(estimator=EstimatorPolicy(column_gain=np.inf))).fit(
            X, y
        )
        assert judged.call_count == alone == 1


@pytest.mark.parametrize("settings", [{"method": "adam", "work": None}, {"max_iter": 30}, {"theta_penalty": 1e-3}])
def test_no_part_is_trained_on_where_relevances_are_not_sought(settings) -> None:
    X, y = two_columns_matter(500, 3)
    few = Policy(estimator=EstimatorPolicy(part_rows=200))
    assert sizes_of_trainings(GNvproRegressor(n_members=1, random_state=0, policy=few, **settings), X, y) == [500]


def test_a_class_may_be_missing_from_the_part() -> None:
    X, y = two_columns_matter(500, 3)
    labels = (y > 0).astype(int)
    labels[np.argsort(X[:, 2])[-3:]] = 2
    drawn = np.random.RandomState(np.random.RandomState(0).randint(2**31 - 1)).permutation(500)[:200]
    labels[drawn] = np.minimum(labels[drawn], 1)
    assert (labels == 2).any()
    model = GNvproClassifier(n_members=1, random_state=0, policy=Policy(estimator=EstimatorPolicy(part_rows=200)))
    assert sizes_of_trainings(model, X, labels) == [200, 500]
    assert model.predict_proba(X).shape == (500, 3)
    assert model.score(X, labels) > 0.9


def test_steps_are_exact_where_that_takes_little_and_almost_exact_of_many_samples() -> None:
    def usual(loss: str, rows: int, columns: int, width: int = 16):
        model = nn.Sequential(gnvpro.networks.MLP(columns, [width], dtype=torch.float64), nn.Linear(width, 1))
        part = RowSet(torch.zeros(rows, columns), torch.zeros(rows, 1), torch.ones(rows))
        return usual_solver(EstimatorPolicy(), loss, part, model)

    assert usual("least_squares", 1000, 10) == usual("logistic", 1000, 10) == "dense"
    assert usual("least_squares", 14_000, 20) == gnvpro.solvers.Dense(samples=2000)
    assert usual("logistic", 14_000, 20) == usual("multinomial", 100, 3) == "hybrid"
    assert usual("least_squares", 2000, 60) == "hybrid"  # no part is smaller
    assert usual("least_squares", 14_000, 100) == "hybrid"
    assert usual("least_squares", 15_000, 20) == usual("multinomial", 15_000, 3) == "auto"


VERY_MANY = rules(part_rows=400, batches_from=1500)  # makes this number of samples count as very many


@contextmanager
def trainings() -> Iterator[list[gnvpro.Result]]:
    """The list gets the result of every training."""
    made = []

    def train(*args, **settings):
        made.append(gnvpro.train(*args, **settings))
        return made[-1]

    with patch("gnvpro.sklearn.base.train", train):
        yield made


def test_very_many_samples_are_seen_in_batches_with_the_priors_of_a_part() -> None:
    X, y = two_columns_matter(2000, noise=0.2)
    with trainings() as made:
        model = GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY).fit(X, y)
    first, last = (result.history[-1] for result in made)
    assert [len(result.model.features.widths) for result in made] == [1, 2]
    assert made[0].chosen is not None
    assert model.chosen_ is made[1].chosen is None
    assert last.theta_penalty == pytest.approx(made[0].chosen.theta_penalty / 5)  # the same prior: 2000 are five parts
    assert last.head_penalty == pytest.approx(made[0].chosen.head_penalty / 5)
    assert first.work > 0
    assert last.work == pytest.approx(80.0, rel=0.05)
    assert model._columns.argmax() == 0
    assert float(model._columns[2:].max()) < 1
    new, clean = two_columns_matter(4000, noise=0.0)
    mean, std = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean - clean) ** 2)) < 0.08
    assert model.noise_std_[0] == pytest.approx(0.2, rel=0.1)
    assert std.min() >= model.noise_std_[0]


def test_a_penalty_that_was_given_holds_for_the_part_and_for_all() -> None:
    X, y = two_columns_matter(2000, 3, noise=0.2)
    with trainings() as made:
        GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY, head_penalty=1e-3).fit(X, y)
    assert [result.history[-1].head_penalty for result in made] == [1e-3, 1e-3]


def test_very_many_samples_of_a_smooth_function_get_exact_steps() -> None:
    X, y = two_columns_matter(2000, 3, noise=0.0)
    with trainings() as made:
        model = GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY).fit(X, y)
    assert [len(result.model.features.widths) for result in made] == [1, 1]
    assert "dense" in {record.solver for record in made[1].history}
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 1e-3


def test_targets_of_very_many_samples_have_units_of_their_own() -> None:
    X, y = two_columns_matter(2000, 3, noise=0.0)
    rng = np.random.default_rng(1)
    both = np.c_[y + 0.02 * rng.normal(size=2000), 100 * (X[:, 2] + 0.4 * rng.normal(size=2000))]
    model = GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY).fit(X, both)
    assert model.noise_std_ == pytest.approx([0.02, 40.0], rel=0.15)
    assert model.score(X, both) > 0.8


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"class_weight": "balanced"}])
def test_very_many_labels(settings) -> None:
    X, y = two_columns_matter(2000, 4, noise=0.2)
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
    with trainings() as made:
        model = GNvproClassifier(n_members=1, random_state=0, policy=VERY_MANY, **settings).fit(
            X, labels, sample_weight=np.full(2000, 2.0)
        )
    assert len(made) == 2
    assert model.score(X, labels) > 0.75
    assert made[1].history[-1].theta_penalty < made[0].history[-1].theta_penalty


@pytest.mark.parametrize("asked", [{"max_iter": 5}, {"work": 20}])
def test_penalties_of_very_many_samples_are_the_usual_ones_where_work_is_capped(asked) -> None:
    X, y = two_columns_matter(2000, 3)
    with trainings() as made:
        model = GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY, **asked).fit(X, y)
    assert len(made) == 1
    assert model.chosen_ is None
    last = model.history_[-1]
    assert last.theta_penalty == last.head_penalty == 1 / 2000


@pytest.mark.parametrize("asked", [{"solver": "dense"}, {"method": gnvpro.methods.GNvpro()}])
def test_a_method_that_is_named_searches_however_many_samples_there_are(asked) -> None:
    X, y = two_columns_matter(2000, 3)
    assert (
        GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY, max_iter=20, **asked).fit(X, y).chosen_
        is not None
    )
    assert (
        GNvproRegressor(n_members=1, random_state=0, policy=VERY_MANY, max_iter=20).fit(X[:1499], y[:1499]).chosen_
        is not None
    )


def test_a_warm_start_keeps_the_scales() -> None:
    X, y = two_columns_matter()
    model = GNvproRegressor(n_members=1, random_state=0, warm_start=True).fit(X, y)
    before, scale = model.predict(X), model.module_.scaling.scale.clone()
    assert float(model._columns.min()) < 0.3
    again = model.fit(X, y)
    assert torch.equal(again.module_.scaling.scale, scale)
    assert np.sqrt(np.mean((again.predict(X) - before) ** 2)) < 0.02


def test_samples_held_out_are_scaled_alike() -> None:
    X, y = two_columns_matter()
    model = GNvproRegressor(n_members=1, random_state=0, early_stopping=True, patience=50).fit(X, y)
    assert float(model._columns.min()) < 0.5
    assert model.score(X, y) > 0.98


def test_a_warm_start_on_other_columns_begins_afresh() -> None:
    X, y = two_columns_matter(200, 5)
    model = GNvproRegressor(n_members=1, random_state=0, warm_start=True).fit(X, y)
    fresh = GNvproRegressor(n_members=1, random_state=0).fit(X[:, :2], y)
    assert np.array_equal(model.fit(X[:, :2], y).predict(X[:, :2]), fresh.predict(X[:, :2]))
