"""Quasi-Newton steps between Krylov spaces: the algebra against explicit matrices, the search, and what it is good for."""

import itertools
import math

import pytest
import torch
from gnvpro.methods.choose_solver import DenseSettings
from gnvpro.methods.trust_region import HybridMethod
from hypothesis import given
from hypothesis import strategies as st
from test_trust_region import Function, rosenbrock
from torch import nn

import gnvpro
from cases import made
from checks import F64
from gnvpro.head.newton import Newton
from gnvpro.methods.auto import CheapSteps, QuickStart
from gnvpro.methods.gnvpro import gnvpro as gnvpro_method
from gnvpro.methods.protocol import Settings, Start, Trial
from gnvpro.minimize.krylov import Krylov, KrylovModel, arnoldi
from gnvpro.minimize.line_model import LineModel, SearchRule
from gnvpro.minimize.quasi_newton import GROWTH, PAIRS, STEPS, Hybrid, Pairs, ritz_of
from gnvpro.minimize.step_rules import Search
from gnvpro.minimize.trust_region import TrustRegion
from gnvpro.networks import NeuralODE
from gnvpro.objectives.reduced import ReducedPoint

torch.manual_seed(0)
N = 12
ROOT = torch.randn(N, N, dtype=F64)
A = ROOT @ ROOT.T + 0.1 * torch.eye(N, dtype=F64)
B = torch.randn(N, dtype=F64)


def some_ritz(rank=4):
    return ritz_of(KrylovModel(arnoldi(lambda v: A @ v, B, rank, 0.0)))


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
    assert len(pairs) == most
    torch.testing.assert_close(pairs.inverse_curvature(ritz, B), H @ B, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pairs.inverse_curvature(ritz, A @ last), last, rtol=1e-9, atol=1e-12)


def test_without_pairs_it_is_the_ritz_inverse():
    torch.testing.assert_close(Pairs.none(B).inverse_curvature(some_ritz(), B), some_ritz().inverse(B))


def test_a_pair_along_negative_curvature_is_refused():
    s, none = torch.ones(3, dtype=F64), Pairs.none(torch.ones(3, dtype=F64))
    assert len(none.with_pair(s, s, 5)) == 1
    assert len(none.with_pair(s, -s, 5)) == 0
    assert len(none.with_pair(s, torch.tensor([1.0, -1.0, 0.0], dtype=F64), 5)) == 0


@given(st.floats(1e-3, 1.0))
def test_the_model_promises_what_its_quadratic_does(fraction):
    """At d = -A^-1 g the quadratic with curvature A falls by -(t - t^2/2) g'd."""
    d = -torch.linalg.solve(A, B)
    step = LineModel(d, float(B @ d), 1).along(fraction)
    fall = -float(B @ step.d_x + 0.5 * step.d_x @ A @ step.d_x)
    assert step.predicted_reduction == pytest.approx(fall, rel=1e-9)
    assert step.norm == pytest.approx(float(step.d_x.norm()))


def test_a_model_cut_to_a_radius_stays_within_it():
    model = LineModel(-B, -float(B @ B), 1)
    assert model.solve_within(0.1).norm == pytest.approx(0.1)
    assert model.solve_within(math.inf).norm == pytest.approx(float(B.norm()))


@given(st.floats(-50.0, 0.0), st.floats(1e-2, 1.0))
def test_a_rejected_search_goes_to_the_minimum_of_the_parabola(ratio, t):
    """The parabola with slope -1 at 0 that the trial lies on, its minimum found on a fine grid."""
    after = SearchRule().update(Search(2.0, t, True), 1.0, ratio)
    a = (t - ratio * (t - t * t / 2)) / t**2
    grid = torch.linspace(0.1 * t, 0.5 * t, 4001, dtype=F64)
    best = float(grid[(-grid + a * grid**2).argmin()])
    assert after.fraction == pytest.approx(best, abs=2e-4 * t)
    assert after.radius == 2.0


def test_a_trial_that_is_not_finite_shortens_the_search_tenfold():
    assert SearchRule().update(Search(None, 0.5, True), 1.0, math.nan).fraction == pytest.approx(0.05)


def test_a_search_begins_with_the_whole_step_and_leaves_the_radius_alone():
    rule, model = SearchRule(), LineModel(-B, -float(B @ B), 1)
    step, bound = rule.propose(model, Search(1e-3, 1.0))
    assert step.norm == pytest.approx(float(B.norm()))
    assert rule.update(bound, step.norm, 0.9) == Search(1e-3)


