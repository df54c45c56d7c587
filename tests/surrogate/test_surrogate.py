"""`Surrogate`: accuracy, derivatives and their deviations, slopes as data, files, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import qmc

from gnvpro.surrogate import OutsideWarning, Surrogate, fit, kriging
from gnvpro.surrogate.kernel import Kernel


def f(X: np.ndarray) -> np.ndarray:
    return np.exp(0.5 * X[:, 0]) * (2 + np.sin(2 * X[:, 1]))


def slopes(X: np.ndarray) -> np.ndarray:
    e, s = np.exp(0.5 * X[:, 0]), 2 + np.sin(2 * X[:, 1])
    return np.stack([0.5 * e * s, 2 * e * np.cos(2 * X[:, 1])], 1)


X = 3 * qmc.LatinHypercube(2, rng=0).random(24)
NEW = 0.2 + 2.6 * np.random.default_rng(1).random((200, 2))
QUICK = {"kernel": "rbf", "trend": "constant"}


def error(surrogate: Surrogate) -> float:
    return float(np.sqrt(np.mean((surrogate.predict(NEW, return_outside=True)[0] - f(NEW)) ** 2)) / f(NEW).std())


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "log"])
def fitted(request: pytest.FixtureRequest) -> Surrogate:
    return fit(X, f(X), log=request.param, **QUICK)


def test_a_smooth_function_is_predicted_from_24_samples(fitted: Surrogate) -> None:
    assert error(fitted) < 0.01
    assert fitted.loo_error_[0] < 0.05


def test_samples_are_interpolated_without_noise() -> None:
    assert np.allclose(fit(X, f(X), log=False, noise=False, **QUICK).predict(X), f(X), rtol=1e-6)


@pytest.mark.parametrize("with_slopes", [False, True])
def test_derivatives_agree_with_finite_differences_of_the_prediction(fitted: Surrogate, with_slopes: bool) -> None:
    s = fit(X, f(X), slopes(X), log=fitted.log, **QUICK) if with_slopes else fitted
    at = NEW[:5]
    gradient, hessian = s.gradient(at), s.hessian(at)
    for e in range(2):
        assert np.allclose(gradient[:, e], difference(s.predict, at, e), atol=1e-6)
        assert np.allclose(hessian[:, e], difference(s.gradient, at, e), atol=1e-5)


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_pieces_that_fit_the_cache_give_the_results_of_one_piece(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = f(X) + 0.1 * np.random.default_rng(2).standard_normal(len(X))
    s, sizes = fit(X, noisy, log=False, kernel=kernel, trend="constant"), []
    own = Kernel.between

    def between(self: Kernel, x: torch.Tensor, *rest) -> torch.Tensor:
        sizes.append(len(x) * len(X))
        return own(self, x, *rest)

    monkeypatch.setattr(Kernel, "between", between)
    at = np.tile(NEW, (50, 1))
    pieces = [s.predict(at), s.gradient(at), *s.predict(at, return_std=True)]
    limit = kriging.CACHED_ENTRIES
    assert max(sizes) <= limit
    monkeypatch.setattr(kriging, "CACHED_ENTRIES", 10**9)
    for piece, whole in zip(pieces, [s.predict(at), s.gradient(at), *s.predict(at, return_std=True)], strict=True):
        assert np.abs(piece - whole).max() < 1e-12 * np.abs(whole).max()
    assert max(sizes) > limit


def difference(function, at: np.ndarray, e: int) -> np.ndarray:
    """A difference of fourth order: its step is large because the weights of smooth kernels cancel."""
    d = 0.01 * np.eye(2)[e]
    near, far = function(at + d) - function(at - d), function(at + 2 * d) - function(at - 2 * d)
    return (8 * near - far) / 0.12


def test_gradients_of_tensors_flow_through_predictions(fitted: Surrogate) -> None:
    at = torch.tensor(NEW[:5], requires_grad=True)
    (slope,) = torch.autograd.grad(fitted.predict(at).sum(), at)
    assert torch.allclose(slope, fitted.gradient(at.detach()), atol=1e-9)


def test_deviations_of_derivatives_are_those_of_differences(fitted: Surrogate) -> None:
    """std(y(x + h) - y(x - h)) / 2h, from the joint covariance of both values, approaches the std of the slope."""
    member = fitted._trials[0].member
    at, step = torch.tensor(NEW[:4]), 1e-2
    std = member.gradient(at, True).std
    for i in range(4):
        for e in range(2):
            pair = torch.stack([at[i], at[i]])
            pair[0, e] += step
            pair[1, e] -= step
            C = member.model.covariance(pair, pair) * member.model.eliminated.s * member.model.units.size**2
            C = C * member.model.inflation**2
            change = torch.tensor([1.0, -1.0], dtype=torch.float64) / (2 * step)
            change = change * (member.values(pair, False).mean[:, 0] if member.log else 1.0)
            assert float((change @ C @ change).sqrt()) == pytest.approx(float(std[i, 0, e]), rel=0.02)


def test_slopes_as_data_make_predictions_five_times_as_accurate() -> None:
    few = X[::2]
    without, given = fit(few, f(few), log=False, **QUICK), fit(few, f(few), slopes(few), log=False, **QUICK)
    assert error(given) < error(without) / 5


def test_missing_slopes_are_left_out() -> None:
    few, known = X[::2], slopes(X[::2])
    known[::2] = np.nan
    known[1, 0] = np.nan
    partly = fit(few, f(few), known, log=False, noise=False, **QUICK)
    assert error(partly) < error(fit(few, f(few), log=False, **QUICK)) / 2
    given = np.isfinite(known)
    assert np.allclose(partly.gradient(few)[given], known[given], rtol=1e-3)


def test_deviations_grow_away_from_the_samples(fitted: Surrogate) -> None:
    line = np.stack([np.full(5, 1.5), 3 + np.arange(5.0)], 1)
    mean, std, outside = fitted.predict(line, return_std=True, return_outside=True)
    relative = std / mean if fitted.log else std
    assert (np.diff(relative) > 0).all()
    assert outside.tolist() == [False, True, True, True, True] or outside.all()
    with pytest.warns(OutsideWarning, match="of 5 points lie outside"):
        fitted.predict(line)


def test_noise_is_found_and_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    A, B = 3 * rng.random((80, 2)), 0.2 + 2.6 * rng.random((400, 2))
    s = fit(A, f(A) + 0.3 * rng.standard_normal(80), log=False, **QUICK)
    mean, std = s.predict(B, return_std=True)
    covered = np.mean(np.abs(f(B) + 0.3 * rng.standard_normal(400) - mean) < 1.96 * std)
    assert 0.88 < covered <= 1.0
    assert np.median(std) < 0.6


def test_choices_depend_on_the_data_and_are_reported() -> None:
    A = np.random.default_rng(0).random((30, 3))
    s = fit(A, np.exp(3 * A.sum(1)))
    assert s._trials[0].form.log
    assert "logarithm" in s.summary()


def test_several_outputs_have_their_own_models_and_shapes() -> None:
    s = fit(X, np.stack([f(X), -X[:, 0]], 1), kernel="rbf", trend="linear", log=False)
    at = NEW[:6]
    mean, std = s.predict(at, return_std=True)
    assert mean.shape == std.shape == (6, 2)
    assert s.gradient(at).shape == (6, 2, 2)
    assert s.hessian(at).shape == (6, 2, 2, 2)
    assert np.allclose(mean[:, 1], -at[:, 0], atol=1e-5)
    assert np.allclose(s.gradient(at)[:, 1], [-1, 0], atol=1e-4)


def test_a_constant_target_stays_constant() -> None:
    s = fit(X, np.full(24, 2.5))
    assert np.allclose(s.predict(NEW), 2.5)


def test_a_file_gives_the_same_predictions(fitted: Surrogate, tmp_path) -> None:
    pytest.importorskip("safetensors")
    fitted.save(tmp_path / "s.safetensors")
    again = Surrogate.load(tmp_path / "s.safetensors")
    for one, other in zip(fitted.predict(NEW, return_std=True), again.predict(NEW, return_std=True), strict=True):
        assert np.array_equal(one, other)
    assert repr(again) == repr(fitted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fit(X, f(X)[:-1]), "X has 24 samples but y has 23"),
        (lambda: fit(X[:2], f(X[:2])), "at least 3 samples"),
        (lambda: fit(X, np.where(X[:, 0] > 1, np.nan, 1.0)), "y has nan in row"),
        (lambda: fit(X, f(X), slopes(X)[:, :1]), r"gradients must have shape \(24, 2\)"),
        (lambda: fit(X, -f(X), log=True), "log=True needs positive targets"),
        (lambda: fit(X, f(X), kernel="rbff"), "kernel='rbff' is not known"),
        (lambda: Surrogate().predict(X), "call fit"),
        (lambda: fit(X, f(X), log=False, **QUICK).predict(X[:, :1]), "X must have 2 columns"),
        (
            lambda: fit(X, f(X), kernel="matern32", trend="constant", log=False).hessian(X, return_std=True),
            "too few derivatives",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
