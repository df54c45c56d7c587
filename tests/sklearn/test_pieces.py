"""Columns of the inputs cut into pieces: what it gains, when it is done, and what a model keeps of it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.policy import EstimatorPolicy, HeadPolicy, Policy


def rules(**rows: Any) -> dict[str, Any]:
    """Settings of an estimator with these rows of its policy."""
    return {"policy": Policy(estimator=EstimatorPolicy(**rows))}


FROM_ANY = rules(pieces_from=0)
QUICK = {"theta_penalty": 1e-3, "head_penalty": 1e-3, "max_iter": 10, "random_state": 0}


def stripes(samples: int = 500, seed: int = 0):
    """Classes that alternate along four stripes of a column of long tails, in either half of a second one."""
    rng = np.random.default_rng(seed)
    X = np.c_[np.exp(2 * rng.normal(size=samples)), rng.uniform(-1, 1, samples), rng.normal(size=(samples, 3))]
    stripe = (np.log(X[:, 0])[:, None] > [-1.35, 0, 1.35]).sum(1)
    return X, (stripe + (X[:, 1] > 0)) % 2


@pytest.mark.slow
def test_steps_along_a_column_are_found_from_every_start_in_its_pieces() -> None:
    (X, y), (new, truth) = stripes(), stripes(2000, 1)
    smooth = [GNvproClassifier(n_members=1, random_state=seed).fit(X, y).score(new, truth) for seed in range(2)]
    cut = [GNvproClassifier(n_members=1, random_state=seed, **FROM_ANY).fit(X, y) for seed in range(2)]
    assert min(model.score(new, truth) for model in cut) > 0.9 > min(smooth)
    assert cut[0].module_.features[0].in_features == 5 * 4
    assert np.allclose(cut[0].module_(torch.tensor(new))[:, 0].detach(), cut[0].decision_function(new))


@pytest.mark.parametrize(
    "settings",
    [{"standardize": False}, {"hidden": ()}, {"features": lambda n: nn.Sequential(nn.Linear(n, 4), nn.Tanh())}],
)
def test_columns_stay_whole_where_the_inputs_or_the_network_are_not_ours(settings) -> None:
    X, y = stripes(100)
    model = GNvproClassifier(**settings, **QUICK, **FROM_ANY).fit(X, y)
    assert hasattr(GNvproClassifier(**QUICK, **FROM_ANY).fit(X, y).module_, "pieces")
    assert not hasattr(model.module_, "pieces")


def test_columns_are_cut_for_classes_of_many_samples_only() -> None:
    X, y = stripes(1000)
    assert hasattr(GNvproClassifier(**QUICK).fit(X, y).module_, "pieces")
    assert hasattr(GNvproClassifier(**QUICK).fit(X[:500], y[:500], np.full(500, 2.0)).module_, "pieces")
    assert not hasattr(GNvproClassifier(**QUICK).fit(X[:999], y[:999]).module_, "pieces")
    assert not hasattr(GNvproRegressor(**QUICK).fit(X, y).module_, "pieces"), "no evidence compares them"


def test_a_warm_start_keeps_the_pieces_and_other_columns_begin_afresh() -> None:
    X, y = stripes(300)
    model = GNvproClassifier(warm_start=True, **QUICK, **FROM_ANY).fit(X, y)
    low, ended = model.module_.pieces.low.clone(), model.loss_curve_[-1]
    assert model.fit(X, y).loss_curve_[0] == pytest.approx(ended, rel=1e-9)
    model.fit(X[:200] * 2, y[:200])
    assert torch.equal(model.module_.pieces.low, low)
    # four columns of two values more: as many columns after the cut as before it
    other = np.c_[X[:, :4], np.random.default_rng(2).integers(0, 2, (300, 4))]
    fresh = GNvproClassifier(**QUICK, **FROM_ANY).fit(other, y)
    assert fresh.module_.features[0].in_features == model.module_.features[0].in_features
    assert np.array_equal(model.fit(other, y).predict_proba(other), fresh.predict_proba(other))


def steps(samples: int = 600, seed: int = 0, sharp: float = 30.0):
    """Steps along two of four columns, or a smooth function instead, with noise of 0.1."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (samples, 4))
    clean = np.tanh(sharp * (X[:, 0] - 0.5)) + np.tanh(sharp * (X[:, 0] + 0.5)) + X[:, 1] * np.tanh(sharp * X[:, 1])
    return X, clean + 0.1 * rng.normal(size=samples), clean


