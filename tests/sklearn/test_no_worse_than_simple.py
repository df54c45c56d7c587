"""Estimators with default settings are never far behind the mean or a linear model, on any table."""

from __future__ import annotations

import time
from unittest.mock import patch

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.problem.loss import Logistic, Multinomial
from gnvpro.sklearn.base import NetworkEstimator
from gnvpro.sklearn.blend import blend, blend_logits
from gnvpro.sklearn.edge import edge_rows, linear_beyond
from gnvpro.sklearn.equal_rows import merge_equal_rows
from gnvpro.sklearn.left_out import PENALTIES as PENALTIES_OF_CLASSES
from gnvpro.sklearn.left_out import fit_linear_classes
from gnvpro.sklearn.linear import fit_linear

PENALTIES = np.logspace(-3, 3, 13)


def wave(samples: int, seed: int, noise: float = 0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, 3))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + noise * rng.normal(size=samples)


def two_targets(samples: int, seed: int):
    """A target without noise, and a noisy one."""
    X, clean = wave(samples, seed, 0.0)
    noisy = X[:, 2] + 0.5 * X[:, 0] * X[:, 1] + np.random.default_rng(100 + seed).normal(size=samples)
    return X, np.c_[clean, noisy]


# -- sizes of numbers


@pytest.mark.parametrize(
    ("of_X", "of_y"), [(1e-170, 1.0), (1e155, 1.0), (1e200, 1.0), (1.0, 1e-170), (1.0, 1e170), (1e-200, 1e200)]
)
def test_the_size_of_numbers_does_not_matter(of_X: float, of_y: float) -> None:
    (X, y), (new, clean) = wave(80, 0), wave(400, 1, 0.0)
    usual = GNvproRegressor(random_state=0).fit(X, y)
    sized = GNvproRegressor(random_state=0).fit(X * of_X, y * of_y)
    mean, std = sized.predict(new * of_X, return_std=True)
    assert r2_score(clean, mean / of_y) == pytest.approx(r2_score(clean, usual.predict(new)), abs=0.02)
    assert np.allclose(std / of_y, usual.predict(new, return_std=True)[1], rtol=0.2)
    with torch.no_grad():
        assert np.array_equal(sized.module_(torch.tensor(new * of_X))[:, 0].numpy(), mean)


def test_a_table_with_columns_of_all_sizes() -> None:
    sizes = np.array([1e200, 1e-250, 1.0])
    (X, y), (new, clean) = wave(80, 0), wave(400, 1, 0.0)
    model = GNvproClassifier(random_state=0).fit(X * sizes, y > 0.3)
    usual = GNvproClassifier(random_state=0).fit(X, y > 0.3)
    assert model.score(new * sizes, clean > 0.3) == pytest.approx(usual.score(new, clean > 0.3), abs=0.01)


# -- tails


