"""The loop: what it accepts, what a rejection changes, and how it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import made
from checks import F64
from gnvpro import Status
from gnvpro.linalg.operators import symmetric
from gnvpro.minimize.krylov import krylov_model
from gnvpro.minimize.trust_region import RadiusRule, TrustRegion, minimize


@dataclass(frozen=True)
class FunctionPoint:
    """A smooth function at a point, its Hessian made positive by taking absolute eigenvalues."""

    function: Function
    x: Tensor
    value: float

    def free(self):
        pass

    def gradient(self):
        return torch.func.jacrev(self.function.f)(self.x)

    def curvature(self):
        self.function.curvatures.append(self.x)
        H = torch.func.jacrev(torch.func.jacrev(self.function.f))(self.x)
        values, vectors = torch.linalg.eigh(H)
        H = vectors @ torch.diag(values.abs()) @ vectors.T

        def mv(v):
            self.function.products += 1
            return H @ v

        return symmetric(tuple(self.x.shape), mv)


class Function:
    epsilon = 2e-15

    def __init__(self, f):
        self.f, self.products, self.evaluations, self.curvatures, self.near = f, 0, 0, [], []

    def at(self, x, near):
        self.evaluations += 1
        self.near.append(near)
        return FunctionPoint(self, x, float(self.f(x)))


def rosenbrock(x):
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def region_on(f, x, radius=None, max_rank=10):
    function = Function(f)
    point = function.at(torch.tensor(x, dtype=F64), None)
    return TrustRegion(function, krylov(max_rank), point, radius), function


def krylov(max_rank):
    return lambda point: krylov_model(point, max_rank, 0.0)


def test_rosenbrock_is_minimised():
    region, _ = region_on(rosenbrock, [-1.2, 1.0], radius=1.0)
    point, status, _ = minimize(region, lambda p: float(p.gradient().norm()) <= 1e-9, 200)
    assert status is Status.CONVERGED
    torch.testing.assert_close(point.x, torch.ones(2, dtype=F64), rtol=0, atol=1e-8)


def test_values_never_rise_and_a_rejection_leaves_the_very_point():
    region, _ = region_on(rosenbrock, [-1.2, 1.0], radius=10.0)
    rejected = 0
    for _ in range(40):
        before = region.point
        done = region.iterate()
        if done is None:
            break
        if done.accepted:
            assert region.point.value < before.value
        else:
            rejected += 1
            assert region.point is before
            assert region.bound < done.radius
    assert rejected > 0


def test_a_rejected_trial_uses_the_factorisation_again():
    # Rejected until the radius is small: only evaluations are paid for.
    region, function = region_on(
        lambda x: torch.where(x[0] > 1e-3, x.sum() + 5, 0.5 * (x - 1).square().sum()), [0.0, 0.0]
    )
    first = region.iterate()
    products = function.products
    model = region.model
    assert not first.accepted
    assert model is not None
    rejections = 1
    while not region.iterate().accepted:
        rejections += 1
        assert region.model is model
    assert rejections >= 3
    assert function.products == products
    assert len(function.curvatures) == 1
    assert function.evaluations == 1 + rejections + 1
    assert region.model is None


def test_a_rejected_trial_of_training_costs_one_pass_and_changes_no_parameter():
    m = made("mlp, multinomial")
    objective = m.problem.reduced
    point = objective.start(m.theta, None)
    W, theta, parameters = point.W.clone(), point.theta.clone(), {k: v.clone() for k, v in m.model.state_dict().items()}

    class Refusing:
        epsilon = objective.epsilon

        def at(self, x, near):
            trial = objective.at(x, near)
            object.__setattr__(trial, "value", math.nan)
            return trial

    region = TrustRegion(Refusing(), krylov(5), point)
    region.iterate()
    passes = m.problem.meter.sample_passes
    for _ in range(3):
        assert not region.iterate().accepted
    assert m.problem.meter.sample_passes - passes == 3 * len(m.inputs)
    assert region.point is point
    assert torch.equal(point.W, W)
    assert torch.equal(point.theta, theta)
    assert all(torch.equal(v, parameters[k]) for k, v in m.model.state_dict().items())


def test_trials_start_from_the_last_accepted_point():
    region, function = region_on(rosenbrock, [-1.2, 1.0], radius=10.0)
    accepted = [region.point]
    for _ in range(15):
        done = region.iterate()
        assert function.near[-1] is accepted[-1]
        if done.accepted:
            accepted.append(region.point)
    assert len(accepted) > 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_trial_that_is_not_finite_is_rejected_and_shortens_the_radius(bad):
    region, _ = region_on(
        lambda x: torch.where(x.norm() > 0.5, torch.tensor(bad, dtype=F64), (x - 1).square().sum()), [0.0, 0.0]
    )
    done = region.iterate()
    assert not done.accepted
    assert region.bound == pytest.approx(0.25 * done.radius)  # the first step is as long as the radius
    point, _, _ = minimize(region, lambda p: False, 20)
    assert point.value < 1.0
    assert float(point.x.norm()) <= 0.5


def test_zero_gradient_is_convergence_without_a_trial():
    region, function = region_on(lambda x: (x - 1).square().sum(), [1.0, 1.0])
    assert region.iterate() is None
    assert region.status is Status.CONVERGED
    assert function.evaluations == 1


def test_a_gradient_that_is_not_finite_ends_the_loop():
    region, _ = region_on(lambda x: torch.sqrt(x.square().sum()) * 0 + torch.sqrt(x[0]), [0.0, 0.0])
    assert region.iterate() is None
    assert region.status is Status.NOT_FINITE


def test_curvature_that_is_not_finite_is_not_called_convergence():
    class Overflowing(FunctionPoint):
        def curvature(self):
            return symmetric((2,), lambda v: v * math.inf)

    function = Function(lambda x: x.square().sum())
    x = torch.ones(2, dtype=F64)
    region = TrustRegion(function, krylov(5), Overflowing(function, x, 2.0))
    assert region.iterate() is None
    assert region.status is Status.NOT_FINITE


def test_an_objective_that_no_step_reduces_ends_the_loop():
    # The gradient promises a reduction that the value never shows.
    class LyingPoint(FunctionPoint):
        def gradient(self):
            return -torch.ones(2, dtype=F64)

    class Lying(Function):
        def at(self, x, near):
            return LyingPoint(self, x, float(self.f(x)))

    function = Lying(lambda x: x.abs().sum() + x.square().sum() + 1)
    region = TrustRegion(function, krylov(5), function.at(torch.zeros(2, dtype=F64), None))
    point, status, done = minimize(region, lambda p: False, 1000)
    assert status is Status.STEP_TOO_SMALL
    assert done < 100
    assert point.value <= 1 + 1e-13


def test_a_quadratic_is_minimised_by_one_newton_step_to_rounding():
    region, _ = region_on(lambda x: 0.5 * (x * torch.tensor([1.0, 100.0], dtype=F64) * x).sum() + 3.0, [3.0, -2.0])
    done = region.iterate()
    assert done.accepted
    assert done.ratio == pytest.approx(1.0, rel=1e-9)
    assert float(region.point.x.norm()) <= 1e-12


def test_iteration_cap_is_kept_and_said():
    region, function = region_on(rosenbrock, [-1.2, 1.0], radius=1e-2)
    _, status, done = minimize(region, lambda p: False, 7)
    assert (status, done) == (Status.ITERATIONS_SPENT, 7)
    assert function.evaluations == 8


@given(st.floats(1e-6, 1e6), st.floats(0.01, 1.0), st.floats(-10, 10))
def test_a_poor_trial_bounds_the_next_one_more_tightly_and_a_good_one_never_does(radius, share, ratio):
    new = RadiusRule().update(radius, share * radius, ratio)
    if ratio < 0.25:
        assert new <= 0.25 * share * radius * (1 + 1e-12)
    else:
        assert new >= radius


@given(st.floats(1e-6, 1e6), st.floats(0.76, 10))
def test_the_radius_grows_only_where_it_was_in_the_way(radius, ratio):
    rule = RadiusRule()
    assert rule.update(radius, radius, ratio) > radius
    assert rule.update(radius, 0.5 * radius, ratio) == radius


def test_near_a_minimum_the_ratio_is_one_although_both_reductions_drown_in_rounding():
    """Without the term of the size of rounding error the quotient means nothing, and good steps are rejected."""
    offset = 1e8  # the value resolves steps down to 1e-4 only
    region, _ = region_on(lambda x: offset + (x - 1).square().sum(), [1.0 + 3e-5, 1.0])
    done = region.iterate()
    assert done.accepted
    assert done.ratio == pytest.approx(1.0, abs=0.5)
    torch.testing.assert_close(region.point.x, torch.ones(2, dtype=F64), rtol=0, atol=1e-9)


def test_a_ratio_that_is_not_a_number_shrinks_the_radius():
    assert RadiusRule().update(1.0, 1.0, math.nan) == RadiusRule().shrink