def trainings_of(model, X, y) -> list[tuple[int, int]]:
    """Samples and columns of each training of a fit."""
    kind = type(model)
    with patch.object(kind, "_train", autospec=True, side_effect=kind._train) as trainings:
        model.fit(X, y)
    return [tuple(call.args[2].part.inputs.shape) for call in trainings.call_args_list]


@pytest.mark.slow
def test_a_regressor_sees_pieces_where_their_evidence_is_higher() -> None:
    for sharp in (30.0, 1.0):
        X, y, _ = steps(sharp=sharp)
        new, _, clean = steps(2000, 1, sharp)
        model = GNvproRegressor(n_members=1, random_state=0).fit(X, y)
        whole = GNvproRegressor(n_members=1, random_state=0, **rules(pieces_from=np.inf)).fit(X, y)
        assert not hasattr(whole.module_, "pieces")
        errors = [np.sqrt(np.mean((each.predict(new) - clean) ** 2)) for each in (model, whole)]
        if sharp > 1:
            assert model.module_.features[0].in_features == 4 * 4
            assert model.chosen_.log_evidence > whole.chosen_.log_evidence
            assert errors[0] < 0.8 * errors[1]
            assert np.allclose(model.module_(torch.tensor(new))[:, 0].detach(), model.predict(new))
        else:
            assert not hasattr(model.module_, "pieces")
            assert errors[0] == errors[1], "the model of whole columns as it was"


def test_pieces_are_tried_after_whole_columns_and_the_winner_is_trained_on() -> None:
    X, y, _ = steps(499)
    assert {columns for _, columns in trainings_of(GNvproRegressor(n_members=1, random_state=0), X, y)} == {4}, (
        "too few samples"
    )
    X, y, _ = steps(600)
    assert [columns for _, columns in trainings_of(GNvproRegressor(n_members=1, random_state=0), X, y)][:2] == [4, 16]
    seen = trainings_of(GNvproRegressor(n_members=1, random_state=0, **rules(part_rows=300)), X, y)
    assert seen[:2] == [(300, 4), (300, 16)], "of many samples, on a part"
    assert [samples for samples, _ in seen[2:]] == [600]


def test_pieces_are_not_tried_where_little_is_left_or_their_matrix_is_too_large() -> None:
    X, y, _ = steps(600)
    smooth = GNvproRegressor(n_members=1, random_state=0, **rules(smooth_below=0.5))
    assert {columns for _, columns in trainings_of(smooth, X, y)} == {4}
    large = GNvproRegressor(
        n_members=1, random_state=0, policy=Policy(head=HeadPolicy(evidence_below=0.003))
    )  # 200 directions
    assert {columns for _, columns in trainings_of(large, X, y)} == {4}


def test_pieces_that_are_far_behind_on_a_few_of_many_samples_are_not_tried_on_all() -> None:
    model = GNvproRegressor(n_members=1, random_state=0, **rules(pilot_rows=300))
    seen = trainings_of(model, *steps(600)[:2])
    assert seen[1:4] == [(300, 4), (300, 16), (600, 16)]
    X, _, _ = steps(600)
    wave = np.sin(5 * X[:, :3].sum(1)) + 0.1 * np.random.default_rng(1).normal(size=600)  # along no column
    seen = trainings_of(model, X, wave)
    assert seen[1:3] == [(300, 4), (300, 16)]
    assert (600, 16) not in seen


def test_a_warm_start_of_a_regressor_keeps_its_pieces() -> None:
    X, y, _ = steps()
    model = GNvproRegressor(n_members=1, random_state=0, warm_start=True).fit(X, y)
    assert trainings_of(model, X, y) == [(600, 16)]
    assert hasattr(model.module_, "pieces")
