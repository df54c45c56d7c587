"""The elimination for any convex loss: to 1e-10, from anywhere, whatever the features look like."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import jacrev
from torch.nn import functional as F

from cases import Poisson, PseudoHuber
from checks import F64, adjoint_gap, against_dense, relative
from gnvpro import Status
from gnvpro.head.eliminator import WarmStart
from gnvpro.head.hessian import approximate_hessian, assemble_hessian, held_products
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import HeadObjective
from gnvpro.heads import Newton, NewtonKrylov
from gnvpro.linalg.sums import SampleSum
from gnvpro.linalg.symmetric_products import unique_products
from gnvpro.losses import Logistic, Multinomial
from gnvpro.problem.loss import HalfSquaredError
from gnvpro.problem.misfit import Misfit


def features(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(rows, columns, dtype=F64, generator=generator)
    Z[:, -1] = 1.0
    return Z


def hot(labels, classes):
    return F.one_hot(labels, classes).to(F64)


def random_labels(rows, classes, seed=1):
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))


def problem(name):
    """Features, misfit and penalty."""
    Z = features(60, 5)
    if name == "logistic":
        return Z, Misfit.mean(Logistic(), random_labels(60, 2)[:, None].to(F64)), 1e-3
    if name == "multinomial":
        return Z, Misfit.mean(Multinomial(), hot(random_labels(60, 4), 4)), 1e-3
    if name == "separable logistic, tiny penalty":
        return Z, Misfit.mean(Logistic(), (Z[:, :1] > 0).to(F64)), 1e-10
    if name == "separable multinomial, tiny penalty":
        return Z, Misfit.mean(Multinomial(), hot((Z[:, :3]).argmax(1), 3)), 1e-10
    if name == "separable multinomial, penalty 1e-6":
        return Z, Misfit.mean(Multinomial(), hot((Z[:, :3]).argmax(1), 3)), 1e-6
    if name == "absent class":
        return Z, Misfit.mean(Multinomial(), hot(random_labels(60, 3), 4)), 1e-4
    if name == "one class":
        return Z, Misfit.mean(Multinomial(), hot(torch.zeros(60, dtype=torch.int64), 3)), 1e-4
    if name == "duplicated features":
        return torch.cat([Z, Z[:, :3]], 1), Misfit.mean(Multinomial(), hot(random_labels(60, 3), 3)), 1e-6
    if name == "dead feature":
        Z[:, 1] = 0
        return Z, Misfit.mean(Logistic(), random_labels(60, 2)[:, None].to(F64)), 1e-6
    if name == "fewer samples than features":
        return features(6, 15), Misfit.mean(Multinomial(), hot(random_labels(6, 3), 3)), 1e-6
    if name == "badly scaled":
        return (
            Z * torch.logspace(-3, 3, 5, dtype=F64),
            Misfit.mean(Logistic(), random_labels(60, 2)[:, None].to(F64)),
            1e-4,
        )
    if name == "no penalty":
        return Z, Misfit.mean(Multinomial(), hot(random_labels(60, 3), 3)), 0.0
    if name == "no penalty, duplicated features":
        return torch.cat([Z, Z[:, :2]], 1), Misfit.mean(Logistic(), random_labels(60, 2)[:, None].to(F64)), 0.0
    if name == "poisson":
        return (
            Z,
            Misfit.mean(Poisson(), torch.randint(0, 9, (60, 2), generator=torch.Generator().manual_seed(2)).to(F64)),
            1e-4,
        )
    assert name == "pseudo-huber"
    return (
        Z,
        Misfit.mean(PseudoHuber(), 10 * torch.randn(60, 2, dtype=F64, generator=torch.Generator().manual_seed(2))),
        1e-4,
    )


PROBLEMS = [
    "logistic",
    "multinomial",
    "separable logistic, tiny penalty",
    "separable multinomial, tiny penalty",
    "separable multinomial, penalty 1e-6",
    "absent class",
    "one class",
    "duplicated features",
    "dead feature",
    "fewer samples than features",
    "badly scaled",
    "no penalty",
    "no penalty, duplicated features",
    "poisson",
    "pseudo-huber",
]
PENALISED = [name for name in PROBLEMS if not name.startswith("no penalty")]
each_problem = pytest.mark.parametrize("name", PROBLEMS)
LARGE = Newton(small_head=0)  # as for a large head: Krylov spaces in the coordinates of a factor that is kept
KINDS = {"newton": Newton(), "newton of a large head": LARGE, "newton-krylov": NewtonKrylov()}
each_kind = pytest.mark.parametrize("eliminator", KINDS.values(), ids=KINDS)


def gradient(Z, misfit, a2, W):
    """By autograd, through the loss's own value."""

    def phi(W):
        return (misfit.weights[:, 0] * misfit.loss.value(Z @ W.T, misfit.targets)).sum() + 0.5 * a2 * (W**2).sum()

    return jacrev(phi)(W)


