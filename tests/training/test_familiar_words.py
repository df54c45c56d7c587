"""Words that people bring from other libraries: names of losses that are understood, arguments that are answered."""

from __future__ import annotations

import warnings

import pytest
import torch
from sklearn.base import clone
from torch import nn

import gnvpro
from gnvpro.problem.loss import HalfSquaredError, Logistic, Multinomial, get_loss


@pytest.mark.parametrize(
    ("word", "outputs", "loss"),
    [
        ("mse", 3, HalfSquaredError),
        ("squared_error", 1, HalfSquaredError),
        ("cross_entropy", 3, Multinomial),
        ("log_loss", 3, Multinomial),
        ("log_loss", 1, Logistic),
    ],
)
def test_a_familiar_name_of_a_loss_is_understood(word: str, outputs: int, loss: type) -> None:
    assert type(get_loss(word, outputs)) is loss
    model, x = nn.Linear(2, outputs).double(), torch.rand(9, 2, dtype=torch.float64)
    y = x[:, :1].expand(-1, outputs) if loss is HalfSquaredError else torch.arange(9) % max(outputs, 2)
    assert type(gnvpro.Problem(model, x, y, loss=word).loss) is loss
    assert type(gnvpro.ReducedLoss(model, loss=word).loss) is loss


ANSWERS = [
    ("epochs", "work=2"),
    ("lr", "AdamVPro"),
    ("learning_rate", "AdamVPro"),
    ("batch_size", "Batches"),
    ("hidden_layer_sizes", "gnvpro.networks.MLP"),
    ("patiense", "did you mean 'patience'"),
]


@pytest.mark.parametrize(("word", "answer"), ANSWERS)
def test_train_says_what_to_write_instead(word: str, answer: str) -> None:
    with pytest.raises(TypeError, match=rf"^train has no argument '{word}'.*{answer}"):
        gnvpro.train(nn.Linear(1, 1), torch.ones(2, 1), torch.ones(2, 1), loss="mse", **{word: 1})


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("epochs", "iterations="),
        ("lr", "need none"),
        ("learning_rate", "need none"),
        ("batch_size", "all points"),
        ("hidden_layer_sizes", "pde.Field"),
        ("secnds", "did you mean 'seconds'"),
    ],
)
def test_solve_says_what_to_write_instead(word: str, answer: str) -> None:
    with pytest.raises(TypeError, match=rf"^solve has no argument '{word}'.*{answer}"):
        gnvpro.pde.solve(None, [], **{word: 1})


@pytest.mark.parametrize("kind", [gnvpro.GNvproRegressor, gnvpro.GNvproClassifier])
@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("epochs", "work=2"),
        ("lr", "AdamVPro"),
        ("learning_rate", "AdamVPro"),
        ("batch_size", "AdamVPro"),
        ("hidden_layer_sizes", "hidden="),
        ("hiden", "did you mean 'hidden'"),
    ],
)
def test_an_estimator_says_what_to_write_instead_by_its_own_name(kind: type, word: str, answer: str) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__} has no argument '{word}'.*{answer}"):
        kind(**{word: 1})


def test_estimators_are_cloned_with_all_their_arguments() -> None:
    assert clone(gnvpro.GNvproRegressor(hidden=[3, 2], work=7)).get_params()["hidden"] == [3, 2]


def test_a_warning_still_points_at_the_line_that_called_train() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.5), nn.Linear(2, 1)).double()
    x = torch.rand(9, 1, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gnvpro.train(model, x, x, loss="mse", method="lbfgs-vpro", work=1)
    assert found
    assert all(each.filename == __file__ for each in found)
