"""Errors of parameters and coefficients against a dense joint Jacobian, other ways to the same intervals, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from gnvpro import curves
from gnvpro.curves.profile import profile_interval

X = torch.linspace(0.0, 4.0, 40, dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def decays(x, k1, k2):  # type: ignore[no-untyped-def]
    return [torch.exp(-k1 * x), torch.exp(-k2 * x)]


def curves_of(k1: Tensor, k2: Tensor, W: Tensor) -> Tensor:
    return torch.stack(decays(X, k1, k2), 1) @ W


W = torch.tensor([[1.0, 2.0, 0.5], [2.0, 1.0, 1.5]], dtype=torch.float64)
K = torch.tensor([0.5, 3.0], dtype=torch.float64)
Y = curves_of(K[0], K[1], W) + 0.02 * noise(40, 3)
START = {"k1": 0.4, "k2": 4.0}


def joint_covariance(fit: curves.Fit, root: Tensor, variance: float) -> np.ndarray:
    """By the inverse of J'J of everything, coefficients curve by curve."""
    theta = torch.tensor(list(fit.parameters.values()), dtype=torch.float64)
    found = torch.tensor(np.ascontiguousarray(fit.coefficients))
    packed = torch.cat([theta, found.T.reshape(-1)])

    def model(v: Tensor) -> Tensor:
        return (root * curves_of(v[0], v[1], v[2:].reshape(-1, 2).T)).reshape(-1)

    J = torch.autograd.functional.jacobian(model, packed)
    return variance * torch.linalg.inv(J.T @ J).numpy()


@pytest.mark.parametrize("weights", ["none", "samples", "values"])
def test_the_covariance_is_that_of_the_joint_jacobian(weights):
    w = {"none": None, "samples": torch.rand(40, dtype=torch.float64) + 0.5, "values": torch.rand(40, 3) + 0.5}[weights]
    w = w if w is None else w.to(torch.float64)
    fit = curves.fit(decays, X, Y, start=START, weights=w)
    root = torch.ones(40, 3, dtype=torch.float64) if w is None else w.sqrt().reshape(40, -1).expand(40, 3)
    dense = joint_covariance(fit, root, fit.rss / fit.dof)
    assert fit.dof == 120 - 8
    assert np.allclose(fit.covariance, dense, rtol=1e-7, atol=1e-9 * dense.max())
    errors = np.sqrt(np.diag(dense))
    assert np.allclose(list(fit.standard_errors.values()), errors[:2], rtol=1e-7)
    assert np.allclose(fit.coefficient_errors.T.reshape(-1), errors[2:], rtol=1e-7)


def test_known_noise_takes_the_place_of_the_estimate():
    estimated, known = (curves.fit(decays, X, Y, start=START, noise=s) for s in (None, 0.05))
    ratio = 0.05 / math.sqrt(estimated.rss / estimated.dof)
    assert known.standard_errors["k1"] == pytest.approx(ratio * estimated.standard_errors["k1"], rel=1e-9)


def test_bands_follow_from_the_covariance():
    fit = curves.fit(decays, X, Y[:, 0], start=START)
    at = torch.tensor([0.3, 2.0, 6.0], dtype=torch.float64)
    value, std = fit.predict(at, return_std=True)
    packed = torch.tensor([*fit.parameters.values(), *fit.coefficients], dtype=torch.float64)
    J = torch.autograd.functional.jacobian(lambda v: torch.stack(decays(at, v[0], v[1]), 1) @ v[2:], packed).numpy()
    assert np.allclose(std, np.sqrt(np.einsum("ni,ij,nj->n", J, fit.covariance, J)), rtol=1e-7)
    assert np.allclose(value, torch.stack(decays(at, packed[0], packed[1]), 1) @ packed[2:])


def test_profile_intervals_end_where_the_sum_of_squares_has_risen_enough():
    fit = curves.fit(decays, X, Y[:, 0], start=START)
    rise = fit.rss / fit.dof * stats.t.ppf(0.95, fit.dof) ** 2
    for name in ("k1", "k2"):
        for end in fit.interval(name, 0.9):
            held = curves.fit(decays, X, Y[:, 0], start=fit.parameters, fixed={name: end})
            assert held.rss - fit.rss == pytest.approx(rise, rel=1e-4)
    for end in fit.interval("c1", 0.9):
        held = curves.fit(decays, X, Y[:, 0], start=fit.parameters, fixed={"c1": end})
        assert held.rss - fit.rss == pytest.approx(rise, rel=1e-4)


def test_an_interval_without_an_end_is_infinite_or_ends_at_the_bound():
    y = torch.exp(-30.0 * X) + 0.3 * noise(40, seed=3)  # gone after the first sample
    basis = [lambda x, k: [torch.exp(-k * x)], X, y]
    fit = curves.fit(*basis, start={"k": 5.0})
    assert fit.interval("k")[1] == math.inf
    assert curves.fit(*basis, start={"k": 5.0}, bounds={"k": (0.0, 500.0)}).interval("k")[1] == 500.0


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say():
    draws = 500
    truth = torch.exp(-0.5 * X) + 0.2
    Z = noise(40, draws, seed=7)
    covered = np.zeros(3)
    for i in range(draws):
        fit = curves.fit(lambda x, k: [torch.exp(-k * x), 1.0], X, truth + 0.02 * Z[:, i], start={"k": 0.7})
        half = stats.t.ppf(0.975, fit.dof) * np.sqrt(np.diag(fit.covariance))
        low, high = fit.interval("k")
        at_two, std = fit.predict(torch.tensor([2.0]), return_std=True)
        inside_band = abs(at_two[0] - math.exp(-1.0) - 0.2) <= stats.t.ppf(0.975, fit.dof) * std[0]
        covered += [abs(fit.parameters["k"] - 0.5) <= half[0], low <= 0.5 <= high, inside_band]
    assert ((covered / draws >= 0.93) & (covered / draws <= 0.97)).all(), covered


def test_an_interval_of_exact_data_is_a_point():
    assert profile_interval(lambda t: (t - 2.0) ** 2, 2.0, 0.0, 0.0, 1.96, (-math.inf, math.inf)) == (2.0, 2.0)
