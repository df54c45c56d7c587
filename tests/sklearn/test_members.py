"""Means of several networks: their weights, the module that they become, and what they gain."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.policy import EstimatorPolicy, Policy
from gnvpro.problem.loss import LOSSES
from gnvpro.sklearn import blend
from gnvpro.sklearn.parts import PartPosteriors

QUICK = {"hidden": 4, "random_state": 0}


def steps(n: int, seed: int, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """A function with steps, a line and a wave."""
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, size=(n, 4))
    jumps = np.sign(X[:, 0]) + np.sign(X[:, 1] - 1) + np.sign(X[:, 2] + 1)
    return X, jumps + X[:, 2] + np.sin(2 * X[:, 3]) + noise * random.normal(size=n)


def grid(count: int = 50) -> np.ndarray:
    """Weights of three networks."""
    return np.array([(i, j, count - i - j) for i in range(1, count) for j in range(1, count - i)]) / count


def test_weights_of_regressors_minimise_the_error_of_left_out_rows() -> None:
    random = np.random.default_rng(0)
    target, weights = torch.randn(80, dtype=torch.float64), torch.tensor(random.uniform(0.5, 2, 80))
    left_out = [target + s * torch.tensor(random.normal(size=80)) for s in (0.5, 0.7, 3.0)]
    found = blend.mean_of_outputs(left_out, target, weights)

    def objective(a: np.ndarray) -> float:
        mean = sum(share * each for share, each in zip(a, left_out, strict=True))
        error = float(weights @ (target - mean).square() / weights.sum())
        return 0.5 * np.log(error) - blend.PRIOR_ROWS / float(weights.sum()) * float(np.log(a).sum())

    assert found.sum() == pytest.approx(1)
    assert objective(found) <= min(map(objective, grid())) + 1e-9


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_of_classifiers_minimise_the_log_loss_of_left_out_rows(n_classes: int) -> None:
    random = np.random.default_rng(0)
    loss = LOSSES["logistic" if n_classes == 2 else "multinomial"]()
    labels = random.integers(0, n_classes, 90)
    targets = one_hot(labels, n_classes)
    weights = torch.tensor(random.uniform(0.5, 2, 90))
    left_out = [s * targets + torch.tensor(random.normal(size=targets.shape)) for s in (2.0, 1.0, 0.0)]
    found = blend.mean_of_logits(left_out, loss, targets, weights)

    def objective(a: np.ndarray) -> float:
        logits = sum(share * each for share, each in zip(a, left_out, strict=True))
        error = float(weights @ loss.value(logits, targets) / weights.sum())
        return error - blend.PRIOR_ROWS / float(weights.sum()) * float(np.log(a).sum())

    assert objective(found) <= min(map(objective, grid())) + 1e-9
    assert found[2] < 0.15


def one_hot(labels: np.ndarray, n_classes: int) -> torch.Tensor:
    return torch.tensor(np.eye(n_classes)[labels][:, int(n_classes == 2) :])


def test_the_gradient_of_the_weights_is_that_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(objective, start, **settings):
        asked.append(objective)
        return real(objective, start, **settings)

    real = blend.minimize
    monkeypatch.setattr(blend, "minimize", spy)
    target = torch.randn(30, dtype=torch.float64)
    blend.mean_of_outputs([target + 0.3, 0.5 * target, -target], target, torch.ones(30).double())
    at = np.array([0.3, -0.2, 0.1])
    assert asked[0](at)[1] == pytest.approx(approx_fprime(at, lambda z: asked[0](z)[0], 1e-6), abs=1e-5)


def test_the_module_is_the_weighted_mean_of_its_networks() -> None:
    X, y = steps(200, 0)
    model = GNvproRegressor(n_members=3, **QUICK).fit(X, y)
    assert isinstance(model._posterior, PartPosteriors)
    shares = {name: share for name, _, share in model._posterior.sources[0]}
    assert len(shares) == 3
    assert sum(shares.values()) == pytest.approx(1)
    kinds = {
        type(part.features[1]).__name__ for part in model.module_.features.parts.values() if hasattr(part, "features")
    }
    assert kinds == {"Tanh", "SiLU"}
    assert any(hasattr(part, "pieces") for part in model.module_.features.parts.values())
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))


def test_a_mean_predicts_steps_and_waves_better_than_one_network() -> None:
    (X, y), (X_new, y_new) = steps(300, 0), steps(1000, 1)
    one = GNvproRegressor(random_state=0, n_members=1).fit(X, y)
    several = GNvproRegressor(random_state=0).fit(X, y)
    errors = [float(np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2))) for model in (one, several)]
    assert errors[1] < 0.9 * errors[0]
    mean, std = several.predict(X_new, return_std=True)
    assert 0.9 < np.mean(abs(y_new - mean) < 1.96 * std) < 0.99


def test_classes_behind_a_step_are_predicted_better_by_a_mean() -> None:
    (X, y), (X_new, y_new) = steps(300, 0, 0.5), steps(1000, 1, 0.5)
    losses = []
    for n_members in (1, None):
        model = GNvproClassifier(random_state=0, n_members=n_members).fit(X, y > 0)
        shares = model.predict_proba(X_new)
        losses.append(-np.mean(np.log(shares[np.arange(1000), (y_new > 0).astype(int)])))
    assert losses[1] < losses[0]


def test_seeds_repeat_a_mean() -> None:
    X, y = steps(60, 0)
    first, second = (GNvproRegressor(n_members=2, **QUICK).fit(X, y).predict(X) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    "settings", [{"work": 20}, {"theta_penalty": 1e-3}, {"early_stopping": True}, {"warm_start": True}]
)
def test_networks_that_cannot_be_judged_are_no_members(settings) -> None:
    X, y = steps(60, 0)
    with pytest.raises(ValueError, match="n_members=2 needs penalties that are found from the data"):
        GNvproRegressor(n_members=2, **QUICK, **settings).fit(X, y)
    assert len([*GNvproRegressor(**QUICK, **settings).fit(X, y).module_.modules()]) < 20
    with pytest.raises(ValueError, match="n_members must be at least 1, got 0"):
        GNvproRegressor(n_members=0, **QUICK).fit(X, y)


def test_rows_decide_whether_several_networks_are_trained() -> None:
    X, y = steps(60, 0)
    few = Policy(estimator=EstimatorPolicy(members_up_to=59))
    assert np.array_equal(
        GNvproRegressor(policy=few, **QUICK).fit(X, y).predict(X),
        GNvproRegressor(n_members=1, **QUICK).fit(X, y).predict(X),
    )


def test_networks_too_wide_for_members_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = steps(60, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GNvproRegressor(n_members=2, **QUICK).fit(X, y)
        monkeypatch.setattr("gnvpro.sklearn.trained.is_assembled", lambda problem, times: False)
        GNvproRegressor(**QUICK).fit(X, y)
    with pytest.warns(UserWarning, match="n_members=2 is not used: the network is too wide"):
        GNvproRegressor(n_members=2, **QUICK).fit(X, y)
