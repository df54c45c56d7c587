"""Use a surrogate: sensitivity, propagation, the next samples, explorations that survive kills, export."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import qmc

from gnvpro.surrogate import Surrogate, explore, fit
from gnvpro.surrogate.distribution import Inputs
from gnvpro.surrogate.sobol import sobol_indices

QUICK = {"kernel": "rbf", "trend": "constant", "log": False}


def ishigami(X: np.ndarray) -> np.ndarray:
    return np.sin(X[:, 0]) + 7 * np.sin(X[:, 1]) ** 2 + 0.1 * X[:, 2] ** 4 * np.sin(X[:, 0])


def test_sobol_indices_of_ishigami_are_within_their_intervals() -> None:
    """Closed form: first 0.3139, 0.4424, 0; total 0.5576, 0.4424, 0.2437."""
    a, b, p = 7.0, 0.1, np.pi
    v1, v2, v13 = 0.5 * (1 + b * p**4 / 5) ** 2, a**2 / 8, b**2 * p**8 * (1 / 18 - 1 / 50)
    V = v1 + v2 + v13
    box = Inputs.of(None, np.full(3, -p), np.full(3, p))
    found = sobol_indices(lambda X: ishigami(X)[:, None], box, 512, 0.999, 0)
    for exact, value, (low, high) in (
        ([v1, v2, 0], found.first, found.first_interval),
        ([v1 + v13, v2, v13], found.total, found.total_interval),
    ):
        assert (low[0] <= np.array(exact) / V).all()
        assert (np.array(exact) / V <= high[0]).all()
        assert np.allclose(value[0], np.array(exact) / V, atol=0.01)


@pytest.fixture(scope="module")
def linear() -> Surrogate:
    X = qmc.LatinHypercube(2, rng=0).random(16)
    return fit(X, 3 * X[:, 0] - 4 * X[:, 1], kernel="rbf", trend="linear", log=False)


def test_sobol_indices_of_a_linear_surrogate_are_its_squared_slopes(linear: Surrogate) -> None:
    found = linear.sobol([(0, 1), (0, 1)], n=256)
    assert np.allclose(found.first, [9 / 25, 16 / 25], atol=5e-3)
    assert np.allclose(found.total, [9 / 25, 16 / 25], atol=5e-3)


def test_a_normal_distribution_propagates_to_a_normal_one(linear: Surrogate) -> None:
    found = linear.propagate([stats.norm(0.5, 0.1), stats.norm(0.5, 0.05)], n=4096)
    assert found.mean == pytest.approx(-0.5, abs=1e-3)
    assert found.std == pytest.approx(np.hypot(0.3, 0.2), rel=0.02)
    assert found.quantile(0.975) == pytest.approx(-0.5 + 1.96 * np.hypot(0.3, 0.2), abs=0.03)
    assert found.surrogate_std < 1e-3


def bowl(X: np.ndarray) -> np.ndarray:
    return (X[:, 0] - 0.7) ** 2 + 2 * (X[:, 1] - 0.2) ** 2 + 0.3 * np.sin(5 * X[:, 0])


@pytest.fixture(scope="module")
def rough() -> Surrogate:
    X = qmc.LatinHypercube(2, rng=0).random(10)
    return fit(X, bowl(X), **QUICK)


def test_a_suggestion_for_accuracy_is_where_no_samples_are() -> None:
    X = qmc.LatinHypercube(1, rng=0).random(12)
    X = X[(X[:, 0] < 0.3) | (X[:, 0] > 0.7)]
    s = fit(X, np.sin(8 * X[:, 0]), **QUICK)
    assert 0.35 < s.suggest(1, goal="accuracy")[0, 0] < 0.65


def test_suggestions_of_a_batch_keep_apart(rough: Surrogate) -> None:
    points = rough.suggest(4, goal="accuracy")
    apart = np.linalg.norm(points[:, None] - points, axis=-1) + np.eye(4)
    assert points.shape == (4, 2)
    assert apart.min() > 0.1


def test_asking_and_telling_finds_the_minimum() -> None:
    X = qmc.LatinHypercube(2, rng=0).random(8)
    s = fit(X, bowl(X), **QUICK)
    for _ in range(3):
        new = s.ask(2, goal="minimum", bounds=[(0, 1), (0, 1)])
        s.tell(new, bowl(new))
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 101)] * 2), -1).reshape(-1, 2)
    assert len(s._data) == 14
    assert float(s._data.y.min()) < bowl(grid).min() + 0.01 * np.ptp(bowl(grid))


def test_a_suggestion_for_a_contour_is_near_it(rough: Surrogate) -> None:
    points = rough.suggest(3, goal="contour", level=0.6)
    assert np.ptp(bowl(rough._data.x.numpy())) > 1
    assert np.allclose(bowl(points), 0.6, atol=0.03)


def test_constraints_and_candidates_are_obeyed(rough: Surrogate) -> None:
    points = rough.suggest(3, constraint=lambda X: X.sum(1) < 0.4)
    assert (points.sum(1) < 0.4).all()
    mine = np.random.default_rng(0).random((9, 2))
    chosen = rough.suggest(3, candidates=mine)
    assert all((mine == row).all(1).any() for row in chosen)
    assert len(np.unique(chosen, axis=0)) == 3
    with pytest.raises(ValueError, match="no candidate meets"):
        rough.suggest(1, candidates=mine, constraint=lambda X: X[:, 0] > 2)
    with pytest.raises(ValueError, match="level must be given"):
        rough.suggest(1, goal="contour")


class Killed(BaseException):
    pass


def test_a_killed_exploration_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def run(name: str, most: int) -> list[list[float]]:
        calls = []

        def simulator(x: np.ndarray) -> float:
            if len(calls) == most:
                raise Killed
            calls.append(x)
            return float(bowl(x[None])[0])

        with contextlib.suppress(Killed):
            explore(
                simulator, [(0, 1), (0, 1)], runs=10, first=8, journal=tmp_path / name, surrogate=Surrogate(**QUICK)
            )
        return json.loads((tmp_path / name).read_text())["X"]

    whole = run("whole.json", 99)
    assert len(run("killed.json", 9)) == 9
    assert run("killed.json", 99) == whole
    assert len(whole) == 10
    with pytest.raises(ValueError, match="name another journal"):
        explore(bowl, [(0, 2), (0, 1)], runs=10, first=8, journal=tmp_path / "whole.json")


def test_an_exploration_runs_a_command_line(tmp_path: Path) -> None:
    code = "import sys; a, b = map(float, sys.argv[1:]); print('log'); print(a + b)"
    s = explore(
        [sys.executable, "-c", code, "{0}", "{1}"], [(0, 1), (0, 1)], runs=4, first=4, journal=tmp_path / "j.json"
    )
    assert np.allclose(s._data.x.sum(1), s._data.y[:, 0])
    with pytest.raises(ValueError, match="ended with status 3"):
        explore([sys.executable, "-c", "raise SystemExit(3)"], [(0, 1)], runs=4, journal=tmp_path / "k.json")


@pytest.mark.slow
@pytest.mark.parametrize("log", [False, True])
def test_exported_surrogates_predict_the_same(log: bool, tmp_path: Path) -> None:
    X = qmc.LatinHypercube(2, rng=0).random(12)
    s = fit(X, bowl(X) + 2, kernel="matern52", trend="constant", log=log)
    at = np.random.default_rng(0).random((7, 2))
    s.export(tmp_path / "s.pt2", jacobian=True)
    outputs, slopes = torch.export.load(tmp_path / "s.pt2").module()(torch.as_tensor(at))
    assert np.allclose(outputs.numpy()[:, 0], s.predict(at, return_outside=True)[0], rtol=1e-12)
    assert np.allclose(slopes.numpy()[:, 0], s.gradient(at), atol=1e-10)
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    s.export(tmp_path / "s.onnx", jacobian=True)
    session = runtime.InferenceSession(tmp_path / "s.onnx", providers=["CPUExecutionProvider"])
    outputs, slopes = session.run(None, {"inputs": at})
    # weights of 1e7 cancel, and another library rounds differently
    assert np.allclose(outputs[:, 0], s.predict(at, return_outside=True)[0], rtol=1e-8)
    assert np.allclose(slopes[:, 0], s.gradient(at), atol=1e-7)
    with pytest.raises(ValueError, match="must end in"):
        s.export(tmp_path / "s.txt")
