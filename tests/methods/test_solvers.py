"""The solvers on a network: the hybrid, what `auto` does, and a solver of one's own."""

import itertools
import math

import pytest
import torch
from torch import nn

import gnvpro
from cases import made
from checks import F64
from gnvpro.methods.auto import CheapPhase, CheapThenExact
from gnvpro.methods.protocol import Budget, Start
from gnvpro.methods.steps import QuasiNewtonSteps
from gnvpro.minimize.line_model import LineModel
from gnvpro.minimize.trust_region import StepReport
from gnvpro.networks import NeuralODE
from gnvpro.objectives.reduced import ReducedPoint

INPUTS = torch.rand(150, 3, generator=torch.Generator().manual_seed(5), dtype=F64) * 4 - 2
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > INPUTS[:, 2].sin()).long() + (INPUTS.square().sum(1) > 4).long()
REAL = torch.sin(INPUTS.sum(1, keepdim=True)) * INPUTS[:, :2]


def small_network(n_outputs=3):
    torch.manual_seed(3)
    return nn.Sequential(NeuralODE(3, 6, depth=2, final_time=1.0), nn.Linear(6, n_outputs)).double()


def trained(solver, loss="multinomial", **more):
    settings = {"loss": loss, "work": 300, "head_penalty": 1e-4, "theta_penalty": 1e-4, **more}
    classify = loss == "multinomial"
    if "method" not in more:
        settings["solver"] = solver
    return gnvpro.train(small_network(3 if classify else 2), INPUTS, LABELS if classify else REAL, **settings)


def kinds(history):
    """The solvers that made the steps, one after the other."""
    return [kind for kind, _ in itertools.groupby(record.solver for record in history if record.solver)]


# -- the hybrid


def a_method():
    problem = made("mlp, multinomial").problem
    budget = Budget(problem.meter, math.inf)
    return gnvpro.Hybrid(max_rank=5).begin(problem, Start(problem.theta()), budget, None)


def test_a_direction_that_leads_nowhere_is_given_up_for_a_krylov_space():
    method = a_method()
    assert method.iterate().accepted
    assert method.iterate().accepted
    assert method.quasi_newton.steps == 1
    gradient = method.point.gradient()
    uphill = LineModel(gradient, 1e6 * gradient, 1)  # however short, it leads up
    method.region.replace_model(uphill)
    tried = 0
    while method.region.model is uphill:
        assert method.iterate() is not None
        tried += 1
        assert tried < 20
    assert tried > 2
    assert method.quasi_newton.steps == 0


def test_is_ahead_of_krylov_steps_at_the_same_work():
    hybrid, krylov = trained(gnvpro.Hybrid(max_rank=10)), trained(gnvpro.Krylov(max_rank=10))
    assert hybrid.history[-1].work <= 300
    assert hybrid.history[-1].loss < krylov.history[-1].loss
    assert {r.solver for r in hybrid.history[1:]} == {"hybrid"}


@pytest.mark.parametrize("work", [6, 20, 57, 130])
def test_never_goes_up_and_stays_within_the_budget(work):
    history = trained(gnvpro.Hybrid(max_rank=10), work=work).history
    assert history[-1].work <= work
    assert all(b <= a for a, b in itertools.pairwise(history.column("loss")))


@pytest.mark.parametrize(("loss", "fraction"), [("least_squares", 1e-2), ("logistic", 0.2), ("multinomial", 0.2)])
def test_serves_every_loss(loss, fraction):
    targets = {
        "least_squares": torch.sin(INPUTS.sum(1, keepdim=True)),
        "logistic": (INPUTS.sum(1, keepdim=True).sin() > 0).to(F64),
        "multinomial": LABELS,
    }[loss]
    model = small_network(3 if loss == "multinomial" else 1)
    result = gnvpro.train(model, INPUTS, targets, loss=loss, solver="hybrid", work=200)
    assert result.history[-1].misfit < fraction * result.history[0].misfit


# -- auto


