"""The regressor and the classifier pass scikit-learn's checks, and keep the promises of their docstrings."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")

from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gnvpro
from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.data import cdr
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import feature_dof, head_dof, head_posterior
from gnvpro.policy import EstimatorPolicy, Policy
from gnvpro.problem.misfit import Misfit

QUICK = {"hidden": 8, "work": 150, "random_state": 0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # scikit-learn's checks warn of much that is their own business
@parametrize_with_checks([GNvproRegressor(hidden=4, work=60), GNvproClassifier(hidden=4, work=60)])
def test_scikit_learns_own_checks(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, y


def wave(samples: int, seed: int, noise: float = 0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (samples, 2))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + noise * rng.normal(size=samples)


# -- what goes in


def test_several_targets_are_fitted_together_and_each_in_its_own_units() -> None:
    X, y = wave(200, 0)
    Y = np.c_[y, 1e4 + 1e3 * X[:, 0] + 50 * np.random.default_rng(1).normal(size=200)]
    model = GNvproRegressor(**QUICK).fit(X, Y)
    assert model.predict(X).shape == (200, 2)
    assert model.n_outputs_ == 2
    assert model.score(X, Y) > 0.95
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    assert (std[:, 1] > 100 * std[:, 0]).all() or std[:, 1].mean() > std[:, 0].mean()


def test_labels_may_be_strings(iris) -> None:
    names = np.array(["setosa", "versicolor", "virginica"])
    model = GNvproClassifier(**QUICK).fit(iris[0], names[iris[1]])
    assert list(model.classes_) == sorted(names)
    assert model.score(iris[0], names[iris[1]]) > 0.9
    assert np.allclose(model.predict_proba(iris[0]).sum(1), 1)
    assert model.decision_function(iris[0]).shape == (150, 3)


def test_two_classes_have_one_logit(iris) -> None:
    X, y = iris[0][50:], np.where(iris[1][50:] == 1, "no", "yes")
    model = GNvproClassifier(**QUICK).fit(X, y)
    logits = model.decision_function(X)
    assert logits.shape == (100,)
    assert model.module_(torch.from_numpy(X)).shape == (100, 1)
    assert ((logits > 0) == (model.predict(X) == "yes")).all()
    assert np.allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-logits)))


def test_names_of_columns_are_kept() -> None:
    pandas = pytest.importorskip("pandas")
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = GNvproRegressor(**QUICK).fit(X, y)
    assert list(model.feature_names_in_) == list(X.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.rename(columns={"age": "shoe size"}))
    assert isinstance(X, pandas.DataFrame)


@pytest.mark.parametrize("estimator", [GNvproRegressor(), GNvproClassifier()])
def test_sparse_input_is_refused_clearly(estimator, iris) -> None:
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        estimator.fit(sparse.csr_array(iris[0]), iris[1])


def test_one_class_is_refused(iris) -> None:
    with pytest.raises(ValueError, match="at least two classes, got one class"):
        GNvproClassifier().fit(iris[0], np.ones(150, dtype=int))


WRONG = {
    "activation": ({"activation": "tahn"}, ValueError, "did you mean 'tanh'"),
    "hidden": ({"hidden": (0,)}, ValueError, "hidden must be at least 1"),
    "features": ({"features": 3}, TypeError, "features must be a torch.nn.Module, or a function"),
    "features' shape": ({"features": nn.Flatten(0)}, ValueError, "features must return"),
    "work": ({"work": -1}, ValueError, "work must be at least 0"),
    "solver": ({"solver": "lu"}, ValueError, "solver='lu' is not known"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_settings_are_told_at_fit(wrong: str) -> None:
    settings, exception, message = WRONG[wrong]
    with pytest.raises(exception, match=message):
        GNvproRegressor(**settings).fit(*wave(20, 0))


def test_classes_may_be_weighted() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), (np.arange(200) < 20).astype(int)
    X[y == 1] += 1.0
    plain = GNvproClassifier(**QUICK).fit(X, y)
    balanced = GNvproClassifier(class_weight="balanced", **QUICK).fit(X, y)
    given = GNvproClassifier(class_weight={0: 200 / 360, 1: 5.0}, **QUICK).fit(X, y)
    assert (balanced.predict(X) == 1).sum() > 2 * (plain.predict(X) == 1).sum()
    assert np.allclose(given.predict_proba(X), balanced.predict_proba(X), atol=1e-6)


@pytest.mark.slow
def test_a_warm_start_begins_from_the_last_model() -> None:
    X, y = wave(100, 0, noise=0.1)
    numbers = {"theta_penalty": 1e-4, "head_penalty": 1e-4, **QUICK}
    model = GNvproRegressor(warm_start=True, **numbers).fit(X, y)
    ended = model.loss_curve_[-1]
    assert model.fit(X, y).loss_curve_[0] == pytest.approx(ended, rel=1e-9)
    assert GNvproRegressor(**numbers).fit(X, y).loss_curve_[0] > 2 * ended


def test_partial_fit_is_refused_with_what_to_do_instead() -> None:
    assert not hasattr(GNvproRegressor(), "partial_fit")
    with pytest.raises(AttributeError, match="warm_start=True"):
        GNvproRegressor().partial_fit(*wave(10, 0))


# -- networks


def test_features_may_be_a_module_or_a_factory() -> None:
    X, y = wave(150, 0)
    module = nn.Sequential(nn.Linear(2, 6), nn.SiLU())
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = GNvproRegressor(features=module, **QUICK).fit(X, y)
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in before.items())
    assert model.module_.features[0].weight.dtype == torch.float64
    made = GNvproRegressor(features=lambda n: nn.Sequential(nn.Linear(n, 6), nn.SiLU()), **QUICK).fit(X, y)
    assert made.module_.head.in_features == model.module_.head.in_features == 6
    assert min(model.score(X, y), made.score(X, y)) > 0.5


@pytest.mark.parametrize("hidden", [(), 5, [4, 3]])
def test_hidden_layers_may_be_none_one_or_several(hidden) -> None:
    X, y = wave(80, 0)
    model = GNvproRegressor(**{**QUICK, "hidden": hidden}, activation=nn.SiLU).fit(X, y)
    assert model.module_.head.in_features == {(): 2}.get(hidden if hidden == () else 0, 5 if hidden == 5 else 3)
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()


@pytest.mark.parametrize("standardize", [True, False])
def test_module_maps_raw_inputs_to_raw_targets(standardize: bool) -> None:
    X, y = wave(100, 0)
    X, y = 5 + 3 * X, 100 + 20 * y
    model = GNvproRegressor(standardize=standardize, **QUICK).fit(X, y)
    with torch.no_grad():
        outputs = model.module_(torch.from_numpy(X))
    assert np.allclose(outputs[:, 0], model.predict(X), rtol=1e-12)
    assert hasattr(model.module_, "scaling") == standardize


# -- how it is used


def test_the_same_random_state_gives_the_same_model(iris) -> None:
    one, two, other = (
        GNvproClassifier(work=30, random_state=seed).fit(*iris).decision_function(iris[0]) for seed in (1, 1, 2)
    )
    assert (one == two).all()
    assert not np.allclose(one, other)


def test_pickled_and_cloned(iris) -> None:
    model = GNvproClassifier(calibrated=True, **QUICK).fit(*iris)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict_proba(iris[0]) == model.predict_proba(iris[0])).all()
    assert len(again.history_) == len(model.history_)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "module_")


@pytest.mark.slow
def test_grid_search_in_a_pipeline(iris) -> None:
    pipeline = make_pipeline(MinMaxScaler(), GNvproClassifier(**QUICK))
    search = GridSearchCV(pipeline, {"gnvproclassifier__hidden": [(2,), (4,)]}, cv=2).fit(*iris)
    assert search.best_score_ > 0.85


def test_history_iterations_and_loss_curve() -> None:
    model = GNvproRegressor(work=60, random_state=0).fit(*wave(100, 0))
    assert isinstance(model.history_, gnvpro.extend.History)
    assert 0 < model.n_iter_ < len(model.loss_curve_) == len(model.history_)
    assert model.history_[-1].work <= 60
    assert [r.iteration for r in model.history_] == list(range(len(model.history_)))
    assert isinstance(model.status_, gnvpro.Status)


def test_max_iter_caps_the_iterations() -> None:
    model = GNvproRegressor(max_iter=4, random_state=0).fit(*wave(100, 0))
    assert 0 < model.n_iter_ <= 4


def test_early_stopping_stops_and_keeps_the_best_model(iris) -> None:
    model = GNvproClassifier(early_stopping=True, validation_fraction=0.3, patience=3, work=600, random_state=0)
    model.fit(*iris)
    assert model.status_ is gnvpro.Status.NO_BETTER
    scores = model.history_.column("validation_accuracy")
    assert len(scores) - 1 - scores.index(max(scores)) == 3
    assert model.score(*iris) > 0.85


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (GNvproRegressor(**QUICK), 60),
        (GNvproRegressor(hidden=4, random_state=0), 550),  # with relevances, and columns in pieces
        (GNvproRegressor(random_state=0), 25),  # fits most rows, so folds judge it
        (GNvproRegressor(early_stopping=True, **QUICK), 60),
        (GNvproRegressor(hidden=4, theta_penalty=1e-4, head_penalty=1e-4, random_state=0), 60),  # eight folds
        (GNvproClassifier(hidden=4, random_state=0), 100),
        (GNvproClassifier(class_weight="balanced", early_stopping=True, **QUICK), 100),
    ],
)
def test_a_weight_of_two_is_a_row_twice_to_the_last_bit(model, rows) -> None:
    random = np.random.default_rng(0)
    X, counts = random.normal(size=(rows, 3)), random.integers(0, 4, rows)
    X[:, 2] = np.exp(2 * X[:, 2])  # a long tail
    y = np.sign(X[:, 0]) + X[:, 1] ** 2 + 0.1 * random.normal(size=rows)
    y = y > 0.5 if hasattr(model, "predict_proba") else y
    twice = random.permutation(np.repeat(np.arange(rows), counts))
    weighted, repeated = clone(model).fit(X, y, sample_weight=counts), clone(model).fit(X[twice], y[twice])
    if hasattr(model, "predict_proba"):
        assert np.array_equal(weighted.predict_proba(X), repeated.predict_proba(X))
    else:
        assert np.array_equal(weighted.predict(X, return_std=True), repeated.predict(X, return_std=True))


@pytest.mark.slow
def test_the_core_does_not_need_scikit_learn() -> None:
    script = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import gnvpro\n"
        "try: gnvpro.GNvproRegressor\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'scikit-learn>=" in done.stdout


# -- uncertainty


def test_the_spread_is_that_of_bayesian_linear_regression() -> None:
    torch.manual_seed(0)
    Z, targets = torch.randn(30, 4, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    misfit = Misfit.mean(gnvpro.losses.HalfSquaredError(), targets)
    posterior = head_posterior(Z, misfit, torch.zeros_like(targets), 0.1, 30.0)
    precision = Z.T @ Z + 3.0 * torch.eye(4, dtype=torch.float64)
    assert torch.allclose(posterior.spread(Z)[:, 0], (Z @ torch.linalg.inv(precision) * Z).sum(1))
    hat = Z @ torch.linalg.inv(precision) @ Z.T
    assert head_dof(Z, misfit, posterior, 30.0) == pytest.approx(float(hat.trace()))


def test_dof_of_the_features_is_the_trace_it_estimates() -> None:
    torch.manual_seed(0)
    X, y = wave(100, 0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    problem = gnvpro.Problem(model, X, y[:, None], loss="least_squares", theta_penalty=1e-3, head_penalty=1e-3)
    point = problem.reduced.at(problem.theta())
    total = point.curvature().dense()
    exact = 12 - 1e-3 * float(torch.linalg.inv(total).trace())
    assert feature_dof(point, probes=200, rank=12) == pytest.approx(exact, rel=0.1)


def coverage(model: GNvproRegressor, X: np.ndarray, y: np.ndarray) -> float:
    mean, std = model.predict(X, return_std=True)
    return float((abs(y - mean) < 1.96 * std).mean())


@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_interval_covers_where_the_noise_is_known(early_stopping: bool) -> None:
    model = GNvproRegressor(random_state=0, early_stopping=early_stopping).fit(*wave(500, 1, noise=0.1))
    assert 0.91 < coverage(model, *wave(4000, 2, noise=0.1)) < 0.985
    assert model.noise_std_ == pytest.approx(0.1, rel=0.25)


@pytest.mark.slow
def test_the_interval_covers_held_out_samples_of_cdr() -> None:
    """No noise there: what is covered is the error of the surrogate. 40 held-out samples say little: a mean of three."""
    split = cdr.load()
    (X, y), (X_test, y_test) = ([np.asarray(a) for a in part] for part in (split.train, split.test))
    stopped = [GNvproRegressor(random_state=seed, early_stopping=True).fit(X, y) for seed in range(3)]
    assert 0.9 < np.mean([coverage(model, X_test, y_test) for model in stopped]) < 0.99
    model = GNvproRegressor(random_state=0).fit(X, y)
    assert coverage(model, X_test, y_test) > 0.9


@pytest.mark.slow
def test_the_interval_covers_when_penalties_are_far_too_small() -> None:
    numbers = {"theta_penalty": 1e-8, "head_penalty": 1e-8, "work": 300, "random_state": 0}
    model = GNvproRegressor(**numbers).fit(*wave(120, 1, noise=0.5))
    assert 0.88 < coverage(model, *wave(4000, 2, noise=0.5)) < 0.99


@pytest.mark.slow
def test_the_interval_covers_when_less_than_half_as_many_parameters_as_samples_are_fitted_by_hand() -> None:
    """A mean of three: models of the same numbers of samples differ by as much as intervals may."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3500, 8))
        y = X[:, 0] + np.sin(X[:, 1]) + 0.5 * rng.normal(size=3500)
        model = GNvproRegressor(theta_penalty=1e-5, head_penalty=1e-5, work=300, random_state=0).fit(X[:350], y[:350])
        found.append(coverage(model, X[500:], y[500:]))
    assert 0.92 < np.mean(found) < 0.97