@each_kind
@each_problem
def test_gradient_at_the_eliminated_head_is_below_1e_10(name, eliminator):
    Z, misfit, a2 = problem(name)
    fit = eliminator.fit(Z, misfit, a2, None)
    scale = max(1.0, float(gradient(Z, misfit, a2, torch.zeros_like(fit.W)).norm()))  # absolute or relative
    assert float(gradient(Z, misfit, a2, fit.W).norm()) <= 1e-10 * scale * 1.01
    assert fit.status is Status.CONVERGED
    torch.testing.assert_close(fit.outputs, Z @ fit.W.T)


@each_problem
def test_both_eliminators_find_the_same_outputs(name):
    Z, misfit, a2 = problem(name)
    a, b = (e.fit(Z, misfit, a2, None) for e in (Newton(), NewtonKrylov()))
    values = [misfit.value(fit.outputs) + 0.5 * a2 * float(fit.W.square().sum()) for fit in (a, b)]
    # strong convexity: a gradient of 1e-10 leaves at most 1e-20 / (2 a2) to gain
    assert values[0] == pytest.approx(values[1], rel=1e-10, abs=1e-20 / a2 if a2 else 1e-12)


@pytest.mark.parametrize("name", PENALISED)
def test_inverse_hessian_is_the_inverse_of_autograds_hessian(name):
    Z, misfit, a2 = problem(name)
    fit = Newton().fit(Z, misfit, a2, None)
    n = fit.W.numel()
    H = jacrev(lambda W: gradient(Z, misfit, a2, W))(fit.W).reshape(n, n)
    product = fit.inverse_hessian.dense() @ H
    # autograd finds p (1 - p) to eps, not to eps relative; H consists of these for separated classes
    rounding = 1e-15 * float(torch.linalg.norm(fit.inverse_hessian.dense(), 2))
    assert float((product - torch.eye(n, dtype=F64)).abs().max()) <= 1e-12 + 10 * rounding
    assert fit.inverse_is_exact


# products of one row at a time, of some, of all; or Z' diag(h_kl) Z
@pytest.mark.parametrize(("numbers", "few"), [(1, 0), (1_000, 0), (1_000_000, 0), (1, 1_000_000)])
@each_problem
def test_assembled_hessian_is_autograds(name, numbers, few, monkeypatch):
    monkeypatch.setattr("gnvpro.head.hessian.MAX_PRODUCT_ENTRIES", numbers)
    Z, misfit, a2 = problem(name)
    W = torch.randn(misfit.targets.shape[1], Z.shape[1], dtype=F64, generator=torch.Generator().manual_seed(7)) / 10
    H = jacrev(lambda W: gradient(Z, misfit, a2, W))(W).reshape(W.numel(), W.numel())
    mine = assemble_hessian(Z, misfit, a2, Z @ W.T, few=few)
    assert float((mine - H).abs().max()) <= 1e-12 * float(H.abs().max())
    assert relative(assemble_hessian(Z, misfit, a2, Z @ W.T, held_products(Z), few), mine) <= 1e-14
    assert float((mine - mine.T).abs().max()) <= 1e-15 * float(H.abs().max())