@pytest.mark.parametrize("seed", range(3))
def test_a_target_that_is_linear_in_long_tails_is_predicted_like_by_ridge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_cauchy((300, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=300)
    model = GNvproRegressor(random_state=0).fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > 0.99
    mean, std = model.predict(X[200:], return_std=True)
    assert 0.85 < np.mean(abs(mean - y[200:]) < 1.96 * std) <= 1.0


@pytest.mark.parametrize("seed", [3, 6, 7])
def test_rows_beyond_all_that_was_seen_are_predicted_like_by_ridge(seed: int) -> None:
    random = np.random.RandomState(seed)
    X, slopes = random.standard_cauchy((300, 4)), random.randn(4)
    y = X @ slopes + 0.1 * random.randn(300)
    new = random.standard_cauchy((300, 4))
    assert r2_score(new @ slopes, GNvproRegressor(random_state=0).fit(X, y).predict(new)) > 0.99


def test_a_network_is_kept_if_it_predicts_the_rows_farthest_out_better() -> None:
    random = np.random.RandomState(0)
    X = random.standard_cauchy((200, 2))
    y = np.tanh(X[:, 0]) + 0.05 * random.randn(200)
    new = random.standard_cauchy((500, 2))
    assert r2_score(np.tanh(new[:, 0]), GNvproRegressor(random_state=0).fit(X, y).predict(new)) > 0.95


def test_the_edge_is_made_of_the_rows_farthest_out_in_long_tails() -> None:
    random = np.random.RandomState(0)
    X = random.randn(100, 2)
    assert len(edge_rows(X, np.ones(100))) == 0
    X[[3, 50], 0], X[7, 1] = (1e6, -2e6), 5.0  # the second column has no long tails
    edge = edge_rows(X, np.ones(100))
    assert len(edge) == 5
    assert {3, 50} <= set(edge)
    rest, y = np.setdiff1d(np.arange(100), edge), torch.tensor(X @ [[1.0], [2.0]])
    beyond = linear_beyond(X, y, np.ones(100), edge)
    slopes = np.linalg.lstsq(np.c_[X[rest], np.ones(95)], y[rest].numpy(), rcond=None)[0]
    assert beyond is not None
    assert np.allclose(beyond.numpy(), np.c_[X[edge], np.ones(5)] @ slopes, rtol=1e-4)


@pytest.mark.slow
def test_tails_are_compressed_if_that_predicts_better() -> None:
    rng = np.random.default_rng(0)
    X = np.exp(3 * rng.normal(size=(400, 2)))
    y = np.log(X[:, 0]) + 0.1 * rng.normal(size=400)
    assert hasattr(GNvproRegressor(random_state=0, n_members=1).fit(X[:200], y[:200]).module_, "tails")
    assert GNvproRegressor(random_state=0).fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.95


# -- several targets


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_targets_of_different_noise_are_predicted_as_well_as_one_by_one(seed: int) -> None:
    X, Y = two_targets(200, seed)
    new, others = two_targets(1000, 50 + seed)
    together = r2_score(
        others, GNvproRegressor(random_state=0, n_members=1).fit(X, Y).predict(new), multioutput="raw_values"
    )
    for k in range(2):
        alone = GNvproRegressor(random_state=0, n_members=1).fit(X, Y[:, k]).predict(new)
        assert together[k] > r2_score(others[:, k], alone) - 0.01


def test_a_constant_target_beside_a_noisy_one_changes_nothing() -> None:
    X, Y = two_targets(100, 0)
    model = GNvproRegressor(random_state=0).fit(X, np.c_[np.full(100, 7.0), Y[:, 1]])
    alone = GNvproRegressor(random_state=0).fit(X, Y[:, 1])
    mean, std = model.predict(X, return_std=True)
    assert (mean[:, 0] == 7.0).all()
    assert (std[:, 0] == 0.0).all()
    assert np.allclose(mean[:, 1], alone.predict(X), rtol=1e-10)
    assert np.allclose(std[:, 1], alone.predict(X, return_std=True)[1], rtol=1e-6)


@pytest.mark.parametrize("shape", [(30, 60), (8, 20), (40, 3)])
def test_a_constant_target(shape) -> None:
    X = np.random.default_rng(0).normal(size=shape)
    model = GNvproRegressor(random_state=0).fit(X, np.full(len(X), -3.5))
    assert (model.predict(X) == -3.5).all()
    assert model.history_


# -- noise


def noise_table(samples: int, columns: int, seed: int):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples + 500, columns)), rng.normal(size=samples + 500)


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "columns", "draws"), [(50, 20, 30), (40, 11, 10), (64, 28, 10)])
def test_noise_is_not_learnt(samples: int, columns: int, draws: int) -> None:
    found = []
    for seed in range(draws):
        X, y = noise_table(samples, columns, seed)
        mean = r2_score(y[samples:], np.full(500, y[:samples].mean()))
        found.append(
            GNvproRegressor(random_state=0).fit(X[:samples], y[:samples]).score(X[samples:], y[samples:]) - mean
        )
    assert np.median(found) > -0.05
    assert min(found) > -0.15


def test_noise_in_one_table_is_not_learnt() -> None:
    X, y = noise_table(50, 20, 2)
    model = GNvproRegressor(random_state=0).fit(X[:50], y[:50])
    assert model.score(X[50:], y[50:]) > -0.1
    mean, std = model.predict(X[50:], return_std=True)
    assert 0.9 < np.mean(abs(mean - y[50:]) < 1.96 * std) < 0.99


@pytest.mark.parametrize("seed", [4, 12])
def test_a_network_that_models_of_parts_of_the_rows_do_not_confirm_counts_less(seed: int) -> None:
    X, y = noise_table(37, 25, seed)
    model = GNvproRegressor(random_state=0).fit(X[:37], y[:37])
    assert r2_score(y[37:] - y[:37].mean(), model.predict(X[37:]) - y[:37].mean()) > -0.1


# -- wide tables


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_a_wide_table_is_reduced_to_as_many_directions_as_rows(kind: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2030, 3000)) * 0.3
    X[:, :1000] += rng.normal(size=(2030, 1))
    y = X[:, :1000].mean(1) + 0.1 * rng.normal(size=2030)
    if kind == "classes":
        y = y > 0
    model = (GNvproClassifier if kind == "classes" else GNvproRegressor)(random_state=0)
    begun = time.process_time()
    with patch.object(
        NetworkEstimator, "_make_features", autospec=True, side_effect=NetworkEstimator._make_features
    ) as made:
        model.fit(X[:30], y[:30])
    assert time.process_time() - begun < 8.0
    assert all(call.args[1] <= 30 for call in made.call_args_list)
    assert made.call_count > 0
    ridge = RidgeCV(PENALTIES * 1000).fit(X[:30], y[:30])
    score = model.score(X[30:], y[30:])
    assert score > (0.9 if kind == "classes" else ridge.score(X[30:], y[30:]) - 0.05)