@pytest.mark.parametrize("outlier", [0, -1])
def test_intervals_calibrated_on_a_part_of_the_samples_cover_where_one_is_far_off(outlier: int) -> None:
    X, y = wave(1200, 0, noise=0.1)
    y[outlier] += 50.0  # most of the squared residuals: in the part, or not
    few = Policy(estimator=EstimatorPolicy(calibration_rows=300))
    model = GNvproRegressor(random_state=0, hidden=4, policy=few).fit(X, y)
    assert 0.92 < coverage(model, *wave(4000, 2, noise=0.1)) < 0.98


def test_intervals_calibrated_on_a_part_of_sorted_samples_cover() -> None:
    X, clean = wave(3000, 0, noise=0.0)
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.normal(size=3000)
    noise[:1000:50] *= 20.0  # far off, all in the first third
    few = Policy(estimator=EstimatorPolicy(calibration_rows=1000))
    model = GNvproRegressor(random_state=0, policy=few).fit(X, clean + noise)
    new, clean = wave(6000, 2, noise=0.0)
    far = rng.uniform(size=6000) < 20 / 3000
    assert 0.93 < coverage(model, new, clean + np.where(far, 2.0, 0.1) * rng.normal(size=6000)) < 0.97


@pytest.mark.slow
def test_the_interval_covers_when_parts_of_the_samples_are_fitted_exactly() -> None:
    """257 parameters by hand, 320 samples: models of two thirds of them fit all, and spread far more than this model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4320, 14))
    y = X @ rng.normal(size=14) + rng.normal(size=4320)
    model = GNvproRegressor(theta_penalty=1e-4, head_penalty=1e-4, random_state=0).fit(X[:320], y[:320])
    assert 0.92 < coverage(model, X[320:], y[320:]) < 0.97


@pytest.mark.slow
def test_each_target_has_noise_of_its_own() -> None:
    """0.01 and 0.5: with one noise for both, the first target would be smoothed until it has 0.03."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (5500, 4))
    clean = np.stack([np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2], np.cos(2 * X[:, 1]) + X[:, 3] ** 2 + X[:, 0] / 2], 1)
    y = clean + rng.normal(size=clean.shape) * [0.01, 0.5]
    model = GNvproRegressor(random_state=0).fit(X[:1500], y[:1500])
    assert model.noise_std_ == pytest.approx([0.01, 0.5], rel=0.1)
    for k in range(2):
        mean, std = (each[:, k] for each in model.predict(X[1500:], return_std=True))
        assert 0.92 < (abs(y[1500:, k] - mean) < 1.96 * std).mean() < 0.97
    assert np.sqrt(np.mean((model.predict(X[1500:]) - clean[1500:])[:, 0] ** 2)) < 0.005


