"""Quasi-Newton steps between Krylov spaces: the algebra against explicit matrices, and the search."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checks import F64
from functions import Function, rosenbrock
from gnvpro.minimize.krylov import KrylovModel, arnoldi, krylov_model
from gnvpro.minimize.line_model import LineModel, SearchRule
from gnvpro.minimize.quasi_newton import MAX_GROWTH, MAX_PAIRS, STEPS_PER_DIMENSION, Learnt, Pairs, ritz_of
from gnvpro.minimize.step_rules import LineSearchBound
from gnvpro.minimize.trust_region import TrustRegion

torch.manual_seed(0)
N = 12
ROOT = torch.randn(N, N, dtype=F64)
A = ROOT @ ROOT.T + 0.1 * torch.eye(N, dtype=F64)
B = torch.randn(N, dtype=F64)


def some_ritz(rank=4):
    return ritz_of(KrylovModel(B, arnoldi(lambda v: A @ v, B, rank, 0.0)))


def test_ritz_vectors_are_orthonormal_and_the_values_are_their_rayleigh_quotients():
    ritz = some_ritz()
    torch.testing.assert_close(ritz.vectors @ ritz.vectors.T, torch.eye(4, dtype=F64), atol=1e-12, rtol=0)
    torch.testing.assert_close(ritz.vectors @ A @ ritz.vectors.T, torch.diag(ritz.values), atol=1e-10, rtol=0)


def test_a_space_of_all_dimensions_knows_the_inverse():
    torch.testing.assert_close(some_ritz(N).inverse(B), torch.linalg.solve(A, B), rtol=1e-8, atol=0)


def test_the_first_inverse_is_that_of_the_stated_matrix():
    ritz, U = some_ritz(), some_ritz().vectors
    matrix = U.T @ torch.diag(ritz.values) @ U + ritz.values.min() * (torch.eye(N, dtype=F64) - U.T @ U)
    torch.testing.assert_close(ritz.inverse(B), torch.linalg.solve(matrix, B), rtol=1e-10, atol=0)


@pytest.mark.parametrize("share", [0.9, 0.3, 0.01])
def test_the_damping_gives_the_length(share):
    ritz = some_ritz()
    inside = -(ritz.vectors @ B)
    length = share * float((inside / ritz.values).norm())
    damped = ritz.damped(B, length)
    assert float((inside / damped.values).norm()) == pytest.approx(length, rel=1e-10)
    assert torch.equal(damped.vectors, ritz.vectors)


def test_a_step_as_long_as_the_undamped_one_needs_no_damping():
    ritz = some_ritz()
    assert torch.equal(ritz.damped(B, 1e6).values, ritz.values)


@pytest.mark.parametrize("most", [5, 3])
def test_the_recursion_is_the_product_form_of_bfgs(most):
    """H <- (I - rho s y') H (I - rho y s') + rho s s' over the last pairs, written out as matrices."""
    ritz, pairs = some_ritz(), Pairs.none(B)
    steps = torch.randn(5, N, dtype=F64)
    for s in steps:
        pairs = pairs.with_pair(s, A @ s, most)
    H = torch.stack([ritz.inverse(unit) for unit in torch.eye(N, dtype=F64)])
    last = steps[-1]
    H = H * float(last @ A @ last) / float(last @ A @ H @ A @ last)
    for s in steps[-most:]:
        rho, left = 1 / float(s @ A @ s), torch.eye(N, dtype=F64) - torch.outer(s, A @ s) / float(s @ A @ s)
        H = left @ H @ left.T + rho * torch.outer(s, s)
    assert len(pairs.S) == most
    torch.testing.assert_close(pairs.inverse_curvature(ritz, B), H @ B, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pairs.inverse_curvature(ritz, A @ last), last, rtol=1e-9, atol=1e-12)


def test_without_pairs_it_is_the_ritz_inverse():
    torch.testing.assert_close(Pairs.none(B).inverse_curvature(some_ritz(), B), some_ritz().inverse(B))


def test_a_pair_along_negative_curvature_is_refused():
    s, none = torch.ones(3, dtype=F64), Pairs.none(torch.ones(3, dtype=F64))
    assert len(none.with_pair(s, s, 5).S) == 1
    assert len(none.with_pair(s, -s, 5).S) == 0
    assert len(none.with_pair(s, torch.tensor([1.0, -1.0, 0.0], dtype=F64), 5).S) == 0


@given(st.floats(1e-3, 1.0))
def test_the_model_promises_what_its_quadratic_does(fraction):
    """At d = -A^-1 g the quadratic with curvature A falls by -(t - t^2/2) g'd."""
    d = -torch.linalg.solve(A, B)
    step = LineModel(B, d, 1).along(fraction)
    fall = -float(B @ step.d_x + 0.5 * step.d_x @ A @ step.d_x)
    assert step.predicted_reduction == pytest.approx(fall, rel=1e-9)
    assert step.norm == pytest.approx(float(step.d_x.norm()))


