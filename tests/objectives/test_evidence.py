"""The evidence: its determinant, traces and derivatives against dense algebra and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gnvpro import Problem, Tikhonov, time_differences
from gnvpro.networks import MLP, NeuralODE
from gnvpro.objectives.evidence import DenseJointMatrix, Penalties, evidence
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.quadrature import KrylovJointMatrix
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.training.judgement import assembled

F64 = torch.float64
AT = Penalties(3e-3, 2e-2)


def make(loss: str, outputs: int, weighted: bool = False, model: nn.Module | None = None) -> ReducedPoint:
    torch.manual_seed(0)
    model = model or nn.Sequential(MLP(3, [5, 4], dtype=F64), nn.Linear(4, outputs, dtype=F64))
    x = torch.randn(30, 3, dtype=F64)
    y = torch.randn(30, outputs, dtype=F64)
    targets = {"least_squares": y, "logistic": (y > 0).to(F64), "multinomial": y.argmax(1)}[loss]
    weights = torch.rand(30, dtype=F64) + 0.1 if weighted else None
    penalties = {"theta_penalty": AT.theta, "head_penalty": AT.head, "sample_weight": weights}
    problem = Problem(model, x, targets, loss=loss, **penalties)
    return problem.reduced.at(problem.theta())


def matrix_of(point: ReducedPoint) -> DenseJointMatrix:
    return assembled(point)[0]


def joint_reference(point: ReducedPoint) -> Tensor:
    full = point.problem.full
    return full.at(full.join(point.theta, point.W)).curvature().dense()


LOSSES = [("least_squares", 1), ("least_squares", 6), ("logistic", 1), ("multinomial", 3)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
def test_determinant_and_traces_are_those_of_the_joint_gauss_newton_matrix(
    loss: str, outputs: int, weighted: bool
) -> None:
    point = make(loss, outputs, weighted)
    H, q = joint_reference(point), point.theta.numel()
    found = matrix_of(point).spectrum(AT)
    inverse = torch.linalg.inv(H).diagonal()
    assert found.log_det == pytest.approx(float(torch.linalg.slogdet(H)[1]), rel=1e-9)
    assert found.theta_trace == pytest.approx(float(inverse[:q].sum()), rel=1e-8)
    assert found.head_trace == pytest.approx(float(inverse[q:].sum()), rel=1e-8)


@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
def test_slopes_are_the_derivatives_of_the_evidence(loss: str, outputs: int) -> None:
    point, h = make(loss, outputs), 1e-4
    matrix = matrix_of(point)

    def log(theta: float, head: float) -> float:
        return evidence(point, matrix, Penalties(AT.theta * math.exp(theta), AT.head * math.exp(head)), 30).log

    slopes = evidence(point, matrix, AT, 30).slopes
    assert slopes[0] == pytest.approx((log(h, 0) - log(-h, 0)) / (2 * h), rel=1e-6)
    assert slopes[1] == pytest.approx((log(0, h) - log(0, -h)) / (2 * h), rel=1e-6)


def test_a_penalty_that_leaves_directions_free_counts_the_others() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(NeuralODE(3, 4, depth=2, dtype=F64), nn.Linear(4, 2, dtype=F64))
    x, y = torch.randn(30, 3, dtype=F64), torch.randn(30, 2, dtype=F64)
    penalty = Tikhonov(AT.theta, time_differences)
    problem = Problem(model, x, y, loss="least_squares", theta_penalty=penalty, head_penalty=AT.head)
    point = problem.reduced.at(problem.theta())
    matrix = matrix_of(point)
    B = replace(problem.theta_penalty, alpha=1.0).hessian(point.theta)
    assert matrix.prior_rank <= int(torch.linalg.matrix_rank(B)) < point.theta.numel()
    h, at = 1e-4, [Penalties(AT.theta * math.exp(t), AT.head) for t in (-1e-4, 1e-4)]
    low, high = (evidence(point, matrix, each, 30).log for each in at)
    assert evidence(point, matrix, AT, 30).slopes[0] == pytest.approx((high - low) / (2 * h), rel=1e-6)


def test_the_rank_of_a_diagonal_prior_takes_no_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_of(make("least_squares", 1))
    free = matrix.prior.diagonal().clone()
    free[:3] = 0.0
    assert replace(matrix, prior=free.diag() + 1e-3 * torch.ones_like(matrix.prior)).prior_rank == len(free) - 2
    monkeypatch.delattr(torch.linalg, "matrix_rank")
    assert matrix.prior_rank == len(free)
    assert replace(matrix, prior=free.diag()).prior_rank == len(free) - 3


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
def test_quadrature_agrees_with_dense_algebra_on_average(loss: str, outputs: int) -> None:
    point = make(loss, outputs)
    found = KrylovJointMatrix(point, rank=44, probes=400).spectrum(AT)
    S, q = point.curvature().dense(), point.theta.numel()
    head_block = joint_reference(point)[q:, q:]
    exact = torch.linalg.slogdet(S)[1] + torch.linalg.slogdet(head_block)[1]
    assert found.log_det == pytest.approx(float(exact), rel=0.02)
    assert found.theta_trace == pytest.approx(float(torch.linalg.inv(S).diagonal().sum()), rel=0.05)
    U = torch.linalg.solve(head_block, joint_reference(point)[q:, :q])
    head = torch.linalg.inv(head_block).trace() + (U @ torch.linalg.solve(S, U.T)).trace()
    assert found.head_trace == pytest.approx(float(head), rel=0.1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
def test_the_spread_of_outputs_is_that_of_the_joint_gauss_newton_matrix(
    loss: str, outputs: int, weighted: bool
) -> None:
    point = make(loss, outputs, weighted)
    matrix, subspace = assembled(point)
    new = torch.randn(7, 3, dtype=F64)
    spread = JointPosterior.of(point, matrix, subspace, 30.0).spread(point.problem.network.model, new)
    there = Problem(point.problem.network.model, new, torch.zeros(7, outputs), loss="least_squares").full
    J = there.at(there.join(point.theta, point.W)).jacobian().dense()
    if loss == "multinomial":  # a shift of all outputs of a sample is no matter
        J = (J.view(7, outputs, -1) - J.view(7, outputs, -1).mean(1, keepdim=True)).flatten(0, 1)
    exact = (J.T * torch.linalg.solve(30.0 * joint_reference(point), J.T)).sum(0)
    assert torch.allclose(spread.flatten(), exact, rtol=1e-10)