def test_a_few_noisy_samples_are_predicted_no_worse_than_by_a_linear_model() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1044, 6))
    y = X[:, 0] + 0.5 * np.sin(2 * X[:, 1]) + rng.normal(size=1044)
    models = (GNvproRegressor(random_state=0), RidgeCV(np.logspace(-2, 3, 20)), DummyRegressor())
    ours, *others = (np.mean((m.fit(X[:44], y[:44]).predict(X[44:]) - y[44:]) ** 2) ** 0.5 for m in models)
    assert ours < 1.05 * min(others)


def test_it_is_less_sure_far_from_the_data() -> None:
    X, y = wave(200, 0, noise=0.1)
    model = GNvproRegressor(**{**QUICK, "hidden": ()}).fit(X, y)
    _, std = model.predict(np.array([[0.0, 0.0], [30.0, 30.0]]), return_std=True)
    assert std[1] > 1.5 * std[0]


def test_calibrated_probabilities_with_held_out_rows_are_less_sure_and_name_the_same_class(iris) -> None:
    X, y = iris[0][::3], iris[1][::3]
    settings = {**QUICK, "early_stopping": True, "validation_fraction": 0.2}
    plain, calibrated = (GNvproClassifier(calibrated=c, **settings).fit(X, y) for c in (False, True))
    p, q = plain.predict_proba(iris[0]), calibrated.predict_proba(iris[0])
    assert q.max(1).mean() < p.max(1).mean()
    assert (p.argmax(1) == q.argmax(1)).mean() > 0.97
    assert isinstance(calibrated._posterior, JointPosterior)


