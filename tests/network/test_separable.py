"""A model as features and head: the vector theta, rows, both ways to differentiate, and the work that is counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import CASES, F64, SkipNet, made, mlp
from checks import adjoint_gap, relative
from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.operators import LinearOperator
from gnvpro.network.find_head import find_head
from gnvpro.network.memory import Footprint
from gnvpro.network.passes import PassPlan
from gnvpro.network.separable import SeparableNetwork
from gnvpro.network.work import WorkMeter

WHOLE = PassPlan(1000)


def network_of(model, inputs):
    return SeparableNetwork(model, find_head(model, inputs[:2], None))


def linearized(network, theta, inputs, passes=WHOLE):
    return network.linearize(theta, inputs, passes, WorkMeter(len(inputs)))


@pytest.mark.parametrize("name", CASES)
def test_features_times_head_is_the_models_output(name):
    m = made(name)
    W = m.network.W()
    expected = m.network.rows(m.model(m.inputs).detach()).to(F64)
    Z = append_bias_column(linearized(m.network, m.theta, m.inputs).features, m.network.bias)
    tight = 1e-12 if m.case.dtype == F64 else 1e-5
    assert relative(Z @ W.T, expected) <= tight
    again = append_bias_column(m.network.features(m.theta, m.inputs, WHOLE), m.network.bias)
    assert relative(again @ W.T, expected) <= tight


@pytest.mark.parametrize(
    "name",
    ["mlp, multinomial", "cnn, multinomial", "pixels, multinomial", "sequences, least squares", "neural ode, logistic"],
)
def test_layer_formulas_and_autodiff_agree(name, monkeypatch):
    m = made(name)
    by_layers = m.network._by_layers(m.network.split(m.theta), m.inputs)
    # as for a model some of whose layers have no formula
    monkeypatch.setattr(m.network, "_by_layers", lambda params, inputs: None)
    by_autodiff = m.network.linearize_batch(m.network.split(m.theta), m.inputs)
    assert by_layers is not None
    d_theta = m.direction(m.theta)
    d_rows = m.direction(by_layers.features)
    assert relative(by_layers.features, by_autodiff.features) <= 1e-13
    assert relative(by_layers.jvp(d_theta), by_autodiff.jvp(d_theta)) <= 1e-12
    assert relative(by_layers.vjp(d_rows), by_autodiff.vjp(d_rows)) <= 1e-12


def test_which_models_take_which_path():
    for name in ("mlp, multinomial", "cnn, multinomial", "neural ode, logistic", "shared activation, least squares"):
        m = made(name)
        assert m.network._by_layers(m.network.split(m.theta), m.inputs) is not None
    m = made("autodiff, multinomial")
    assert m.network._by_layers(m.network.split(m.theta), m.inputs) is None


@pytest.mark.parametrize("chunk", [1, 4, 25, 100])
@pytest.mark.parametrize("name", ["mlp, multinomial", "autodiff, least squares"])
def test_chunks_of_samples_change_nothing(name, chunk):
    m = made(name)
    whole, pieces = (linearized(m.network, m.theta, m.inputs, PassPlan(size)) for size in (1000, chunk))
    d_theta, d_rows = m.direction(m.theta), m.direction(whole.features)
    torch.testing.assert_close(pieces.features, whole.features)
    torch.testing.assert_close(pieces.jvp(d_theta), whole.jvp(d_theta))
    torch.testing.assert_close(pieces.vjp(d_rows), whole.vjp(d_rows))


@pytest.mark.parametrize("passes", [WHOLE, PassPlan(4), PassPlan(4, kept=2)])
def test_each_pass_is_one_unit_of_work(passes):
    m = made("mlp, multinomial")
    meter = WorkMeter(len(m.inputs))
    linearization = m.network.linearize(m.theta, m.inputs, passes, meter)
    assert meter.work == 1
    linearization.jvp(m.theta)
    assert meter.work == 2
    linearization.vjp(m.direction(linearization.features))
    assert meter.work == 3
    m.network.features(m.theta, m.inputs, passes)
    assert meter.work == 3
    m.network.linearize(m.theta, m.inputs[:5], passes, meter)
    assert meter.work == pytest.approx(3 + 5 / 25)


def test_theta_is_what_is_trainable_outside_of_the_head():
    m = made("frozen weight, multinomial")
    assert m.network.names == ["0.bias", "2.weight", "2.bias"]
    assert m.network.n_theta == 5 + 20 + 4
    head = network_of(nn.Linear(2, 3), torch.zeros(4, 2))
    assert (head.n_theta, head.theta().shape) == (0, (0,))


def test_split_and_join_are_each_others_reverse():
    m = made("mlp, multinomial")
    theta = m.direction(m.theta)
    assert torch.equal(m.network.join(m.network.split(theta)), theta)
    parts = m.network.split(theta)
    missing = parts.pop("0.weight")
    assert torch.equal(m.network.join(parts)[: missing.numel()], torch.zeros(missing.numel(), dtype=F64))


@pytest.mark.parametrize("bias", [True, False])
def test_store_writes_theta_and_head_into_the_model(bias):
    model = mlp(3, bias=bias).double()
    inputs = torch.randn(4, 2, dtype=F64)
    network = network_of(model, inputs)
    theta, W = torch.randn_like(network.theta()), torch.randn_like(network.W())
    network.store(theta, W)
    assert torch.equal(network.theta(), theta)
    assert torch.equal(network.W(), W)
    expected = append_bias_column(network.features(theta, inputs, WHOLE), bias) @ W.T
    torch.testing.assert_close(model(inputs).detach(), expected)


def test_features_that_do_not_depend_on_a_parameter_have_a_zero_derivative_there():
    class Unused(SkipNet):
        def __init__(self):
            super().__init__(2)
            self.never = nn.Parameter(torch.ones(3))

    model = Unused().double()
    inputs = torch.randn(5, 2, dtype=F64)
    network = network_of(model, inputs)
    linearization = linearized(network, network.theta(), inputs)
    where = torch.zeros(network.n_theta, dtype=F64)
    start = sum(p.numel() for n, p in model.named_parameters() if n in network.names[: network.names.index("never")])
    where[start : start + 3] = 1
    assert torch.equal(linearization.jvp(where), torch.zeros_like(linearization.jvp(where)))
    J = LinearOperator((network.n_theta,), tuple(linearization.features.shape), linearization.jvp, linearization.vjp)
    assert adjoint_gap(J) <= 1e-12


def test_a_hook_on_the_model_is_part_of_the_features():
    model = mlp(2).double()
    model.register_forward_pre_hook(lambda module, args: (3 * args[0],))
    inputs = torch.randn(5, 2, dtype=F64)
    network = network_of(model, inputs)
    Z = append_bias_column(linearized(network, network.theta(), inputs).features, True)
    torch.testing.assert_close(Z @ network.W().T, model(inputs).detach())


def test_autodiff_works_where_gradients_are_switched_off():
    m = made("autodiff, multinomial")
    with torch.no_grad():
        off = linearized(m.network, m.theta, m.inputs)
        d = off.jvp(m.direction(m.theta))
    torch.testing.assert_close(d, linearized(m.network, m.theta, m.inputs).jvp(m.direction(m.theta)))
    assert all(p.grad is None for p in m.model.parameters())


def test_images_are_taken_a_few_at_a_time_and_vectors_all_at_once():
    nothing = Footprint(0, 0)
    assert PassPlan.within(1e9, nothing, torch.zeros(200, 3, 32, 32)).size == 97
    assert PassPlan.within(1e9, nothing, torch.zeros(2, 3, 400, 400)).size == 1
    assert PassPlan.within(1e9, nothing, torch.zeros(7, 55)).size == 7


def test_whether_there_is_a_jacobian_is_tried_once_for_each_shape_of_samples(monkeypatch):
    inputs = torch.ones(4, 2, dtype=F64)
    network = network_of(mlp(2).double(), inputs)
    tried = []
    plain = network._by_layers

    def by_layers(params, few):
        tried.append(few.shape)
        return plain(params, few)

    monkeypatch.setattr(network, "_by_layers", by_layers)
    assert network.why_no_jacobian(inputs) is None
    assert network.why_no_jacobian(inputs[1:]) is None
    assert tried == [(2, 2)]
    why = network.why_no_jacobian(torch.ones(4, 5, dtype=F64))
    assert why is not None
    assert network.why_no_jacobian(torch.ones(4, 5, dtype=F64)) == why
    assert tried == [(2, 2), (2, 5)]
