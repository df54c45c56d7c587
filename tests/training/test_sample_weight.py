"""Weights equal repeated samples, and a weight of zero equals a missing sample."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from cases import CASES, F64, Made, make, pixel_labels, pixel_net, real
from checks import relative
from gnvpro.problem.loss import HalfSquaredError, Multinomial
from gnvpro.problem.misfit import Misfit

COUNTS = torch.tensor([1, 3, 0, 2, 1, 0, 4, 1, 2, 1, 1, 2, 0, 1, 5, 1, 1, 2, 1, 1])
NAMES = [
    "mlp, least squares",
    "mlp, logistic",
    "mlp, multinomial",
    "neural ode, logistic",
    "poisson",
    "pixels, multinomial",
]


def drawn(name: str) -> Made:
    """A case with as many samples as there are counts."""
    case = CASES[name]
    return make(replace(case, inputs=(len(COUNTS), *case.inputs[1:])))


def with_misfit(case: Made, misfit: Misfit, inputs: Tensor) -> Made:
    """A copy of the model, trained on other samples."""
    changed = copy.copy(case)
    changed.__dict__.pop("point", None)
    changed.problem = case.problem._with(inputs=inputs, misfit=misfit)
    return changed


def weighted_and_repeated(name: str) -> tuple[Made, Made]:
    case = drawn(name)
    each = case.problem.misfit.targets.shape[0] // len(COUNTS)
    loss, targets = case.problem.misfit.loss, case.problem.misfit.targets
    weighted = Misfit.mean(loss, targets, 0.7 * COUNTS.to(F64))
    rows = targets.reshape(len(COUNTS), each, -1).repeat_interleave(COUNTS, 0).reshape(-1, targets.shape[1])
    repeated = Misfit.mean(loss, rows)
    return (
        with_misfit(case, weighted, case.inputs),
        with_misfit(case, repeated, case.inputs.repeat_interleave(COUNTS, 0)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_objective_gradient_and_curvature_are_those_of_repeated_samples(name: str) -> None:
    one, other = weighted_and_repeated(name)
    assert one.point.value == pytest.approx(other.point.value, rel=1e-12)
    assert relative(one.point.W, other.point.W) < 1e-7
    assert relative(one.point.gradient(), other.point.gradient()) < 1e-7
    assert relative(one.point.curvature().dense(), other.point.curvature().dense()) < 1e-7
    full_one, full_other = (m.full_at(m.theta, one.some_W()) for m in (one, other))
    assert relative(full_one.gradient(), full_other.gradient()) < 1e-12
    assert relative(full_one.curvature().dense(), full_other.curvature().dense()) < 1e-12


def trained(
    name: str, method: str | gnvpro.extend.Method, inputs: Tensor, targets: Tensor, weights: Tensor | None
) -> nn.Module:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.build().to(F64)
    model = gnvpro.train(
        model, inputs, targets, loss=case.loss, method=method, sample_weight=weights,
        theta_penalty=1e-2, head_penalty=1e-2, work=100,
    ).model  # fmt: skip
    return model.requires_grad_(False)


@pytest.mark.parametrize("method", ["gnvpro", "gauss-newton", "lbfgs-vpro"])
@pytest.mark.parametrize("name", NAMES[:3])
def test_the_trained_model_is_that_of_repeated_samples(name: str, method: str) -> None:
    case = drawn(name)
    one = trained(name, method, case.inputs, case.targets, COUNTS)
    other = trained(
        name, method, case.inputs.repeat_interleave(COUNTS, 0), case.targets.repeat_interleave(COUNTS, 0), None
    )
    assert relative(one(case.inputs), other(case.inputs)) < 1e-6


@pytest.mark.parametrize(
    "method",
    [
        gnvpro.methods.GNvpro(),
        gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(6)),
        gnvpro.methods.AdamVPro(batch_size=6),
        gnvpro.methods.TorchOptimizer(torch.optim.Adam),
        gnvpro.methods.TorchOptimizer(torch.optim.Adam, batch_size=6),
    ],
    ids=["gnvpro", "gnvpro in batches", "adam-vpro", "adam", "adam in batches"],
)
def test_a_sample_of_weight_zero_is_absent(method: gnvpro.extend.Method) -> None:
    case = drawn("mlp, multinomial")
    weights = torch.rand(len(COUNTS), dtype=F64) * (COUNTS > 0)
    kept = weights > 0
    one = trained("mlp, multinomial", method, case.inputs, case.targets, weights)
    other = trained("mlp, multinomial", method, case.inputs[kept], case.targets[kept], weights[kept])
    assert relative(one(case.inputs), other(case.inputs)) < 1e-9


def test_equal_weights_change_nothing() -> None:
    case = drawn("mlp, least squares")
    one = trained(
        "mlp, least squares", "gnvpro", case.inputs, case.targets, torch.full((len(COUNTS),), 1e300, dtype=F64)
    )
    other = trained("mlp, least squares", "gnvpro", case.inputs, case.targets, None)
    assert relative(one(case.inputs), other(case.inputs)) < 1e-9


def test_the_average_over_batches_is_the_whole() -> None:
    """Stochastic gradients then equal the weighted objective's on average."""
    torch.manual_seed(0)
    targets, outputs, weights = real(2)(torch.randn(12, 2)), torch.randn(12, 2, dtype=F64), torch.rand(6, dtype=F64)
    whole = Misfit.mean(HalfSquaredError(), targets, weights)  # two rows a sample
    parts = [
        whole.take(samples, 6).value(outputs.reshape(6, 2, 2)[samples].reshape(-1, 2))
        for samples in torch.randperm(6).split(2)
    ]
    assert sum(parts) / 3 == pytest.approx(whole.value(outputs), rel=1e-12)