def test_auto_begins_with_quasi_newton_steps_and_goes_on_with_exact_ones(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.auto.EXPENSIVE_DIRECTIONS", 1)  # there are few here
    monkeypatch.setattr("gnvpro.methods.auto.CHEAP_WINDOW", 8)
    assert kinds(trained("auto", "least_squares", work=600).history) == ["hybrid", "dense"]


@pytest.mark.parametrize(("expensive_from", "expected"), [(1000, ["dense"]), (1, ["krylov", "dense"])])
def test_auto_begins_with_krylov_steps_where_a_matrix_is_expensive(monkeypatch, expensive_from, expected):
    """For losses other than least squares that is a matter of how many directions there are."""
    monkeypatch.setattr("gnvpro.methods.auto.EXPENSIVE_DIRECTIONS", expensive_from)
    monkeypatch.setattr("gnvpro.methods.auto.KRYLOV_WINDOW", 4)
    assert kinds(trained(gnvpro.Auto(max_rank=5), work=300).history) == expected


def test_auto_gives_its_settings_to_its_steps(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.auto.EXPENSIVE_DIRECTIONS", 1)
    monkeypatch.setattr("gnvpro.methods.auto.KRYLOV_WINDOW", 2)
    solver = gnvpro.Auto(max_rank=2, rtol=0.0, dense=gnvpro.Dense(step_control="damping"))
    history = trained(solver, work=200).history[1:]
    assert {r.rank for r in history if r.solver == "krylov"} == {2}
    exact = [r for r in history if r.solver == "dense"]
    assert exact
    assert all(r.damping is not None and r.radius is None for r in exact)


class Given:
    """Trials that leave given values."""

    next_passes = 0

    def __init__(self, values):
        self.values = iter(values)
        self.point = point_of(next(self.values))

    def iterate(self):
        self.point = point_of(next(self.values))
        return StepReport(True)


def point_of(value):
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

    class Exact:
        def steps(self, point, bound, budget, state):
            begun.append(point.value)
            return Given([point.value, 0.0])

    phase = CheapPhase(lambda point: Given(values), window, first=5)
    method = CheapThenExact(phase, Exact(), point_of(values[0]), None)
    for done in range(1, steps + 1):
        assert method.iterate().accepted
        assert begun == ([values[steps]] if done == steps else [])
    assert method.iterate().accepted
    assert method.point.value == 0.0


def test_auto_takes_exact_steps_where_cheap_ones_cannot_go_on(monkeypatch):
    monkeypatch.setattr(QuasiNewtonSteps, "iterate", lambda self: None)
    assert kinds(trained("auto", "least_squares", work=40).history) == ["dense"]


@pytest.mark.parametrize("work", [2, 3, 4, 5])  # an exact step needs 2 rows, a trial, a probe, and the first pass
def test_auto_stays_within_the_budget_where_cheap_steps_cannot_go_on(monkeypatch, work):
    monkeypatch.setattr(QuasiNewtonSteps, "iterate", lambda self: None)
    monkeypatch.setattr(QuasiNewtonSteps, "gradient_norm", lambda self: None)
    monkeypatch.setattr(QuasiNewtonSteps, "next_passes", 0)
    result = trained("auto", "least_squares", work=work)
    assert result.work <= work
    assert result.status is gnvpro.Status.WORK_SPENT
    assert len(result.history) == (2 if work == 5 else 1)


def test_auto_has_a_cheap_phase_on_every_level(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.auto.MIN_CHEAP_STEPS", 1)  # exact steps are cheap here
    history = trained("auto", "least_squares", work=[150, 150], method=gnvpro.GNvpro(levels=2)).history
    for level in (0, 1):
        assert kinds(r for r in history if r.level == level) == ["hybrid", "dense"]


def test_where_work_is_scarce_the_window_is_the_work_of_an_exact_step():
    """Levels have a budget each; the passes of an exact step make few quasi-Newton steps here, so there are none."""
    history = trained("auto", "least_squares", work=[60, 60], method=gnvpro.GNvpro(levels=2)).history
    assert kinds(history) == ["dense"]


def test_auto_has_a_cheap_phase_on_the_first_batch_only(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.auto.EXPENSIVE_DIRECTIONS", 1)  # there are few here
    method = gnvpro.GNvpro(batches=gnvpro.Batches(len(INPUTS) // 2, iterations=3))
    history = trained("auto", "least_squares", work=100, method=method).history
    for batch, expected in (((0, 0), "hybrid"), ((0, 1), "dense"), ((1, 0), "dense")):
        assert {r.solver for r in history if (r.sweep, r.batch) == batch and r.solver} == {expected}


def test_auto_takes_the_hybrid_where_a_matrix_is_too_large(monkeypatch):
    problem = gnvpro.Problem(small_network(), INPUTS, LABELS, loss="multinomial")
    assert gnvpro.Auto().takes_exact_steps(problem)
    monkeypatch.setattr("gnvpro.methods.auto.MAX_DIRECTIONS", 10)
    assert not gnvpro.Auto().takes_exact_steps(problem)
    assert kinds(trained(gnvpro.Auto(max_rank=10), work=60).history) == ["hybrid"]


def test_auto_takes_the_hybrid_where_an_exact_step_takes_too_long(monkeypatch):
    monkeypatch.setattr("gnvpro.methods.auto.MAX_FLOPS", 1e5)
    assert kinds(trained(gnvpro.Auto(max_rank=10), work=60).history) == ["hybrid"]


def test_auto_takes_the_hybrid_where_the_matrix_does_not_fit():
    method = gnvpro.GNvpro(solver=gnvpro.Auto(max_rank=10), memory=1e5)
    assert kinds(trained(None, work=60, method=method).history) == ["hybrid"]