def test_a_linear_model_of_classes_of_a_wide_table_takes_as_many_directions_as_rows() -> None:
    random = np.random.RandomState(0)
    columns = torch.tensor(random.randn(20, 3000))
    columns -= columns.mean(0)
    targets = (columns[:, :1] > 0).double()
    begun = time.process_time()
    found = fit_linear_classes(columns, Logistic(), targets, torch.ones(20).double())
    assert time.process_time() - begun < 2.0  # 15 s with a matrix of 3000 columns
    assert found is not None
    gradient = columns.T @ (torch.sigmoid(columns @ found.coefficients + found.bias) - targets) / 20
    alphas = -(gradient * found.coefficients).sum() / found.coefficients.square().sum()
    assert torch.allclose(gradient, -alphas * found.coefficients, atol=1e-6)  # the optimum with one of the penalties
    assert min(abs(float(alphas) / penalty - 1) for penalty in PENALTIES_OF_CLASSES) < 1e-4


# -- classes


def test_the_class_predicted_is_the_one_of_the_highest_probability() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, labels = np.ones((40, 2)), np.arange(40) % (2 + seed % 2)  # nothing to tell classes apart by
        if seed > 2:
            X = rng.normal(size=(40, 2))
        model = GNvproClassifier(random_state=0, max_iter=20).fit(X, labels)
        with torch.no_grad():
            model.module_.head.weight.mul_(1e-17 if seed < 3 else 1e3)  # logits that rounding makes equal
        shares = model.predict_proba(X)
        assert np.array_equal(model.predict(X), model.classes_[shares.argmax(1)])
        if len(model.classes_) == 2:
            assert np.array_equal(model.predict(X) == 1, model.decision_function(X) > 0)


# -- messages


@pytest.mark.parametrize("estimator", [GNvproRegressor, GNvproClassifier])
def test_an_argument_that_does_not_exist_is_named(estimator) -> None:
    with pytest.raises(TypeError, match=f"^{estimator.__name__} has no argument 'hiden'; did you mean 'hidden'\\?$"):
        estimator(hiden=3)
    with pytest.raises(TypeError, match="known: 'hidden', 'activation'"):
        estimator(zzz=3)


# -- kernels


def test_predictions_of_rows_left_out_are_those_of_models_without_them() -> None:
    rng = np.random.default_rng(0)
    for shape in ((12, 4), (8, 15)):
        X, y, weights = (
            rng.normal(size=shape),
            rng.normal(size=(shape[0], 2)),
            rng.integers(1, 4, shape[0]).astype(float),
        )
        columns = torch.tensor(X - np.average(X, 0, weights))
        model = fit_linear(columns, torch.tensor(y), torch.tensor(weights))
        assert model is not None
        for i in range(shape[0]):
            kept = np.arange(shape[0]) != i
            for k in range(2):
                root = np.sqrt(np.r_[weights[kept], [float(model.spread.alphas[k])] * shape[1]])[:, None]
                rows = np.r_[np.c_[np.ones(kept.sum()), columns[kept]], np.c_[np.zeros(shape[1]), np.eye(shape[1])]]
                solved = np.linalg.lstsq(root * rows, root[:, 0] * np.r_[y[kept, k], np.zeros(shape[1])])[0]
                assert float(model.left_out[i, k]) == pytest.approx(
                    solved[0] + float(columns[i].numpy() @ solved[1:]), abs=1e-8
                )


def test_a_blend_trusts_what_predicts() -> None:
    rng = np.random.default_rng(0)
    target, ones = torch.tensor(rng.normal(size=200)), torch.ones(200, dtype=torch.float64)
    target -= target.mean()
    close, noise = target + 0.1 * torch.tensor(rng.normal(size=200)), torch.tensor(rng.normal(size=200))
    assert blend(close, noise, target, ones).is_network
    swapped = blend(noise, close, target, ones)
    assert swapped.linear > 0.9 > 0.1 > swapped.network
    nothing = blend(noise, noise.flip(0), target, ones)
    assert nothing.network + nothing.linear < 0.1


