"""Samples outside memory: value, W, gradient, products and the matrix equal the tensors', for every loss and network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import gnvpro
from cases import CASES, F32, Made, made
from checks import relative
from gnvpro.head import newton_cg
from gnvpro.network.passes import PassPlan
from gnvpro.network.subspace import choose_subspace
from gnvpro.objectives.gauss_newton_matrix import MatrixBuilder
from gnvpro.objectives.problem import Problem
from gnvpro.policy import Policy, SamplePolicy
from streamed import on_disk

SIZE = 4  # samples per chunk
STREAMED = Policy(samples=SamplePolicy(held_memory=0.0))


def streamed(m: Made, folder: Any, **options: Any) -> Problem:
    case = m.case
    problem = Problem(
        m.model,
        on_disk(folder, "inputs", m.inputs),
        on_disk(folder, "targets", m.targets),
        loss=case.loss,
        theta_penalty=gnvpro.Tikhonov(case.theta_penalty, case.operator),
        head_penalty=case.head_penalty,
        eliminator=case.eliminator,
        **options,
    )
    return problem.with_passes(PassPlan(SIZE, 0.0))


def in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute directions for heads of any size in single precision."""
    of = newton_cg.Systems.of
    monkeypatch.setattr(newton_cg.Systems, "of", staticmethod(lambda objective, single_from=1: of(objective, 1)))


@pytest.mark.parametrize("name", CASES)
def test_a_point_is_that_of_tensors(name, tmp_path):
    m = made(name)
    problem = streamed(m, tmp_path)
    here, there = problem.reduced.at(m.theta), m.problem.reduced.at(m.theta)
    rounding = 1e-5 if m.case.dtype == F32 else 1e-10
    assert len(problem.inputs) == len(m.inputs)
    assert here.value == pytest.approx(there.value, rel=rounding)
    assert relative(here.W, there.W) <= rounding
    assert relative(here.gradient(), there.gradient()) <= (100 * rounding if m.case.dtype == F32 else rounding)
    v = m.direction(m.theta)
    # fewer samples than features: both terms of the inverse are of the size of 1 / head_penalty, and cancel
    digits = 10 * rounding if name.startswith("fewer samples") else rounding
    assert relative(here.curvature().mv(v), there.curvature().mv(v)) <= digits
    assert problem.misfit.accuracy(here.outputs) == pytest.approx(m.problem.misfit.accuracy(there.outputs))


@pytest.mark.parametrize("least", ["double", "single", "half"])
def test_a_head_without_its_hessian_is_that_of_tensors(least, tmp_path, monkeypatch):
    """Use conjugate gradients, the eliminator of large heads, at any number of digits."""
    if least != "double":
        in_single_precision(monkeypatch)
    monkeypatch.setattr(newton_cg, "multiplies_bfloat16", lambda: least == "half")
    m = made("mlp, multinomial")
    exact = gnvpro.heads.NewtonCG(rtol=1e-12, inverse_rtol=1e-12)
    m = replace(m, case=replace(m.case, eliminator=exact))
    here, there = streamed(m, tmp_path).reduced.at(m.theta), m.problem.reduced.at(m.theta)
    v = m.direction(m.theta)
    assert relative(here.W, there.W) <= 1e-8
    assert relative(here.gradient(), there.gradient()) <= 1e-8
    assert relative(here.curvature().mv(v), there.curvature().mv(v)) <= 1e-8


@pytest.mark.parametrize("name", ["mlp, least squares", "mlp, multinomial", "autodiff, multinomial", "poisson"])
def test_work_is_that_of_tensors(name, tmp_path):
    m = made(name)
    problem = streamed(m, tmp_path)
    counted = []
    for each in (problem, m.problem.with_passes(PassPlan(SIZE))):
        begun = each.meter.work
        point = each.reduced.at(m.theta)
        point.gradient()
        point.curvature().mv(m.direction(m.theta))
        counted.append(each.meter.work - begun)
    assert counted[0] == counted[1] == 4


