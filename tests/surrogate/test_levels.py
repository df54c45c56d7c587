"""Several fidelities, and many outputs in a basis of few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import qmc

from gnvpro.surrogate import Surrogate, fit

QUICK = {"kernel": "rbf", "trend": "constant", "log": False}
NEW = 0.05 + 0.9 * np.random.default_rng(1).random((100, 2))


def high(X: np.ndarray) -> np.ndarray:
    return np.sin(9 * X[:, 0]) + np.cos(7 * X[:, 1]) * X[:, 0]


def low(X: np.ndarray) -> np.ndarray:
    """Another scale, and a smooth difference."""
    return 0.6 * high(X) + 0.5 * X[:, 1] + 3


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    return qmc.LatinHypercube(2, rng=0).random(50), qmc.LatinHypercube(2, rng=1).random(9)


@pytest.fixture(scope="module")
def both(pair: tuple[np.ndarray, np.ndarray]) -> Surrogate:
    A, B = pair
    return Surrogate(**QUICK).fit([(A, low(A)), (B, high(B))])


def error(s: Surrogate) -> float:
    return float(np.sqrt(np.mean((s.predict(NEW, return_outside=True)[0] - high(NEW)) ** 2)))


def test_a_cheaper_simulator_makes_few_samples_ten_times_as_accurate(both: Surrogate, pair) -> None:
    B = pair[1]
    assert error(both) < error(fit(B, high(B), **QUICK)) / 10


def test_the_scale_between_the_simulators_is_found(both: Surrogate) -> None:
    assert float(both._trials[0].member.model.scale_of_below[0]) == pytest.approx(1 / 0.6, rel=0.05)


def test_derivatives_contain_those_of_the_cheaper_simulator(both: Surrogate) -> None:
    at, d = NEW[:4], np.array([1e-3, 0])
    assert np.allclose(both.gradient(at)[:, 0], (both.predict(at + d) - both.predict(at - d)) / 2e-3, atol=1e-3)
    assert np.allclose(both.hessian(at)[:, 0], (both.gradient(at + d) - both.gradient(at - d)) / 2e-3, atol=1e-2)


def test_the_cheaper_simulator_adds_its_own_uncertainty(both: Surrogate) -> None:
    far = np.array([[0.5, 0.5], [3.0, 3.0]])
    own = both._chains[0][0].member
    below = own.model.std(torch.as_tensor(far))[0, :, 0].numpy()
    scale = float(both._trials[0].member.model.scale_of_below[0])
    assert (both.predict(far, return_std=True, return_outside=True)[1] >= scale * below * (1 - 1e-12)).all()


def fields(X: np.ndarray) -> np.ndarray:
    """882 outputs in a space of three dimensions."""
    t = np.linspace(0, 1, 882)
    return np.sin(3 * X[:, :1]) * np.cos(4 * t) + X[:, 1:] ** 2 * t + X[:, :1] * X[:, 1:] * np.sin(9 * t) + 5


def test_many_outputs_are_predicted_in_a_basis_of_few(tmp_path: Path) -> None:
    X = qmc.LatinHypercube(2, rng=0).random(40)
    s = fit(X, fields(X), kernel="rbf", trend="constant")
    assert len(s._trials) == 3
    mean, std, _ = s.predict(NEW, return_std=True, return_outside=True)
    assert mean.shape == std.shape == (100, 882)
    assert np.sqrt(np.mean((mean - fields(NEW)) ** 2)) < 1e-3 * fields(NEW).std()
    assert s.gradient(NEW[:2]).shape == (2, 882, 2)
    d = np.array([1e-3, 0])
    assert np.allclose(s.gradient(NEW[:2])[..., 0], (s.predict(NEW[:2] + d) - s.predict(NEW[:2] - d)) / 2e-3, atol=1e-3)
    outputs, slopes = s.module(jacobian=True)(torch.as_tensor(NEW[:3]))
    assert np.allclose(outputs.numpy(), mean[:3])
    assert slopes.shape == (3, 882, 2)


def test_slopes_of_many_outputs_are_used() -> None:
    X = qmc.LatinHypercube(2, rng=0).random(8)
    step = 1e-5 * np.eye(2)
    dY = np.stack([(fields(X + e) - fields(X - e)) / 2e-5 for e in step], -1)

    def wrong(s: Surrogate) -> float:
        return float(np.sqrt(np.mean((s.predict(NEW, return_outside=True)[0] - fields(NEW)) ** 2)))

    assert (
        wrong(fit(X, fields(X), dY, kernel="rbf", trend="constant"))
        < wrong(fit(X, fields(X), kernel="rbf", trend="constant")) / 3
    )


def test_files_hold_all_fidelities(both: Surrogate, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    both.save(tmp_path / "s.safetensors")
    again = Surrogate.load(tmp_path / "s.safetensors")
    assert np.array_equal(again.predict(NEW, return_outside=True)[0], both.predict(NEW, return_outside=True)[0])
    new = np.array([[0.5, 0.5]])
    assert len(again.tell(new, high(new))._levels[1]) == 10


def test_more_samples_than_a_kernel_model_takes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("surrogate", "candidates"):
        monkeypatch.setattr(f"gnvpro.surrogate.{module}.MOST_ROWS", 20)
    X = qmc.LatinHypercube(2, rng=0).random(30)
    with pytest.warns(UserWarning, match="at most 20 samples, evenly spread over these 30"):
        s = fit(X, high(X), **QUICK)
    assert s.left_out()[0].shape == (20,)


def test_fidelities_must_have_the_same_inputs() -> None:
    X = np.random.default_rng(0).random((6, 2))
    with pytest.raises(ValueError, match="same inputs and outputs"):
        Surrogate().fit([(X[:, :1], X[:, 0]), (X, X[:, 0])])
    with pytest.raises(TypeError, match="fit needs X and y"):
        Surrogate().fit(X)
