"""The minimum of a quadratic within a radius, from eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnvpro.linalg.secular import damping_for, within_radius


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_the_step_is_optimal_within_the_radius(seed, radius):
    generator = np.random.default_rng(seed)
    e = np.sort(generator.uniform(0.1, 10, 6))
    b = generator.normal(size=6)
    y, damping = within_radius(e, b, radius)
    assert np.linalg.norm(y) <= radius * (1 + 1e-12)
    assert damping >= 0
    np.testing.assert_allclose((e + damping) * y, b, rtol=1e-8, atol=1e-12)
    if damping > 0:
        assert np.linalg.norm(y) == pytest.approx(radius, rel=1e-12)


def test_curvature_that_is_rounding_error_is_not_divided_by():
    e, b = np.array([1e-20, 1.0]), np.array([1.0, 1.0])
    y, damping = within_radius(e, b, 10.0)
    np.testing.assert_allclose(y, [0.0, 1.0])
    assert damping == 0


def test_the_hard_case_goes_to_the_boundary():
    e, b = np.array([-1.0, 2.0]), np.array([0.0, 3.0])
    y, damping = within_radius(e, b, 2.0)
    assert damping == pytest.approx(1.0)
    assert np.linalg.norm(y) == pytest.approx(2.0)
    assert y[1] == pytest.approx(1.0)


def test_negative_curvature_that_the_gradient_sees_gives_a_larger_damping():
    e, b = np.array([-1.0, 2.0]), np.array([0.1, 3.0])
    y, damping = within_radius(e, b, 2.0)
    assert damping > 1
    assert np.linalg.norm(y) == pytest.approx(2.0)


def test_no_damping_where_the_step_is_inside_anyway():
    assert damping_for(np.array([1.0, 2.0]), np.array([0.1, 0.1]), 1.0) == 0.0


@pytest.mark.parametrize("seed", range(40))
def test_a_damping_that_is_small_beside_the_curvature_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    e, b = np.full(5, rng.uniform(0.01, 10.0)), rng.normal(size=5)
    damping = damping_for(e, b, float(np.linalg.norm(b / e)) / (1 + 5e-9))
    assert damping == pytest.approx(5e-9 * e[0], rel=1e-6)
