"""Fits of curves: shapes, constraints, weights, missing values, outliers, starts, and errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from gnvpro import curves

X = torch.linspace(0.0, 5.0, 80, dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def decays(x, k1, k2):  # type: ignore[no-untyped-def]
    return [torch.exp(-k1 * x), torch.exp(-k2 * x), 1.0]


def mixed(*rates: float, amplitudes: Tensor) -> Tensor:
    return torch.stack([torch.exp(-k * X) for k in rates] + [torch.ones_like(X)], 1) @ amplitudes


AMPLITUDES = torch.tensor([2.0, 1.0, 0.3], dtype=torch.float64)
ONE = mixed(0.4, 3.0, amplitudes=AMPLITUDES) + 0.01 * noise(80)
START = {"k1": 0.3, "k2": 5.0}


def test_one_curve_gives_vectors_and_several_give_matrices():
    one = curves.fit(decays, X.numpy(), ONE.numpy(), start=START)
    several = curves.fit(decays, X, torch.stack([ONE, 2 * ONE], 1), start=START)
    assert one.coefficients.shape == one.coefficient_errors.shape == (3,)
    assert several.coefficients.shape == several.coefficient_errors.shape == (3, 2)
    assert one.names == ("k1", "k2", "c0", "c1", "c2")
    assert one.covariance.shape == (5, 5)
    assert several.covariance.shape == (8, 8)
    assert several.parameters["k1"] == pytest.approx(one.parameters["k1"], rel=1e-7)
    assert np.allclose(several.coefficients[:, 1], 2 * one.coefficients, rtol=1e-6)


def test_summary_and_figure_show_the_fit():
    pytest.importorskip("matplotlib")
    one = curves.fit(decays, X, ONE, start=START)
    text = str(one.summary())
    assert f"{one.parameters['k1']:.6g}" in text
    assert "solved" in repr(one)
    assert "<table>" in one._repr_html_()
    many = curves.fit(decays, X, torch.stack([ONE] * 9, 1) + 0.01 * noise(80, 9), start=START)
    for fit, drawn in ((one, 1), (many, 6)):
        above, below = fit.plot().axes
        assert len(above.lines) == 2 * drawn
        assert len(below.lines) == drawn + 1


def test_pandas_is_taken():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": X.numpy(), "y": ONE.numpy()})
    fit = curves.fit(decays, table["x"], table["y"], start=START)
    assert fit.parameters == pytest.approx(curves.fit(decays, X, ONE, start=START).parameters, rel=1e-9)


def test_more_curves_than_samples_are_as_good_as_all_of_them():
    amplitudes = noise(3, 300).abs() + 0.5
    Y = mixed(0.4, 3.0, amplitudes=amplitudes) + 0.01 * noise(80, 300, seed=1)
    fit = curves.fit(decays, X, Y, start=START)
    doubled = curves.fit(decays, X, Y, start=START, weights=torch.ones_like(Y))  # not one set of weights less
    assert fit.parameters == pytest.approx(doubled.parameters, rel=1e-9)
    Z = torch.stack([torch.exp(-fit.parameters[k] * X) for k in START] + [torch.ones_like(X)], 1)
    W = torch.linalg.lstsq(Z, Y).solution
    assert np.allclose(fit.coefficients, W, rtol=1e-9)
    assert fit.rss == pytest.approx(float((Y - Z @ W).square().sum()), rel=1e-9)
    assert fit.dof == 80 * 300 - 3 * 300 - 2


def test_a_basis_that_mixes_samples_has_right_derivatives():
    kernel = torch.exp(-0.5 * ((X - X[10]) / 0.2) ** 2)

    def blurred(x, k):  # type: ignore[no-untyped-def]
        decay = torch.exp(-k * x)
        return [torch.nn.functional.conv1d(decay[None, None], kernel.flip(0)[None, None], padding=79)[0, 0, :80]]

    y = 3 * blurred(X, torch.tensor(0.7, dtype=torch.float64))[0]
    fit = curves.fit(blurred, X, y, start={"k": 2.0})
    assert fit.solved
    assert fit.parameters["k"] == pytest.approx(0.7, rel=1e-9)
    assert fit.coefficients[0] == pytest.approx(3.0, rel=1e-9)


def test_bounds_that_do_not_bind_change_nothing():
    free = curves.fit(decays, X, ONE, start=START)
    for bounds in ({"k1": (0.0, None), "k2": (None, 50.0)}, {"k1": (0.0, 1.0), "k2": (1.0, 100.0)}):
        bounded = curves.fit(decays, X, ONE, start=START, bounds=bounds)
        assert bounded.solved
        assert bounded.parameters == pytest.approx(free.parameters, rel=1e-7)
        assert bounded.standard_errors == pytest.approx(free.standard_errors, rel=1e-6)
        assert not bounded.notes


@pytest.mark.parametrize("bounds", [(0.6, None), (0.6, 9.0), (0.6, 1000.0)])
def test_an_active_bound_is_reached_and_said(bounds):
    fit = curves.fit(decays, X, ONE, start={"k1": 1.0, "k2": 5.0}, bounds={"k1": bounds})
    held = curves.fit(decays, X, ONE, start={"k1": 0.6, "k2": 5.0}, fixed={"k1": 0.6})
    assert fit.parameters["k1"] == 0.6
    assert fit.solved
    assert np.isnan(fit.standard_errors["k1"])
    assert fit.parameters["k2"] == pytest.approx(held.parameters["k2"], rel=1e-6)
    assert fit.standard_errors["k2"] == pytest.approx(held.standard_errors["k2"], rel=1e-5)
    assert any("k1 is on its lower bound" in note for note in fit.notes)


def test_parameters_are_fixed_tied_and_computed():
    fit = curves.fit(decays, X, ONE, start={"k1": 0.3}, fixed={"k2": lambda k1: 7.5 * k1})
    assert fit.solved
    assert fit.parameters["k2"] == pytest.approx(7.5 * fit.parameters["k1"], rel=1e-12)
    assert fit.standard_errors["k2"] == pytest.approx(7.5 * fit.standard_errors["k1"], rel=1e-9)
    plain = curves.fit(lambda x, k: decays(x, k, 7.5 * k), X, ONE, start={"k": 0.3})
    assert fit.parameters["k1"] == pytest.approx(plain.parameters["k"], rel=1e-8)
    assert fit.standard_errors["k1"] == pytest.approx(plain.standard_errors["k"], rel=1e-8)
    shared = curves.fit(
        lambda x, k1, k2: [torch.exp(-k1 * x), x * torch.exp(-k2 * x)], X, ONE, start={"k1": 0.3}, fixed={"k2": "k1"}
    )
    assert shared.parameters["k2"] == shared.parameters["k1"]
    held = curves.fit(decays, X, ONE, start=START, fixed={"k2": 3.0})
    assert held.standard_errors["k2"] == 0.0


def test_a_coefficient_can_be_fixed():
    fit = curves.fit(decays, X, ONE, start=START, fixed={"c2": 0.3})
    plain = curves.fit(lambda x, k1, k2: decays(x, k1, k2)[:2], X, ONE - 0.3, start=START)
    assert fit.coefficients[2] == 0.3
    assert fit.coefficient_errors[2] == 0.0
    assert fit.parameters == pytest.approx(plain.parameters, rel=1e-8)
    assert fit.standard_errors == pytest.approx(plain.standard_errors, rel=1e-8)


def test_coefficients_that_may_not_be_negative_are_scipys():
    amplitudes = torch.tensor([[2.0, 1.0, 0.5], [1.0, -0.6, 0.4], [0.3, 0.2, -0.1]], dtype=torch.float64)
    Y = mixed(0.4, 3.0, amplitudes=amplitudes) + 0.01 * noise(80, 3)
    fit = curves.fit(decays, X, Y, start=START, nonnegative=True)
    assert fit.solved
    assert (fit.coefficients >= 0).all()
    from scipy.optimize import minimize, nnls

    def rss(k: np.ndarray) -> float:
        Z = torch.stack([torch.exp(-k[0] * X), torch.exp(-k[1] * X), torch.ones_like(X)], 1).numpy()
        return sum(nnls(Z, y)[1] ** 2 for y in Y.T.numpy())

    found = minimize(rss, [0.4, 3.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
    assert fit.rss <= found.fun * (1 + 1e-9)
    assert list(fit.parameters.values()) == pytest.approx(found.x, rel=1e-5)
    assert (fit.coefficient_errors[fit.coefficients == 0] == 0).all()
    assert any("held at zero" in note for note in fit.notes)


def test_missing_values_are_left_out_or_refused():
    Y = torch.stack([ONE, ONE + 0.01 * noise(80, seed=2), 2 * ONE], 1)
    holes = Y.clone()
    holes[5, 0] = holes[70:, 1] = torch.nan
    with pytest.raises(ValueError, match="missing='omit'"):
        curves.fit(decays, X, holes, start=START)
    fit = curves.fit(decays, X, holes, start=START, missing="omit")
    weights = (~holes.isnan()).to(torch.float64)
    weighted = curves.fit(decays, X, Y, start=START, weights=weights)
    assert fit.solved
    assert fit.dof == 240 - 11 - 9 - 2
    assert fit.parameters == pytest.approx(weighted.parameters, rel=1e-9)
    short = curves.fit(decays, X[:70], ONE[:70], start=START)
    one = curves.fit(decays, X, torch.where(X[69] < X, torch.nan, ONE), start=START, missing="omit")
    assert one.parameters == pytest.approx(short.parameters, rel=1e-8)
    assert one.standard_errors == pytest.approx(short.standard_errors, rel=1e-8)


def test_a_weight_of_two_counts_as_two_values():
    weights = torch.where(X < 1, 2.0, 1.0).to(torch.float64)
    twice = torch.cat([X, X[X < 1]]), torch.cat([ONE, ONE[X < 1]])
    fit = curves.fit(decays, X, ONE, start=START, weights=weights, noise=0.01)
    repeated = curves.fit(decays, *twice, start=START, noise=0.01)
    assert fit.parameters == pytest.approx(repeated.parameters, rel=1e-8)
    assert fit.standard_errors == pytest.approx(repeated.standard_errors, rel=1e-8)
    assert np.allclose(fit.coefficient_errors, repeated.coefficient_errors, rtol=1e-8)


def test_huber_ignores_outliers_and_has_no_gradient_at_the_end():
    y = ONE.clone()
    y[4::9] += 3.0
    plain, robust = (curves.fit(decays, X, y, start=START, loss=loss) for loss in ("least_squares", "huber"))
    truth = {"k1": 0.4, "k2": 3.0}
    assert robust.solved
    for name, true in truth.items():
        assert abs(robust.parameters[name] - true) < 3 * robust.standard_errors[name]
    assert abs(plain.parameters["k1"] - truth["k1"]) > 4 * robust.standard_errors["k1"]
    residual = y.numpy() - robust.predict(X)
    delta = 1.345 * 1.4826 * np.sort(np.abs(residual))[39]  # the lower median of 80
    psi = np.clip(residual, -delta, delta)
    k1, k2 = robust.parameters.values()
    x = X.numpy()
    Z = np.stack([np.exp(-k1 * x), np.exp(-k2 * x), np.ones(80)], 1)
    J = np.stack([-x * Z[:, 0] * robust.coefficients[0], -x * Z[:, 1] * robust.coefficients[1]], 1)
    gradient = np.concatenate([Z, J], 1).T @ psi
    assert (np.abs(gradient) < 1e-5 * (np.abs(np.concatenate([Z, J], 1)).T @ np.abs(psi))).all()


def test_huber_is_not_led_away_by_an_outlier_that_one_column_could_fit():
    x = torch.linspace(0.0, 5.0, 200, dtype=torch.float64)
    y = 2.0 * torch.exp(-0.4 * x) + torch.exp(-3.0 * x) + 0.3 + 0.01 * noise(200)
    y[::17] += 3.0  # least squares fits the first by a decay within one sample
    plain, robust = (curves.fit(decays, x, y, start=START, loss=loss) for loss in ("least_squares", "huber"))
    assert plain.parameters["k2"] > 10.0
    assert robust.solved
    for name, true in {"k1": 0.4, "k2": 3.0}.items():
        assert abs(robust.parameters[name] - true) < 3 * robust.standard_errors[name]


@pytest.mark.slow
def test_the_first_fit_does_not_wait_for_large_libraries():
    code = (
        "import sys, torch; from gnvpro import curves; x = torch.linspace(0, 4, 30, dtype=torch.float64)\n"
        "f = curves.fit(lambda x, k: [torch.exp(-k * x), 1.0], x, torch.exp(-x), start={'k': 0.7}); f.interval('k')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sympy", "scipy.stats", "pandas", "matplotlib"} & set(done.stdout.split())


def test_exact_data_have_no_errors_and_nothing_is_called_fixed():
    exact = curves.fit(lambda x, k: [torch.exp(-k * x), 1.0], X, torch.exp(-X), start={"k": 0.7})
    assert exact.rss < 1e-30
    assert exact.interval("k") == pytest.approx((1.0, 1.0))
    assert "fixed" not in str(exact.summary())
    held = curves.fit(decays, X, ONE, start={"k1": 0.3}, fixed={"k2": 3.0, "c0": 2.0})
    assert str(held.summary()).count("fixed") == 2


def test_several_starts_find_what_one_does_not():
    y = torch.sin(7.0 * X) + 0.05 * noise(80)

    def wave(x, w):  # type: ignore[no-untyped-def]
        return [torch.sin(w * x)]

    one = curves.fit(wave, X, y, start={"w": 4.5}, bounds={"w": (4.0, 10.0)})
    many = curves.fit(wave, X, y, start={"w": 4.5}, bounds={"w": (4.0, 10.0)}, starts=20)
    assert one.rss > 5 * many.rss
    assert many.parameters["w"] == pytest.approx(7.0, abs=0.01)
    assert 1 <= many.starts.in_best < many.starts.count == 20
    assert f"{many.starts.in_best} of 20" in many.summary()


def test_a_fit_of_nothing_but_coefficients():
    fit = curves.fit(lambda x: [x, 1.0], X, 2 * X + 1 + 0.1 * noise(80), start={})
    slope, cov = np.polyfit(X, 2 * X + 1 + 0.1 * noise(80), 1, cov=True)
    assert fit.solved
    assert np.allclose(fit.coefficients, slope)
    assert np.allclose(fit.coefficient_errors, np.sqrt(np.diag(cov)))


def test_two_equal_rates_are_not_a_solution():
    y = 2 * torch.exp(-0.5 * X)
    fit = curves.fit(lambda x, k1, k2: [torch.exp(-k1 * x), torch.exp(-k2 * x)], X, y, start={"k1": 0.45, "k2": 0.55})
    assert not fit.solved
    assert any("condition number" in note or "do not determine" in note for note in fit.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": {"k1": 0.3, "k2": -1000.0}}, "column 1 of the basis is inf at the start, first at sample"),
        ({"start": {"k1": 0.3, "k2": 0.3}}, "columns 0 and 1 of the basis are multiples"),
        ({"start": {"k1": 0.3}}, "no value for 'k2'"),
        ({"start": {**START, "k3": 1.0}}, "takes no parameter 'k3'"),
        ({"columns": lambda x, k1, k2: [torch.exp(-k1 * x), 1.0]}, "no column depends on 'k2'"),
        ({"x": X[:4], "y": ONE[:4]}, "4 values cannot determine 5 unknowns"),
        ({"x": X[:50]}, r"y must have shape \(50,\) or \(50, curves\)"),
        ({"weights": torch.ones(7)}, "weights must have one value per sample"),
        ({"weights": -torch.ones(80)}, "not negative"),
        ({"bounds": {"k1": (0.5, None)}}, "outside of its bounds"),
        ({"bounds": {"k9": (0.5, None)}}, "'k9', which is no free parameter"),
        ({"fixed": {"k2": "k9"}}, "tied to 'k9'"),
        ({"fixed": {"k1": "k2", "k2": "k1"}, "start": {}}, "circle"),
        ({"fixed": {"c7": 1.0}}, "c0 to c2"),
        ({"columns": lambda x, k1, k2: [torch.exp(-k1 * x)[:5], k2]}, "one value per sample"),
        ({"columns": lambda x, k1, k2: [torch.exp(-k1 * x), 0.0 * k2]}, "column 1 of the basis is zero"),
        ({"loss": "hubert"}, "did you mean 'huber'"),
        ({"y": ONE.log() * torch.nan}, "NaN in 80 places"),
    ],
)
def test_mistakes_are_named(change, message):
    call = {"columns": decays, "x": X, "y": ONE, "start": START} | change
    columns, x, y = call.pop("columns"), call.pop("x"), call.pop("y")
    with pytest.raises(ValueError, match=message):
        curves.fit(columns, x, y, **call)


def test_numpy_functions_in_a_basis_are_refused_with_the_cure():
    with pytest.raises((TypeError, RuntimeError), match=r"torch functions"):
        curves.fit(lambda x, k: [np.exp(-k.numpy() * x.numpy())], X, ONE, start={"k": 1.0})


def test_arrays_of_every_kind_are_taken():
    pandas = pytest.importorskip("pandas")
    plain = curves.fit(decays, X, ONE, start=START)
    x, y = X.numpy(), ONE.numpy()
    kinds = {
        "reversed": (x[::-1], y[::-1]),
        "objects": (x.astype(object), pandas.Series(y, dtype=object)),
        "lists": (x.tolist(), y.tolist()),
        "read-only": (np.broadcast_to(x, (1, 80))[0], y),
    }
    for name, (one, other) in kinds.items():
        fit = curves.fit(decays, one, other, start={"k1": np.array(0.3), "k2": torch.tensor([5.0])})
        assert fit.parameters == pytest.approx(plain.parameters, rel=1e-7), name


def test_masked_and_absent_values_are_missing():
    pandas = pytest.importorskip("pandas")
    y = ONE.numpy().copy()
    y[70:] = 1e6
    short = curves.fit(decays, X[:70], ONE[:70], start=START)
    absent = pandas.array([*y[:70], *[None] * 10], dtype="Float64")
    for values in (np.ma.masked_array(y, mask=y > 1e5), absent):
        with pytest.raises(ValueError, match="NaN in 10 places"):
            curves.fit(decays, X, values, start=START)
        fit = curves.fit(decays, X, values, start=START, missing="omit")
        assert fit.parameters == pytest.approx(short.parameters, rel=1e-7)


def test_a_default_of_the_basis_is_a_fixed_parameter():
    def one_free(x, k1, k2=3.0):  # type: ignore[no-untyped-def]
        return [torch.exp(-k1 * x), torch.exp(-k2 * x), 1.0]

    fit = curves.fit(one_free, X, ONE, start={"k1": 0.3})
    held = curves.fit(decays, X, ONE, start=START, fixed={"k2": 3.0})
    assert fit.parameters["k1"] == pytest.approx(held.parameters["k1"], rel=1e-8)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_units_of_x_and_y_change_nothing_but_units(scale):
    plain = curves.fit(decays, X, ONE, start=START)
    fit = curves.fit(decays, scale * X, 1e100 * ONE, start={k: v / scale for k, v in START.items()})
    assert fit.solved
    for name, value in plain.parameters.items():
        assert fit.parameters[name] * scale == pytest.approx(value, rel=1e-7)
        assert fit.standard_errors[name] * scale == pytest.approx(plain.standard_errors[name], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"start": [0.3, 5.0]}, TypeError, "start must be a dictionary"),
        ({"bounds": [(0, 1)]}, TypeError, "bounds must be a dictionary"),
        ({"bounds": {"k1": 0.0}}, ValueError, r"bounds\['k1'\] must be \(lower, upper\)"),
        ({"fixed": ["k1"]}, TypeError, "fixed must be a dictionary"),
        ({"fixed": {"k2": None}}, TypeError, r"fixed\['k2'\] must be a number"),
        ({"fixed": {"k2": lambda k1: torch.stack([k1, k1])}}, ValueError, r"fixed\['k2'\] must return one number"),
        ({"nonnegative": "yes"}, TypeError, "nonnegative must be True or False"),
        ({"seed": "a"}, TypeError, "seed must be a whole number"),
        ({"x": ["a"] * 80}, TypeError, "x must be numbers"),
        ({"y": 1e200 * ONE}, ValueError, "divide y by a number of this size"),
        ({"y": ONE[:, None][:, :0]}, ValueError, "nothing to fit"),
        ({"x": 1e200 * X, "start": {"k1": 3e-201, "k2": 5e-200}}, ValueError, "scale x"),
        ({"columns": lambda x, k1, k2: None}, TypeError, "must return a list of columns"),
        ({"columns": lambda x, k1, k2: torch.exp(-k1 * k2 * x)}, TypeError, "must return a list of columns"),
        ({"columns": lambda x, k1, k2: []}, ValueError, "returned no column"),
        ({"columns": lambda x, k1, k2: [torch.exp(1j * k1 * x), k2]}, TypeError, "column 0 of the basis is complex"),
        ({"columns": lambda x, k1, k2: [torch.exp(-k1 * x).mul_(k2)]}, RuntimeError, "changes a tensor in place"),
        ({"columns": lambda x, k1, k2: [torch.exp(-x.mul_(0.9) * k1), k2]}, ValueError, "changes x in place"),
        ({"y": torch.stack([ONE, ONE * torch.nan], 1), "missing": "omit"}, ValueError, "curve 1 has 0 values"),
    ],
)
def test_more_mistakes_are_named(change, error, message):
    call = {"columns": decays, "x": X, "y": ONE, "start": START} | change
    columns, x, y = call.pop("columns"), call.pop("x"), call.pop("y")
    with pytest.raises(error, match=message):
        curves.fit(columns, x, y, **call)


def test_more_parameters_than_the_noise_can_be_estimated_from_have_no_interval():
    fit = curves.fit(decays, X[::16], ONE[::16], start=START)
    assert fit.dof == 0
    assert any("as many unknowns as values" in note for note in fit.notes)
    with pytest.raises(ValueError, match="pass noise="):
        fit.interval("k1")