def test_equal_rows_are_merged_and_their_order_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, (30, 3)).astype(float), rng.integers(0, 2, (30, 1)).astype(float)
    weights = rng.integers(1, 4, 30).astype(float)
    merged = merge_equal_rows(X, y, weights)
    assert len(np.unique(np.c_[merged[0], merged[1]], axis=0)) == len(merged[0]) < 16
    assert merged[2].sum() == weights.sum()
    mixed = rng.permutation(np.repeat(np.arange(30), weights.astype(int)))
    again = merge_equal_rows(X[mixed], y[mixed], np.ones(len(mixed)))
    assert all(np.array_equal(a, b) for a, b in zip(merged, again, strict=True))


# -- probabilities


def wide_classes(samples: int, seed: int, classes: int = 2, signal: float = 1.0):
    """Forty columns, of which three say something about the class."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, 40))
    logits = signal * (X[:, :3] @ rng.normal(size=(3, classes)))
    return X, (logits + rng.gumbel(size=logits.shape)).argmax(1)


def log_losses(samples: int, seed: int, classes: int, signal: float) -> dict[str, float]:
    X, y = wide_classes(samples + 1000, seed, classes, signal)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    prior = np.bincount(y[:samples], minlength=classes) / samples
    found = {"prior": log_loss(y[samples:], np.tile(prior, (1000, 1)), labels=range(classes))}
    for name, model in (("ours", GNvproClassifier(random_state=0)), ("logistic", logistic)):
        shares = model.fit(X[:samples], y[:samples]).predict_proba(X[samples:])
        found[name] = log_loss(y[samples:], shares, labels=range(classes))
    return found


@pytest.mark.parametrize(("classes", "signal"), [(2, 1.0), (3, 2.0), (2, 0.0), (4, 0.0)])
def test_probabilities_are_no_worse_than_those_of_simple_models_on_small_wide_tables(
    classes: int, signal: float
) -> None:
    for seed in range(2):
        found = log_losses(120, seed, classes, signal)
        assert found["ours"] < min(found["prior"], found["logistic"]) + 0.05, found


def test_logits_of_rows_left_out_are_close_to_those_of_fits_without_them() -> None:
    for classes in (2, 3):
        X, y = wide_classes(60, 0, classes)
        columns = torch.tensor(X[:, :5] - X[:, :5].mean(0))
        loss = Logistic() if classes == 2 else Multinomial()
        targets = torch.tensor(np.eye(classes)[y] if classes > 2 else y[:, None].astype(float))
        ones = torch.ones(60, dtype=torch.float64)
        with patch("gnvpro.sklearn.left_out.PENALTIES", (0.01,)):
            whole = fit_linear_classes(columns, loss, targets, ones)
            assert whole is not None
            logits = columns @ whole.coefficients + whole.bias
            for i in range(0, 60, 7):
                weights = ones.clone()
                weights[i] = 1e-12
                with patch("gnvpro.sklearn.left_out.PENALTIES", (0.01 * 60 / 59,)):  # times the rows, the same penalty
                    without = fit_linear_classes(columns, loss, targets, weights)
                assert without is not None
                exact, found = (columns[i] @ without.coefficients + without.bias), whole.left_out[i]
                exact, found, plain = (
                    each - each.mean() if classes > 2 else each for each in (exact, found, logits[i])
                )
                assert float((found - exact).norm()) < 0.3 * float((plain - exact).norm()) + 1e-6


def test_covariances_of_outputs_have_the_spread_as_their_diagonal() -> None:
    X, y = wide_classes(60, 0, 3)
    model = GNvproClassifier(hidden=4, random_state=0, calibrated=True, early_stopping=True).fit(X, y)
    inputs = model.module_[:-2](torch.tensor(X))
    with torch.no_grad():
        whole = model._posterior.covariance(model.module_[-2:], inputs)
        spread = model._posterior.spread(model.module_[-2:], inputs)
    assert torch.allclose(whole.diagonal(dim1=1, dim2=2), spread)
    assert torch.allclose(whole.sum(2), torch.zeros(60, 3, dtype=torch.float64), atol=1e-10)


def test_a_blend_of_logits_trusts_what_predicts() -> None:
    rng = np.random.default_rng(0)
    logits = torch.tensor(2 * rng.normal(size=(300, 1)))
    targets = (logits + torch.tensor(rng.logistic(size=(300, 1))) > 0).double()
    ones, prior, noise = torch.ones(300).double(), torch.zeros(1).double(), torch.tensor(3 * rng.normal(size=(300, 1)))
    a, b = blend_logits(logits, noise, prior, Logistic(), targets, ones)
    assert a > 0.85 > 0.1 > b
    a, b = blend_logits(noise, logits, prior, Logistic(), targets, ones)
    assert b > 0.85 > 0.1 > a
    assert sum(blend_logits(noise, noise.flip(0), prior, Logistic(), targets, ones)) < 0.1
    a, _ = blend_logits(4 * logits, None, prior, Logistic(), targets, ones)
    assert 0.15 < a < 0.35