@pytest.mark.parametrize(
    "name", ["mlp, least squares", "mlp, multinomial", "pixels, multinomial", "autodiff, multinomial"]
)
def test_the_full_objective_is_that_of_tensors(name, tmp_path):
    m = made(name)
    problem, W = streamed(m, tmp_path), m.some_W()
    here, there = (p.full.at(p.full.join(m.theta, W)) for p in (problem, m.problem))
    assert here.value == pytest.approx(there.value, rel=1e-12)
    assert relative(here.gradient(), there.gradient()) <= 1e-12
    v = m.direction(here.x)
    assert relative(here.curvature().mv(v), there.curvature().mv(v)) <= 1e-12


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "mlp, least squares",
        "mlp, multinomial",
        "mlp, logistic",
        "autodiff, least squares",
        "poisson",
        "cnn, multinomial",
    ],
)
def test_the_matrix_is_that_of_tensors(name, full, tmp_path):
    m = made(name)
    built = []
    for problem in (streamed(m, tmp_path), m.problem):
        penalty = problem.theta_penalty.hessian(m.theta)
        subspace = choose_subspace(problem.network.directions, m.theta, penalty)
        builder = MatrixBuilder(subspace, subspace.reduce(subspace.reduce(penalty).T), full, 1e9)
        point = problem.reduced.at(m.theta)
        begun = problem.meter.work
        matrix = builder.build(point)
        d_outputs = problem.reduced.probe(m.theta + 0.1, point).outputs - point.outputs
        built.append((matrix, matrix.pull_back(d_outputs, 0.3 * point.W), problem.meter.work - begun))
    (here, pulled, work), (there, expected, same_work) = built
    assert relative(here.matrix, there.matrix) <= 1e-10
    assert relative(here.gradient, there.gradient) <= 1e-10
    assert relative(pulled, expected) <= 1e-9
    assert work - same_work <= 1, "what pulls back had no rows of the Jacobian to go by"


def test_an_inverse_that_is_not_exact(tmp_path):
    m = made("mlp, multinomial")
    krylov = gnvpro.heads.NewtonKrylov()
    here, there = (p.with_eliminator(krylov).reduced.at(m.theta) for p in (streamed(m, tmp_path), m.problem))
    v = m.direction(m.theta)
    assert relative(here.curvature().mv(v), there.curvature().mv(v)) <= 1e-6
    assert relative(here.W, there.W) <= 1e-7


def test_weights_and_samples_of_no_weight(tmp_path):
    m = made("mlp, multinomial")
    weights = torch.rand(len(m.inputs), dtype=torch.float64)
    weights[[0, 3, 4, 5, 6, 7, 20]] = 0.0
    options = {"loss": m.case.loss, "theta_penalty": 1e-2, "head_penalty": 1e-3}
    held = Problem(m.model, m.inputs, m.targets, sample_weight=weights, **options)
    here = streamed(m, tmp_path, sample_weight=on_disk(tmp_path, "weights", weights)).with_passes(PassPlan(2, 0.0))
    assert len(here.inputs) == len(held.inputs) == len(weights) - 7
    a, b = (p.reduced.at(m.theta) for p in (here, held))
    assert a.value == pytest.approx(b.value, rel=1e-12)
    assert relative(a.gradient(), b.gradient()) <= 1e-10
    some = torch.tensor([4, 0, 9])
    a, b = (p.on_samples(some).reduced.at(m.theta) for p in (here, held))
    assert a.value == pytest.approx(b.value, rel=1e-12)


def test_every_sample_is_checked_and_named(tmp_path):
    m = made("mlp, least squares")
    inputs = m.inputs.clone()
    inputs[17, 1] = torch.nan
    bad = on_disk(tmp_path, "inputs", inputs)
    with pytest.raises(ValueError, match="inputs holds NaN or infinity, first in sample 17"):
        Problem(m.model, bad, on_disk(tmp_path, "targets", m.targets), loss="least_squares")
    short = on_disk(tmp_path, "short", m.inputs[:20])
    with pytest.raises(ValueError, match="targets has 25 samples but inputs has 20; they must agree"):
        Problem(m.model, short, on_disk(tmp_path, "targets", m.targets), loss="least_squares")
    with pytest.raises(ValueError, match="targets must have shape"):
        Problem(m.model, on_disk(tmp_path, "inputs", m.inputs), m.targets[:, :2], loss="least_squares")


def test_a_file_that_changes_under_way_is_noticed(tmp_path):
    m = made("mlp, least squares")
    on_disk(tmp_path, "inputs", m.inputs)
    writable = np.load(tmp_path / "inputs.npy", mmap_mode="r+")
    problem = Problem(m.model, writable, m.targets, loss="least_squares")
    problem.reduced.at(m.theta)
    writable[11, 0] += 1e-3
    with pytest.raises(ValueError, match="two passes over inputs differ: 25 samples each, with other content"):
        problem.reduced.at(m.theta)


@pytest.mark.parametrize("dataset", [False, True])
def test_a_batch_may_have_no_sample_here(tmp_path, dataset):
    """Each of several processes receives its part of a batch."""
    m = made("mlp, multinomial")
    if dataset:
        inputs = torch.utils.data.TensorDataset(m.inputs, m.targets)
        problem = Problem(m.model, inputs, loss=m.case.loss, policy=STREAMED)
    else:
        problem = streamed(m, tmp_path)
    some, none = (problem.inputs.take(torch.arange(n)) for n in (3, 0))
    for a, b in ((some.inputs, none.inputs), (some.targets, none.targets), (some.weights, none.weights)):
        assert len(a) > 0
        assert len(b) == 0
        assert a.shape[1:] == b.shape[1:]