def test_a_model_cut_to_a_radius_stays_within_it():
    model = LineModel(B, -B, 1)
    assert model.solve_within(0.1).norm == pytest.approx(0.1)
    assert model.solve_within(math.inf).norm == pytest.approx(float(B.norm()))


@given(st.floats(-50.0, 0.0), st.floats(1e-2, 1.0))
def test_a_rejected_search_goes_to_the_minimum_of_the_parabola(ratio, t):
    """The parabola with slope -1 at 0 that the trial lies on, its minimum found on a fine grid."""
    after = SearchRule().update(LineSearchBound(2.0, t, True), 1.0, ratio)
    a = (t - ratio * (t - t * t / 2)) / t**2
    grid = torch.linspace(0.1 * t, 0.5 * t, 4001, dtype=F64)
    best = float(grid[(-grid + a * grid**2).argmin()])
    assert after.fraction == pytest.approx(best, abs=2e-4 * t)
    assert after.radius == 2.0


def test_a_trial_that_is_not_finite_shortens_the_search_tenfold():
    assert SearchRule().update(LineSearchBound(None, 0.5, True), 1.0, math.nan).fraction == pytest.approx(0.05)


def test_a_search_begins_with_the_whole_step_and_leaves_the_radius_alone():
    rule, model = SearchRule(), LineModel(B, -B, 1)
    step, bound = rule.propose(model, LineSearchBound(1e-3, 1.0))
    assert step.norm == pytest.approx(float(B.norm()))
    assert rule.update(bound, step.norm, 0.9) == LineSearchBound(1e-3)


def test_a_search_begins_where_the_model_allows():
    rule, model = SearchRule(), LineModel(B, -B, 1, most=0.25)
    step, bound = rule.propose(model, None)
    assert (step.norm, bound.fraction) == (pytest.approx(0.25 * float(B.norm())), 0.25)
    shorter = rule.update(bound, step.norm, -1.0)
    assert shorter.fraction <= 0.125
    assert rule.propose(model, shorter)[1].fraction == shorter.fraction


class Builder:
    """Krylov models of this rank and quasi-Newton models in between, as they follow from what was learnt."""

    def __init__(self, rank, may_build=True):
        self.rank, self.may_build, self.built, self.known = rank, may_build, 0, Learnt()

    def __call__(self, point):
        self.known = self.known.at(point, lambda due: self.may_build)
        if not self.known.asks_for_space:
            return self.known.line_model(point)
        self.built += 1
        model = krylov_model(point, self.rank, 0.0)
        self.known = self.known.with_space(model)
        return model


def test_minimises_rosenbrock_with_few_spaces():
    function, builder = Function(rosenbrock), Builder(2)
    start = function.at(torch.tensor([-1.2, 1.0], dtype=F64), None)
    region = TrustRegion(function, builder, start, rule=SearchRule())
    trials = 0
    while trials < 200 and region.point.value > 1e-12:
        assert region.iterate() is not None
        trials += 1
    assert region.point.value <= 1e-12
    assert builder.built <= 1 + trials // (2 * STEPS_PER_DIMENSION)


def test_a_space_is_built_after_so_many_steps_and_not_when_it_cannot_pay():
    def valley(x):
        return (x[0] ** 2 + 1).sqrt() + 0.5 * (x[1] ** 2 + 1).sqrt() + 0.01 * x.square().sum()

    for pays, expected in ((True, 3), (False, 1)):
        function, builder = Function(valley), Builder(1, pays)
        point = function.at(torch.tensor([30.0, -20.0], dtype=F64), None)
        for _ in range(2 * (STEPS_PER_DIMENSION + 1) + 1):
            model = builder(point)
            point = function.at(point.x + 1e-3 * model.solve_within(math.inf).d_x, None)
        assert builder.built == expected
        assert len(builder.known.pairs.S) <= MAX_PAIRS


def test_a_step_is_not_many_times_as_long_as_the_one_before():
    """sqrt(x^2 + 1) is nearly straight far out: two gradients there tell of almost no curvature."""
    function = Function(lambda x: (x.square() + 1).sqrt().sum() + 1e-6 * x.square().sum())
    builder = Builder(1, may_build=False)
    point, lengths, wanted = function.at(torch.tensor([3000.0, 2000.0], dtype=F64), None), [1.0], []
    for _ in range(6):
        model = builder(point)
        if isinstance(model, LineModel):
            step = SearchRule().propose(model, None)[0]
            lengths.append(step.norm)
            wanted.append(float(model.direction.norm()))
        else:
            step = model.solve_within(lengths[0])
        point = function.at(point.x + step.d_x, None)
    assert max(wanted) > 100 * MAX_GROWTH
    assert all(b <= MAX_GROWTH * a * (1 + 1e-9) for a, b in itertools.pairwise(lengths))