@pytest.mark.slow
def test_cross_validation_on_diabetes_is_as_good_as_a_linear_model() -> None:
    X, y = load_diabetes(return_X_y=True)
    assert cross_val_score(GNvproRegressor(work=60, random_state=0), X, y, cv=3).mean() > 0.42


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smooth", "noisy"])
def test_penalties_from_the_data_are_as_good_as_the_best_of_a_grid(kind: str) -> None:
    if kind == "smooth":
        (X, y), n = wave(1100, 0, noise=0.02), 100
    else:
        (X, y), n = load_diabetes(return_X_y=True), 200

    def error(seen, unseen, **settings) -> float:
        model = GNvproRegressor(hidden=6, random_state=0, **settings).fit(X[seen], y[seen])
        return float(np.sqrt(np.mean((model.predict(X[unseen]) - y[unseen]) ** 2)))

    def tied(alpha: float) -> dict[str, float]:
        return {"theta_penalty": alpha, "head_penalty": alpha, "work": 150}

    folds = list(KFold(2, shuffle=True, random_state=0).split(X[:n]))
    best = min((1e-1, 1e-3, 1e-5), key=lambda a: np.mean([error(*fold, **tied(a)) for fold in folds]))
    rows, rest = np.arange(n), np.arange(n, len(X))
    assert error(rows, rest) <= 1.02 * error(rows, rest, **tied(best))
