"""The eliminated kernel model against dense formulas, finite differences, and models without a sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gnvpro.surrogate.candidates import Form, Sampled

X = torch.rand(14, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
Y = torch.sin(X[:, [0]]) * X[:, [1]] + 0.3 * X[:, [1]] + 2
SLOPES = torch.stack([torch.cos(X[:, 0]) * X[:, 1], torch.sin(X[:, 0]) + 0.3], 1)[:, None]
SLOPES[3, 0, 1] = math.nan
SETS = {"values": Sampled(X, Y), "slopes": Sampled(X, Y, SLOPES)}
FORMS = [Form("rbf", False, False, "linear", True), Form("matern52", True, True, "constant", True)]


def numbers(form: Form, data: Sampled) -> np.ndarray:
    """Moderate lengths, some shares, and nuggets large enough for finite differences."""
    bounds = form.likelihood(data)[0].bounds
    z = np.linspace(-0.2, 0.4, len(bounds))
    z[4 if form.anova else 2 :] = -6.0
    return z


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("form", FORMS)
def test_the_slope_of_the_likelihood_agrees_with_finite_differences(name: str, form: Form) -> None:
    likelihood, _ = form.likelihood(SETS[name])
    z, step = numbers(form, SETS[name]), 1e-5
    _, slope = likelihood.slope(z)
    for k in range(len(z)):
        e = step * np.eye(len(z))[k]
        expected = (likelihood.slope(z + e)[0] - likelihood.slope(z - e)[0]) / (2 * step)
        assert slope[k] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("form", FORMS)
def test_the_eliminated_model_solves_the_joint_system_of_weights_and_trend(name: str, form: Form) -> None:
    """[K H; H' 0] [w; b] = [y; 0], the variance and the restricted likelihood by dense formulas."""
    likelihood, _ = form.likelihood(SETS[name])
    z = torch.tensor(numbers(form, SETS[name]))
    found, (K, H) = likelihood.at(z), likelihood.matrices(likelihood.theta(z))
    n, p = H.shape
    system = torch.cat([torch.cat([K, H], 1), torch.cat([H.T, torch.zeros(p, p, dtype=torch.float64)], 1)])
    solution = torch.linalg.solve(system, torch.cat([likelihood.rows.y, likelihood.rows.y.new_zeros(p, 1)]))
    assert torch.allclose(found.w, solution[:n], rtol=1e-8)
    assert torch.allclose(found.b, solution[n:], rtol=1e-8)
    s = (likelihood.rows.y * solution[:n]).sum() / (n - p)
    logs = torch.logdet(K) + torch.logdet(H.T @ torch.linalg.solve(K, H)) + (n - p) * s.log()
    assert found.value == pytest.approx(0.5 * float(logs), rel=1e-9)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("form", FORMS)
def test_left_out_predictions_are_those_of_models_without_the_sample(name: str, form: Form) -> None:
    data = SETS[name]
    z = numbers(form, data)
    whole = form.built(data, z).member
    left = whole.left_out()
    likelihood, units = form.likelihood(data)
    rows, theta = likelihood.rows, likelihood.theta(torch.tensor(z))
    K, H = likelihood.matrices(theta)
    for i in (0, 3):
        rest, own = (rows.sample != i).nonzero()[:, 0], (rows.sample == i).nonzero()[:1, 0]
        p = H.shape[1]
        system = torch.zeros(len(rest) + p, len(rest) + p, dtype=torch.float64)
        system[: len(rest), : len(rest)] = K[rest][:, rest]
        system[: len(rest), len(rest) :] = H[rest]
        system[len(rest) :, : len(rest)] = H[rest].T
        beside = torch.cat([K[rest][:, own], H[own].T])
        target = torch.cat([rows.y[rest], rows.y.new_zeros(p, 1)])
        mean = beside.T @ torch.linalg.solve(system, target) * units.size + units.mean
        spread = K[own][:, own] - beside.T @ torch.linalg.solve(system, beside)
        std = (spread * whole.model.eliminated.s).sqrt() * units.size
        factor = mean.exp() if form.log else 1.0
        assert left.mean[i].item() == pytest.approx(float(mean.exp() if form.log else mean), rel=1e-8)
        assert left.std[i].item() == pytest.approx(float(factor * std), rel=1e-6)