@each_kind
@pytest.mark.parametrize("name", PENALISED)
def test_a_warm_start_changes_the_cost_and_not_the_answer(name, eliminator):
    Z, misfit, a2 = problem(name)
    cold = eliminator.fit(Z, misfit, a2, None)
    again = eliminator.fit(Z, misfit, a2, cold.warm_start)
    assert again.iterations < cold.iterations
    wild = WarmStart(5 * torch.randn(cold.W.shape, dtype=F64, generator=torch.Generator().manual_seed(8)))
    far = eliminator.fit(Z, misfit, a2, wild)
    scale = max(1.0, float(gradient(Z, misfit, a2, torch.zeros_like(wild.W)).norm()))
    for fit in (again, far):
        assert float(gradient(Z, misfit, a2, fit.W).norm()) <= 1e-10 * scale * 1.01


@pytest.mark.parametrize("eliminator", [LARGE, Newton()])
def test_a_factor_of_another_problem_does_not_spoil_the_answer(eliminator):
    Z, misfit, a2 = problem("separable multinomial, penalty 1e-6")
    stranger = torch.linalg.cholesky(1e4 * torch.eye(15, dtype=F64))
    for factor in (stranger, torch.linalg.cholesky(1e-9 * torch.eye(15, dtype=F64))):
        fit = eliminator.fit(Z, misfit, a2, WarmStart(torch.full((3, 5), 1e-3, dtype=F64), factor))
        assert float(gradient(Z, misfit, a2, fit.W).norm()) <= 1e-10 * 1.01


@pytest.mark.parametrize("eliminator", [LARGE, Newton()])
def test_a_bad_start_with_a_factor_does_not_loosen_the_answer(eliminator):
    Z, misfit, a2 = problem("multinomial")
    Z = 1e3 * Z  # so that the tolerance is relative
    factor = eliminator.fit(Z, misfit, a2, None).warm_start.factor
    bad = WarmStart(torch.eye(4, 5, dtype=F64), factor)
    fit = eliminator.fit(Z, misfit, a2, bad)
    zero, start = (float(gradient(Z, misfit, a2, W).norm()) for W in (torch.zeros_like(bad.W), bad.W))
    assert start > 1.5 * zero
    assert float(gradient(Z, misfit, a2, fit.W).norm()) <= 1e-10 * zero * 1.01
    assert fit.status is Status.CONVERGED


@pytest.mark.parametrize("eliminator", [LARGE, Newton()])
def test_a_start_near_by_with_its_factor_takes_whole_steps_and_nothing_else(eliminator, monkeypatch):
    Z, misfit, a2 = problem("multinomial")
    cold, moved = eliminator.fit(Z, misfit, a2, None), Z + 1e-4 * Z.sin()
    cold.inverse_hessian.mv(cold.W)  # the factor is exact
    monkeypatch.delattr("gnvpro.head.newton.HeadObjective.at")  # value and gradient, for the trust region
    fit = eliminator.fit(moved, misfit, a2, cold.warm_start)
    assert 0 < fit.iterations <= 3
    assert float(gradient(moved, misfit, a2, fit.W).norm()) <= 1e-10
    with pytest.raises(AttributeError):  # the norm is evaluated far away
        eliminator.fit(moved, misfit, a2, WarmStart(-100 * cold.W, cold.warm_start.factor))


def test_the_factor_of_the_last_point_comes_with_the_warm_start():
    Z, misfit, a2 = problem("multinomial")
    fit = LARGE.fit(Z, misfit, a2, None)
    old = fit.warm_start.factor
    fit.inverse_hessian.mv(fit.W)
    new = fit.warm_start.factor
    H = jacrev(lambda W: gradient(Z, misfit, a2, W))(fit.W).reshape(20, 20)
    assert relative(new @ new.T, H) <= 1e-10
    assert old is not new