def test_a_search_begins_where_the_model_allows():
    rule, model = SearchRule(), LineModel(-B, -float(B @ B), 1, most=0.25)
    step, bound = rule.propose(model, None)
    assert (step.norm, bound.fraction) == (pytest.approx(0.25 * float(B.norm())), 0.25)
    shorter = rule.update(bound, step.norm, -1.0)
    assert shorter.fraction <= 0.125
    assert rule.propose(model, shorter)[1].fraction == shorter.fraction


class Spaces:
    """Krylov models of all dimensions, counted."""

    def __init__(self, rank=1):
        self.rank, self.built = rank, 0

    def __call__(self, point):
        self.built += 1
        return Krylov(self.rank, 0.0)(point)

    build = __call__

    def state(self):
        return {}

    def resume(self, state):
        pass


def test_minimises_rosenbrock_with_few_spaces():
    function, spaces = Function(rosenbrock), Spaces(2)
    start = function.at(torch.tensor([-1.2, 1.0], dtype=F64), None)
    region = TrustRegion(function, Hybrid(spaces, lambda: True), start, rule=SearchRule())
    trials = 0
    while trials < 200 and region.point.value > 1e-12:
        assert region.iterate() is not None
        trials += 1
    assert region.point.value <= 1e-12
    assert spaces.built <= 1 + trials // (2 * STEPS)


def test_a_space_is_built_after_so_many_steps_and_not_when_it_cannot_pay():
    def valley(x):
        return (x[0] ** 2 + 1).sqrt() + 0.5 * (x[1] ** 2 + 1).sqrt() + 0.01 * x.square().sum()

    for pays, expected in ((True, 3), (False, 1)):
        function, spaces = Function(valley), Spaces(1)
        builder = Hybrid(spaces, lambda pays=pays: pays)
        point = function.at(torch.tensor([30.0, -20.0], dtype=F64), None)
        for _ in range(2 * (STEPS + 1) + 1):
            model = builder(point)
            point = function.at(point.x + 1e-3 * model.solve_within(math.inf).d_x, None)
        assert spaces.built == expected
        assert len(builder.pairs) <= PAIRS


def test_a_step_is_not_many_times_as_long_as_the_one_before():
    """sqrt(x^2 + 1) is nearly straight far out: two gradients there tell of almost no curvature."""
    function = Function(lambda x: (x.square() + 1).sqrt().sum() + 1e-6 * x.square().sum())
    builder = Hybrid(Spaces(1), lambda: False)
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
    assert max(wanted) > 100 * GROWTH
    assert all(b <= GROWTH * a * (1 + 1e-9) for a, b in itertools.pairwise(lengths))


def test_a_direction_that_leads_nowhere_is_given_up_for_a_krylov_space():
    method = a_method()
    assert method.iterate().accepted
    assert method.iterate().accepted
    assert method.builder.steps == 1
    uphill = LineModel(method.point.gradient(), -1.0, 1)
    method.region.model, method.region.bound = uphill, Search(1.0)
    tried = 0
    while method.region.model is uphill:
        assert method.iterate() is not None
        tried += 1
        assert tried < 20
    assert tried > 2
    assert method.builder.steps == 0


def small_network():
    torch.manual_seed(3)
    return nn.Sequential(NeuralODE(3, 6, depth=2, final_time=1.0), nn.Linear(6, 3)).double()


INPUTS = torch.rand(150, 3, generator=torch.Generator().manual_seed(5), dtype=F64) * 4 - 2
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > INPUTS[:, 2].sin()).long() + (INPUTS.square().sum(1) > 4).long()


def a_method():
    problem = made("mlp, multinomial").problem
    settings = Settings(Newton(), "hybrid", DenseSettings(), 5, 1e-2, 1e-3, 32, 0, lambda: 1e9)
    return gnvpro_method(problem, Start(problem.network.theta()), settings, None)


def trained(solver, **more):
    settings = {"loss": "multinomial", "work": 300, "max_rank": 10, "head_penalty": 1e-4, "theta_penalty": 1e-4, **more}
    return gnvpro.train(small_network(), INPUTS, LABELS, solver=solver, **settings)


def test_is_ahead_of_krylov_steps_at_the_same_work():
    hybrid, krylov = trained("hybrid"), trained("krylov")
    assert hybrid.history[-1].work <= 300
    assert hybrid.history[-1].loss < krylov.history[-1].loss
    assert {r.solver for r in hybrid.history[1:]} == {"hybrid"}


def test_never_goes_up_and_stays_within_the_budget():
    for work in (6, 20, 57, 130):
        history = trained("hybrid", work=work).history
        assert history[-1].work <= work
        losses = history.column("loss")
        assert all(b <= a for a, b in itertools.pairwise(losses))


