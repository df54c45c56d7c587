"""Large heads: Newton's method by conjugate gradients finds what the assembled Hessian finds, and so does its inverse."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import gnvpro.head.newton_cg as module
from cases import F64, Poisson
from checks import relative
from gnvpro import Status
from gnvpro.head.default_eliminator import default_eliminator
from gnvpro.head.eliminator import WarmStart
from gnvpro.head.newton import HeadObjective
from gnvpro.head.sensitivity import HeadSensitivity
from gnvpro.heads import Newton, NewtonCG
from gnvpro.linalg.sums import SampleSum
from gnvpro.losses import Logistic, Multinomial
from gnvpro.problem.loss import HalfSquaredError
from gnvpro.problem.misfit import Misfit
from gnvpro.processes import Processes

PENALTY = 1e-3


def problem(name: str) -> tuple[torch.Tensor, Misfit]:
    draw = torch.Generator().manual_seed(0)
    Z = torch.randn(80, 6, generator=draw, dtype=F64)
    Z[:, -1] = 1.0
    noisy = Z[:, :4] + torch.randn(80, 4, generator=draw, dtype=F64)
    weights = torch.rand(80, generator=draw, dtype=F64)
    if name == "logistic":
        return Z, Misfit.mean(Logistic(), (noisy[:, :1] > 0).to(F64), weights)
    if name == "poisson":
        return Z, Misfit.mean(Poisson(), noisy[:, :2].exp(), weights)
    if name == "badly scaled":
        return Z * torch.logspace(-2, 2, 6, dtype=F64), Misfit.mean(
            Multinomial(), F.one_hot(noisy.argmax(1), 4).to(F64)
        )
    return Z, Misfit.mean(Multinomial(), F.one_hot(noisy.argmax(1), 4).to(F64), weights)


each_problem = pytest.mark.parametrize("name", ["multinomial", "logistic", "poisson", "badly scaled"])
each_precision = pytest.mark.parametrize("least", ["double", "single", "half"])


def in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute directions for heads of any size in single precision."""
    of = module.Systems.of
    monkeypatch.setattr(module.Systems, "of", staticmethod(lambda objective, single_from=1: of(objective, 1)))


@pytest.fixture
def precision(least: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest digits that conjugate gradients work with."""
    if least != "double":
        in_single_precision(monkeypatch)
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: least == "half")


@each_problem
@each_precision
@pytest.mark.usefixtures("precision")
def test_the_head_is_that_of_the_assembled_hessian(name: str) -> None:
    Z, misfit = problem(name)
    fit, exact = (e.fit(Z, misfit, PENALTY, None) for e in (NewtonCG(), Newton()))
    inner = HeadObjective(Z, misfit, PENALTY)
    zero = inner.at_W(torch.zeros_like(fit.W)).gradient_norm
    assert fit.status is Status.CONVERGED
    assert inner.at_W(fit.W).gradient_norm <= 1e-8 * zero
    assert relative(fit.W, exact.W) <= 1e-8 * zero / PENALTY  # what such a gradient says of W
    torch.testing.assert_close(fit.outputs, Z @ fit.W.T, rtol=0, atol=1e-12 * float(fit.outputs.abs().max()))


@each_problem
@each_precision
@pytest.mark.parametrize("rtol", [1e-3, 1e-10])
@pytest.mark.usefixtures("precision")
def test_the_inverse_is_that_of_the_assembled_hessian(name: str, rtol: float) -> None:
    Z, misfit = problem(name)
    fit = NewtonCG(inverse_rtol=rtol, rtol=1e-10).fit(Z, misfit, PENALTY, None)
    D = torch.randn(fit.W.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    residual = HeadObjective(Z, misfit, PENALTY).hessian(fit.outputs)(fit.inverse_hessian.mv(D)) - D
    assert float(residual.norm()) <= rtol * float(D.norm())


@each_problem
def test_products_of_the_reduced_jacobian_are_those_of_the_exact_inverse(name: str) -> None:
    Z, misfit = problem(name)
    eliminators = NewtonCG(rtol=1e-10, inverse_rtol=1e-12), Newton()
    cg, exact = (HeadSensitivity(Z, 5, misfit, e.fit(Z, misfit, PENALTY, None), PENALTY) for e in eliminators)
    dZ = torch.randn(80, 5, generator=torch.Generator().manual_seed(2), dtype=F64)
    assert relative(cg.head_jacobian.mv(dZ), exact.head_jacobian.mv(dZ)) <= 1e-6
    assert relative(cg.output_jacobian.mv(dZ), exact.output_jacobian.mv(dZ)) <= 1e-6
    assert relative(cg.curvature.mv(dZ), exact.curvature.mv(dZ)) <= 1e-6


def test_a_system_is_solved_where_corrections_have_no_digits_to_give() -> None:
    """The residual decides, whatever a correction claims."""
    H = torch.diag(torch.logspace(-3, 0, 12, dtype=F64))
    right = torch.ones(12, 1, dtype=F64)
    useless = [lambda R, rtol: torch.zeros_like(R), lambda R, rtol: -R, lambda R, rtol: 1e3 * R]
    for correct in [*useless, lambda R, rtol: R / H.diagonal()[:, None]]:
        D = module.refined(H.matmul, correct, right, lambda R: R, 1e-9)
        assert float((H @ D - right).norm()) <= 2e-9 * float(right.norm())


def test_rounded_products_are_those_of_the_hessian_to_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    in_single_precision(monkeypatch)
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)
    Z, misfit = problem("multinomial")
    systems = module.Systems.of(HeadObjective(Z, misfit, PENALTY))
    assert systems.half is not None
    outputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(3))
    D = torch.randn(4, 6, generator=torch.Generator().manual_seed(4))
    found, exact = systems._rough_products(outputs, systems.half)(D), systems.turned.hessian(outputs)(D)
    assert found.dtype == torch.float32
    assert 1e-6 < relative(found, exact) < 1e-2


def test_processes_on_different_processors_agree_on_how_to_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one would wait for sums that the other does not make."""

    class Unlike(Processes):
        def all(self, statement: bool) -> bool:
            return False  # another process refuses

    in_single_precision(monkeypatch)
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)
    Z, misfit = problem("multinomial")
    assert module.Systems.of(HeadObjective(Z, misfit, PENALTY)).half is not None
    beside = replace(misfit, over=SampleSum(Unlike()))
    assert module.Systems.of(HeadObjective(Z, beside, PENALTY)).half is None