def test_a_factor_serves_for_several_steps_and_products_of_features_for_all(monkeypatch):
    Z, misfit, a2 = problem("multinomial")
    assembled, multiplied = [], []

    def counted(*arguments):
        assembled.append(1)
        return assemble_hessian(*arguments)

    def noted(rows):
        multiplied.append(rows.shape[0])
        return unique_products(rows)

    monkeypatch.setattr("gnvpro.head.newton.assemble_hessian", counted)
    monkeypatch.setattr("gnvpro.head.hessian.unique_products", noted)
    cold = Newton(few=0).fit(Z, misfit, a2, None)
    assert len(assembled) < cold.iterations
    assert multiplied.count(Z.shape[1]) == 1
    made = len(assembled)
    near = Newton(few=0).fit(Z + 1e-4 * Z.sin(), misfit, a2, cold.warm_start)
    assert near.iterations > 0
    assert len(assembled) == made  # the factor of the last point sufficed
    assert float(gradient(Z + 1e-4 * Z.sin(), misfit, a2, near.W).norm()) <= 1e-10


@pytest.mark.parametrize("name", ["logistic", "multinomial", "fewer samples than features", "duplicated features"])
def test_low_rank_inverse_and_its_transpose_are_exact_transposes_at_every_rank(name):
    Z, misfit, a2 = problem(name)
    n = misfit.targets.shape[1] * Z.shape[1]
    for rank in range(1, n + 1, 2 if n > 20 else 1):
        inverse = NewtonKrylov(max_rank=rank, krylov_rtol=1e-14).fit(Z, misfit, a2, None).inverse_hessian
        assert adjoint_gap(inverse) <= 1e-12


def test_krylov_of_full_rank_inverts_the_hessian():
    Z, misfit, a2 = problem("logistic")
    fit = NewtonKrylov(krylov_rtol=1e-15).fit(Z, misfit, a2, None)
    H = jacrev(lambda W: gradient(Z, misfit, a2, W))(fit.W).reshape(5, 5)
    assert against_dense(fit.inverse_hessian, torch.linalg.inv(H)) <= 1e-4
    assert not fit.inverse_is_exact


def test_krylov_inverse_exists_where_the_start_is_already_the_answer():
    Z, misfit, a2 = problem("logistic")
    answer = Newton(atol=1e-15).fit(Z, misfit, a2, None).W
    fit = NewtonKrylov().fit(Z, misfit, a2, WarmStart(answer))
    assert fit.iterations == 0
    assert torch.isfinite(fit.inverse_hessian.dense()).all()


def test_a_tolerance_is_what_it_says():
    Z, misfit, a2 = problem("multinomial")
    norms = []
    for atol in (1e-2, 1e-5, 1e-9):
        W = Newton(atol=atol, rtol=0.0).fit(Z, misfit, a2, None).W
        norms.append(float(gradient(Z, misfit, a2, W).norm()))
        assert norms[-1] <= atol
    assert norms[0] > 1e-9


def test_an_iteration_cap_is_kept_and_said():
    Z, misfit, a2 = problem("separable multinomial, tiny penalty")
    for eliminator in (Newton(iterations=2), Newton(iterations=2, small_head=0), NewtonKrylov(iterations=2)):
        fit = eliminator.fit(Z, misfit, a2, None)
        assert fit.iterations <= 2
        assert fit.status is Status.ITERATIONS_SPENT


def test_newton_on_the_squared_error_is_the_svd():
    Z = features(20, 4)
    misfit = Misfit.mean(HalfSquaredError(), torch.randn(20, 3, dtype=F64, generator=torch.Generator().manual_seed(4)))
    svd = LeastSquares().fit(Z, misfit, 1e-3, None)
    for eliminator in (Newton(), LARGE, NewtonKrylov(krylov_rtol=1e-12)):
        assert relative(eliminator.fit(Z, misfit, 1e-3, None).W, svd.W) <= 1e-8