def test_auto_begins_with_it_and_goes_on_with_exact_steps():
    solvers = [record.solver for record in trained("auto").history[1:]]
    first = solvers.index("dense")
    assert first >= 1
    assert solvers == ["hybrid"] * first + ["dense"] * (len(solvers) - first)


class Given:
    """Trials that leave given values."""

    def __init__(self, values):
        self.values = iter(values)
        self.point = first_point(next(self.values))

    def iterate(self):
        self.point = first_point(next(self.values))
        return Trial(True)


def first_point(value):
    point = object.__new__(ReducedPoint)  # of which nothing but its value is asked
    point.__dict__["value"] = value
    return point


@pytest.mark.parametrize(
    ("window", "values", "steps"),
    [
        (5, [1.0, 0.9, 0.9, 0.8, 0.6, 0.49, 0.46, 0.2], 6),  # .46 after .9: not half
        (5, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 5),
        (5, [1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6], 11),
        (20, [1.0, 1.0, 1.0, 1.0, 1.0, 0.9], 5),  # a quarter of the steps, and not the fourth root of a half
        (20, [1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.8, 0.8], 7),
    ],
)
def test_cheap_steps_are_taken_while_they_halve_the_objective_within_their_window(window, values, steps):
    begun = []

    def next_kind(point, begun_at):
        begun.append(point.value)
        return Given([point.value, 0.0])

    method = QuickStart(CheapSteps(lambda point: Given(values), window, first=5), next_kind, first_point(values[0]))
    for done in range(1, steps + 1):
        assert method.iterate().accepted
        assert begun == ([values[steps]] if done == steps else [])
    assert method.iterate().accepted
    assert method.point.value == 0.0


@pytest.mark.parametrize(
    ("price", "kinds"), [(0.1, ["dense"]), (5.0, ["hybrid", "dense"]), (99.0, ["krylov", "dense"])]
)  # in passes; the rows and the trial are seven
def test_auto_begins_with_the_steps_that_the_price_of_a_matrix_asks_for(monkeypatch, price, kinds):
    monkeypatch.setattr("gnvpro.methods.gnvpro.squaring_price", lambda problem, settings: price)
    history = trained("auto", work=2000).history[1:]
    assert [kind for kind, _ in itertools.groupby(record.solver for record in history)] == kinds


def test_auto_takes_exact_steps_where_quick_ones_cannot_go_on(monkeypatch):
    monkeypatch.setattr(HybridMethod, "iterate", lambda self: None)
    assert {record.solver for record in trained("auto", work=40).history[1:]} == {"dense"}


@pytest.mark.parametrize("work", [3, 5, 8, 9])  # an exact step needs 6 features, a trial, and the first pass
def test_auto_stays_within_the_budget_where_quick_steps_cannot_go_on(monkeypatch, work):
    monkeypatch.setattr(HybridMethod, "iterate", lambda self: None)
    monkeypatch.setattr(HybridMethod, "next_passes", 0)
    result = trained("auto", work=work)
    assert result.work <= work
    assert result.status is gnvpro.Status.WORK_SPENT
    assert len(result.history) == (2 if work == 9 else 1)


def test_auto_has_a_quick_start_on_every_level(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.gnvpro.FEWEST", 1)  # exact steps are cheap here
    history = trained("auto", work=[60, 60], levels=2).history
    for level in (0, 1):
        kinds = [record.solver for record in history if record.level == level and record.solver]
        assert [kind for kind, _ in itertools.groupby(kinds)] == ["hybrid", "dense"]


def test_auto_has_a_quick_start_on_the_first_batch_only():
    history = trained("auto", work=100, batch_size=len(INPUTS) // 2, iterations_per_batch=3).history
    kinds = {sweep_and_batch: set() for sweep_and_batch in ((0, 0), (0, 1), (1, 0))}
    for record in history:
        if record.solver and (record.sweep, record.batch) in kinds:
            kinds[record.sweep, record.batch].add(record.solver)
    assert "hybrid" in kinds[0, 0]
    assert kinds[0, 1] == kinds[1, 0] == {"dense"}


def test_auto_takes_it_where_a_matrix_is_too_large(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.choose_solver.MOST_DIRECTIONS", 10)
    assert trained("auto", work=200).history[-1].solver == "hybrid"


def test_serves_every_loss():
    targets = torch.sin(INPUTS.sum(1, keepdim=True))
    model = nn.Sequential(NeuralODE(3, 6, depth=2, final_time=1.0), nn.Linear(6, 1)).double()
    result = gnvpro.train(model, INPUTS, targets, loss="least_squares", solver="hybrid", work=200)
    assert result.history[-1].misfit < 1e-2 * result.history[0].misfit