def test_accuracy_is_a_share_in_any_batch() -> None:
    whole = Misfit.mean(Multinomial(), torch.eye(2, dtype=F64), torch.tensor([1.0, 9.0], dtype=F64))
    outputs = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=F64)
    assert whole.accuracy(outputs) == pytest.approx(0.1)
    assert whole.take(torch.tensor([0]), 2).accuracy(outputs[:1]) == 1.0


def test_validation_may_be_weighted_too() -> None:
    case = drawn("mlp, multinomial")
    arguments = {"loss": "multinomial", "work": 0}
    model = CASES["mlp, multinomial"].build().to(F64)
    repeated = (case.inputs.repeat_interleave(COUNTS, 0), case.targets.repeat_interleave(COUNTS, 0))
    one = gnvpro.train(model, case.inputs, case.targets, validation=(case.inputs, case.targets, COUNTS), **arguments)
    other = gnvpro.train(model, case.inputs, case.targets, validation=repeated, **arguments)
    assert one.history[-1].validation_loss == pytest.approx(other.history[-1].validation_loss, rel=1e-9)
    assert one.history[-1].validation_accuracy == pytest.approx(other.history[-1].validation_accuracy)


BAD = {
    "too few": (torch.ones(3), ValueError, r"^sample_weight must have shape \(20,\), one per sample, got \(3,\)"),
    "a column": (torch.ones(20, 1), ValueError, r"^sample_weight of shape \(20, 1\) is one per entry.*shape \(20,\)"),
    "negative": (1.0 - COUNTS, ValueError, r"^sample_weight must not be negative, got -2 for sample 1"),
    "all zero": (0.0 * COUNTS, ValueError, r"^sample_weight is zero for every sample"),
    "NaN": (torch.full((20,), torch.nan), ValueError, r"^sample_weight holds NaN"),
    "complex": (torch.ones(20, dtype=torch.complex64), TypeError, r"^sample_weight must be real"),
    "text": ("balanced", TypeError, r"^sample_weight must be a tensor or an array"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_wrong_weights_are_refused(bad: str) -> None:
    weights, exception, message = BAD[bad]
    case = drawn("mlp, multinomial")
    with pytest.raises(exception, match=message):
        gnvpro.train(case.model, case.inputs, case.targets, loss="multinomial", sample_weight=weights)


def test_rows_of_a_sample_share_its_weight() -> None:
    inputs = torch.randn(3, 2, 4, 4, dtype=F64)
    model = pixel_net(3).to(F64)
    weights = torch.tensor([1.0, 2.0, 3.0])
    done = gnvpro.train(model, inputs, pixel_labels(inputs), loss="multinomial", sample_weight=weights, work=20)
    assert done.history[-1].loss < done.history[0].loss