@pytest.mark.parametrize("scale", [1e160, 1e300])
def test_features_whose_squares_overflow_end_instead_of_looping_for_ever(scale):
    Z, misfit, a2 = problem("multinomial")
    for eliminator in (Newton(), LARGE, NewtonKrylov(), LeastSquares()):
        if isinstance(eliminator, LeastSquares):
            misfit = Misfit.mean(HalfSquaredError(), misfit.targets)
        fit = eliminator.fit(scale * Z, misfit, a2, None)
        assert fit.W.shape == (4, 5)


def test_a_warm_start_that_is_worse_than_zero_is_not_taken():
    """If classes are separable, W is large; at other features it may be large and wrong, and the loss flat around it."""
    Z, misfit, a2 = problem("separable multinomial, penalty 1e-6")
    cold = Newton().fit(Z, misfit, a2, None)
    objective = HeadObjective(Z, misfit, a2)
    wrong = WarmStart(-1e3 * cold.W)
    point, taken, zero = objective.first(wrong)
    assert taken is None
    assert not point.W.any()
    assert zero == point.gradient_norm
    good, taken, again = objective.first(cold.warm_start)
    assert taken is not None
    assert again == zero
    assert torch.equal(good.W, cold.W)
    # and so it costs no more than beginning from nothing
    assert Newton().fit(Z, misfit, a2, wrong).iterations == cold.iterations


def test_a_point_is_evaluated_in_one_message_and_moves_to_other_coordinates_in_none():
    class Counting(SampleSum):
        def total(self, part):
            sent.append(part)
            return part

        def totals(self, parts):
            return self.total(parts)

    Z, misfit, a2 = problem("multinomial")
    sent: list[object] = []
    plain = HeadObjective(Z, replace(misfit, over=Counting()), a2)
    point = plain.at_W(torch.ones(plain.shape, dtype=F64))
    assert float(point.gradient_norm) > 0
    assert len(sent) == 1
    factor = torch.linalg.cholesky(plain.hessian_matrix(point.outputs))
    sent.clear()
    turned = replace(plain, factor=factor)
    seen = turned.seen_from(point)
    assert len(sent) == 0
    there = turned.at_W(point.W)
    assert seen.value == pytest.approx(there.value, rel=1e-14)
    assert relative(seen.x, there.x) <= 1e-14
    assert relative(seen.gradient(), there.gradient()) <= 1e-12


def test_a_part_of_the_rows_stands_for_all_of_them_in_the_hessian_that_preconditions():
    """Rows that repeat: every fourth of them, weighted for the others, has the Hessian of all."""
    base, misfit, a2 = problem("multinomial")
    times = 4 * 20 * base.shape[1]
    Z, targets = base.repeat_interleave(times, 0), misfit.targets.repeat_interleave(times, 0)
    many = Misfit.mean(misfit.loss, targets)
    outputs = 0.1 * Z @ torch.randn(Z.shape[1], targets.shape[1], dtype=F64, generator=torch.Generator().manual_seed(0))
    whole, part = assemble_hessian(Z, many, a2, outputs), approximate_hessian(Z, many, a2, outputs)
    assert relative(part, whole) <= 1e-12
    assert not torch.equal(part, whole), "the rows are too few for a part of them to be taken"


def test_zero_features_leave_a_zero_head():
    misfit = Misfit.mean(Logistic(), random_labels(8, 2)[:, None].to(F64))
    for eliminator in KINDS.values():
        fit = eliminator.fit(torch.zeros(8, 3, dtype=F64), misfit, 1e-3, None)
        assert torch.equal(fit.W, torch.zeros(1, 3, dtype=F64))
        assert fit.status is Status.CONVERGED