def test_what_all_outputs_share_is_taken_out_of_a_start() -> None:
    """No loss of classes sees it, and Newton's method with this preconditioner would take long to remove it."""
    Z, misfit = problem("multinomial")
    answer = NewtonCG().fit(Z, misfit, PENALTY, None).W
    fit = NewtonCG().fit(Z, misfit, PENALTY, WarmStart(answer + 3.0))
    assert fit.iterations == 0
    assert relative(fit.W, answer) <= 1e-12


def test_a_large_head_needs_few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 x 65 entries on 600 samples: a hundred products with the Hessian, of which one would be 6500 x 6500."""
    draw = torch.Generator().manual_seed(0)
    Z = torch.randn(600, 65, generator=draw, dtype=F64)
    labels = (Z @ torch.randn(65, 100, generator=draw, dtype=F64)).argmax(1)
    made, plain = [0], HeadObjective.hessian

    def counting(self, outputs):
        apply = plain(self, outputs)

        def call(dW):
            made[0] += 1
            return apply(dW)

        return call

    monkeypatch.setattr(HeadObjective, "hessian", counting)
    fit = NewtonCG().fit(Z, Misfit.mean(Multinomial(), F.one_hot(labels, 100).to(F64)), 1e-4, None)
    assert fit.status is Status.CONVERGED
    assert made[0] <= 120  # 140 if the penalty does not fall to its value


@pytest.mark.parametrize(("penalty", "count"), [(1.0, 1), (1e-4, 4), (0.0, module.MOST_PENALTIES + 1)])
def test_penalties_fall_from_the_curvature_to_the_problems_own(penalty: float, count: int) -> None:
    Z, misfit = problem("multinomial")
    systems = module.Systems.of(HeadObjective(Z, misfit, penalty))
    curvature = torch.trace(HeadObjective(Z, misfit, 0.0).hessian_matrix(torch.zeros_like(misfit.targets)))
    penalties = systems.penalties()
    assert penalties[-1] == penalty
    assert len(penalties) == count
    assert all(a > 3 * b for a, b in itertools.pairwise(penalties))
    if count > 1:
        assert penalties[0] == pytest.approx(float(curvature) / HeadObjective(Z, misfit, 0.0).entries)


def test_the_size_of_the_head_decides() -> None:
    assert default_eliminator(Multinomial(), 1500) == Newton()
    assert default_eliminator(Multinomial(), 1501) == NewtonCG()
    assert default_eliminator(HalfSquaredError(), 10**7).inverse_acts_on_rows


def test_an_exact_inverse_that_is_too_expensive_for_exact_steps_is_declared_as_both() -> None:
    Z, misfit = problem("multinomial")
    assert NewtonCG().fit(Z, misfit, 1e-3, None).inverse_is_exact
    assert not NewtonCG().supports_exact_steps
