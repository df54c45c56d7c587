"""Losses against torch's own, by autograd, and what they accept as targets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import jacrev, vmap
from torch.nn import functional as F

from cases import Poisson, PseudoHuber
from gnvpro.extend import Loss
from gnvpro.losses import HalfSquaredError, Logistic, Multinomial
from gnvpro.problem.loss import get_loss, prepare_targets
from gnvpro.problem.misfit import Misfit

F64 = torch.float64


def simplex(rows, classes):
    return torch.softmax(2 * torch.randn(rows, classes, dtype=F64, generator=torch.Generator().manual_seed(1)), 1)


def normal(rows, columns):
    return torch.randn(rows, columns, dtype=F64, generator=torch.Generator().manual_seed(2))


LOSSES = {
    "half squared error": (HalfSquaredError(), normal(6, 3), lambda x, c: 0.5 * F.mse_loss(x, c, reduction="sum")),
    "logistic": (
        Logistic(),
        torch.rand(6, 1, dtype=F64, generator=torch.Generator().manual_seed(3)),
        lambda x, c: F.binary_cross_entropy_with_logits(x, c, reduction="sum"),
    ),
    "multinomial": (Multinomial(), simplex(6, 3), lambda x, c: F.cross_entropy(x[None], c[None])),
    "poisson": (Poisson(), normal(6, 2).exp(), lambda x, c: F.poisson_nll_loss(x, c, reduction="sum")),
    "pseudo-huber": (PseudoHuber(), normal(6, 2), lambda x, c: (torch.sqrt(1 + (x - c) ** 2) - 1).sum()),
}
each_loss = pytest.mark.parametrize("name", LOSSES)


@each_loss
def test_value_is_torchs(name):
    loss, targets, row = LOSSES[name]
    outputs = 2 * normal(*targets.shape)
    expected = torch.stack([row(x, c) for x, c in zip(outputs, targets, strict=True)])
    torch.testing.assert_close(loss.value(outputs, targets), expected, rtol=1e-13, atol=1e-13)


@each_loss
def test_gradient_and_hessian_are_autograds(name):
    loss, targets, row = LOSSES[name]
    outputs, d = 2 * normal(*targets.shape), normal(*targets.shape).flip(0)
    torch.testing.assert_close(loss.gradient(outputs, targets), vmap(jacrev(row))(outputs, targets))
    H = vmap(jacrev(jacrev(row)))(outputs, targets)
    torch.testing.assert_close(loss.hessian(outputs, targets)(d), torch.einsum("nij,nj->ni", H, d))


@each_loss
def test_hessian_does_not_change_its_argument(name):
    loss, targets, _ = LOSSES[name]
    d = normal(*targets.shape)
    before = d.clone()
    loss.hessian(normal(*targets.shape), targets)(d)
    assert torch.equal(d, before)


@each_loss
def test_misfit_is_the_mean_and_its_derivatives(name):
    loss, targets, row = LOSSES[name]
    outputs, d = normal(*targets.shape), normal(*targets.shape).flip(0)
    misfit = Misfit.mean(loss, targets)

    def mean(X):
        return torch.stack([row(x, c) for x, c in zip(X, targets, strict=True)]).mean()

    assert misfit.value(outputs) == pytest.approx(float(mean(outputs)), rel=1e-13)
    torch.testing.assert_close(misfit.gradient(outputs), jacrev(mean)(outputs))
    H = jacrev(jacrev(mean))(outputs).reshape(d.numel(), d.numel())
    torch.testing.assert_close(misfit.hessian(outputs)(d).reshape(-1), H @ d.reshape(-1))


def test_weights_weigh_the_rows():
    loss, targets, row = LOSSES["multinomial"]
    weights = torch.arange(1.0, 7.0, dtype=F64)[:, None] / 21
    outputs = normal(6, 3)
    expected = sum(float(w) * float(row(x, c)) for w, x, c in zip(weights, outputs, targets, strict=True))
    assert Misfit(loss, targets, weights).value(outputs) == pytest.approx(expected, rel=1e-13)


@given(st.floats(-700, 700))
def test_logistic_is_exact_far_out_and_never_overflows(x):
    one = torch.ones(1, 1, dtype=F64)
    value = float(Logistic().value(x * one, one))
    # log(1 + e^-x), whose leading term far out is e^-x
    expected = torch.log1p(torch.exp(-torch.tensor(abs(x), dtype=F64))).item() + max(-x, 0.0)
    assert value == pytest.approx(expected, rel=1e-12, abs=0)
    assert 0 <= float(Logistic().hessian(x * one, one)(one)) <= 0.25 * (1 + 1e-15)


@given(st.lists(st.floats(-800, 800), min_size=3, max_size=3), st.integers(0, 2), st.floats(-1e3, 1e3))
def test_multinomial_is_finite_and_blind_to_a_common_shift(x, label, shift):
    outputs = torch.tensor([x], dtype=F64)
    c = F.one_hot(torch.tensor([label]), 3).to(F64)
    loss = Multinomial()
    assert torch.isfinite(loss.value(outputs, c)).all()
    torch.testing.assert_close(loss.value(outputs + shift, c), loss.value(outputs, c), rtol=1e-12, atol=1e-11)
    assert float(loss.hessian(outputs, c)(torch.ones(1, 3, dtype=F64)).abs().max()) <= 1e-15
    assert float(loss.gradient(outputs, c).sum().abs()) <= 1e-15


def test_labels_one_hot_and_soft_labels_are_the_same_targets():
    labels = torch.tensor([2, 0, 1, 2])
    hot = F.one_hot(labels, 3)
    for given_as in (labels, labels.to(torch.int32), labels.double(), labels[:, None], hot, hot.float(), hot.bool()):
        assert torch.equal(prepare_targets(Multinomial(), given_as, 3), hot.to(F64))
    smooth = 0.9 * hot.double() + 0.1 / 3
    assert torch.equal(prepare_targets(Multinomial(), smooth, 3), smooth)


def test_logistic_takes_labels_booleans_and_probabilities():
    expected = torch.tensor([[1.0], [0.0], [1.0]], dtype=F64)
    for given_as in (torch.tensor([1, 0, 1]), torch.tensor([True, False, True]), expected, expected.float()):
        assert torch.equal(prepare_targets(Logistic(), given_as, 1), expected)
    half = torch.tensor([0.5, 0.25])
    assert torch.equal(prepare_targets(Logistic(), half, 1), half[:, None].to(F64))


def test_accuracy_counts_what_is_classified_right():
    outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]], dtype=F64)
    hot = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=F64)
    assert Misfit.mean(Multinomial(), hot).accuracy(outputs) == pytest.approx(2 / 3)
    logits = torch.tensor([[2.0], [-1.0], [-3.0], [4.0]], dtype=F64)
    assert Misfit.mean(Logistic(), torch.tensor([[1.0], [0.0], [1.0], [1.0]], dtype=F64)).accuracy(logits) == 0.75
    assert Misfit.mean(HalfSquaredError(), hot).accuracy(outputs) is None


def test_names_give_losses_and_objects_are_taken_as_they_are():
    assert isinstance(get_loss("multinomial"), Multinomial)
    mine = PseudoHuber()
    assert get_loss(mine) is mine
    assert isinstance(mine, Loss)


class RowGradient(PseudoHuber):
    def gradient(self, outputs, targets):
        return super().gradient(outputs, targets).sum(1)


class OneValue(PseudoHuber):
    def value(self, outputs, targets):
        return super().value(outputs, targets).mean()


class MatrixHessian(PseudoHuber):
    def hessian(self, outputs, targets):
        return torch.ones_like(outputs)


class OnlyThree:
    """An object with the three methods that is no `Loss`."""

    def value(self, outputs, targets):
        return (outputs - targets).square().sum(1)

    def gradient(self, outputs, targets):
        return 2 * (outputs - targets)

    def hessian(self, outputs, targets):
        return lambda d_outputs: 2 * d_outputs


class WithAccuracy(OnlyThree):
    def accuracy(self, outputs, targets):
        return (outputs > 0).all(1)


def test_an_object_with_the_three_methods_gets_the_other_members():
    loss, (outputs, targets) = get_loss(OnlyThree()), (normal(4, 2), normal(4, 2))
    assert isinstance(loss, Loss)
    assert loss.name == "OnlyThree"
    assert not loss.is_least_squares
    assert loss.accuracy(outputs, targets) is None
    assert loss.hessian_factors(outputs, targets) is None
    root = loss.hessian_root(outputs, targets)
    assert torch.allclose(root @ root.mT, 2 * torch.eye(2, dtype=root.dtype).expand(4, 2, 2))


def test_what_an_object_offers_beside_the_three_methods_is_used():
    loss = get_loss(WithAccuracy())
    assert loss.accuracy(torch.ones(1, 2), torch.ones(1, 2)).item() is True


@pytest.mark.parametrize(
    ("loss", "method"), [(RowGradient(), "gradient"), (OneValue(), "value"), (MatrixHessian(), "hessian")]
)
def test_a_loss_of_the_wrong_shape_is_told_which_method_is_wrong(loss, method):
    with pytest.raises(ValueError, match=rf"loss .*{method}"):
        prepare_targets(loss, normal(5, 2), 2)
