"""Tikhonov penalties: values, adjoints, and the same meaning at every depth."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from checks import F64, adjoint_gap, against_dense
from gnvpro import Tikhonov, time_differences
from gnvpro.extend import LinearOperator
from gnvpro.networks import MLP, NeuralODE
from gnvpro.problem.penalties import InputDifferences


def parameters(model):
    return [(name, tuple(p.shape)) for name, p in model.named_parameters()]


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def ode(depth=3):
    return nn.Sequential(nn.Linear(2, 3, dtype=F64), NeuralODE(3, 2, depth=depth, final_time=2.0, dtype=F64))


def test_without_an_operator_the_penalty_is_on_theta_itself():
    penalty = Tikhonov(0.3).bind(MLP(2, [3]), [("a", (2, 2)), ("b", (1,))])
    theta = torch.tensor([1.0, -2.0, 3.0, 0.5, 2.0], dtype=F64)
    assert penalty.value(theta) == pytest.approx(0.15 * float(theta @ theta))
    torch.testing.assert_close(penalty.hessian_mv(theta), 0.3 * theta)


def test_time_differences_is_the_matrix_of_differences_over_the_root_of_h():
    model = ode()
    B = time_differences(model, parameters(model))
    h = 2.0 / 3
    blocks = []
    for name, p in model.named_parameters():
        if name in ("1.K", "1.b"):
            nodes = p.shape[0]
            D = torch.zeros(nodes - 1, nodes, dtype=F64)
            for j in range(nodes - 1):
                D[j, j], D[j, j + 1] = -1 / math.sqrt(h), 1 / math.sqrt(h)
            blocks.append(torch.kron(D, torch.eye(p[0].numel(), dtype=F64)))
        else:
            blocks.append(torch.eye(p.numel(), dtype=F64))
    assert against_dense(B, torch.block_diag(*blocks)) <= 1e-15
    assert adjoint_gap(B) <= 1e-14


def test_a_nodal_parameter_constant_in_time_costs_nothing_and_the_others_their_square():
    model = ode()
    with torch.no_grad():
        model[1].K[:] = model[1].K[0]
        model[1].b[:] = 0.7
    others = sum(float(p.detach().square().sum()) for name, p in model.named_parameters() if name not in ("1.K", "1.b"))
    penalty = Tikhonov(2.0, time_differences).bind(model, parameters(model))
    assert penalty.value(flat(model)) == pytest.approx(others, rel=1e-13)


def in_time(depth, path):
    net = NeuralODE(2, 2, depth=depth, final_time=2.0, dtype=F64)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        for j in range(depth + 1):
            net.K[j] = path(2.0 * j / depth)
    return Tikhonov(2.0, time_differences).bind(net, parameters(net)).value(flat(net))


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_path_linear_in_time_costs_the_same_at_every_depth(depth):
    assert in_time(depth, lambda t: 3.0 * t) == pytest.approx(4 * 3.0**2 * 2.0, rel=1e-12)  # 4 entries, |3|^2, T = 2


def test_a_curved_path_costs_its_integral_to_second_order_in_the_step():
    exact = 4 * sum(math.cos((j + 0.5) / 5e3) ** 2 for j in range(10_000)) / 5e3
    errors = [abs(in_time(depth, math.sin) - exact) for depth in (8, 16, 32)]
    assert math.log2(errors[0] / errors[1]) > 1.9
    assert math.log2(errors[1] / errors[2]) > 1.9


def test_prolongation_leaves_the_penalty_alone():
    coarse = NeuralODE(2, 3, depth=2, final_time=4.0, dtype=F64)
    with torch.no_grad():
        coarse.K += torch.randn(coarse.K.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    fine = coarse.prolongated()
    values = [Tikhonov(1.0, time_differences).bind(m, parameters(m)).value(flat(m)) for m in (coarse, fine)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_frozen_parameters_are_not_penalised():
    model = ode()
    penalty = Tikhonov(2.0, time_differences).bind(model, [("1.b_in", (2,))])
    assert penalty.value(torch.tensor([3.0, 4.0], dtype=F64)) == pytest.approx(25.0)


def test_an_operator_of_ones_own_is_used():
    row = LinearOperator((3,), (1,), lambda x: x.sum()[None], lambda y: y.expand(3))
    penalty = Tikhonov(1.0, row).bind(MLP(1, [1]), [("a", (3,))])
    assert penalty.value(torch.tensor([1.0, 2.0, 3.0], dtype=F64)) == pytest.approx(18.0)


def test_an_operator_for_another_theta_is_refused():
    row = LinearOperator((4,), (1,), lambda x: x.sum()[None], lambda y: y.expand(4))
    with pytest.raises(ValueError, match=r"theta_penalty.*3 entries"):
        Tikhonov(1.0, row).bind(MLP(1, [1]), [("a", (3,))])


def test_an_operator_that_is_neither_operator_nor_function_is_refused():
    with pytest.raises(TypeError, match=r"theta_penalty.*LinearOperator.*Tensor"):
        Tikhonov(1.0, torch.eye(3)).bind(MLP(1, [1]), [("a", (3,))])  # type: ignore[arg-type]


def test_time_differences_without_time_is_refused_with_the_remedy():
    model = MLP(2, [3])
    with pytest.raises(ValueError, match="NeuralODE"):
        time_differences(model, parameters(model))


def test_input_differences_is_the_identity_above_the_differences_along_the_inputs_of_the_first_layer():
    model = nn.Sequential(nn.LayerNorm(4), MLP(4, [3, 2]))
    B = InputDifferences(9.0)(model, parameters(model))
    n = sum(p.numel() for p in model.parameters())
    D = 3 * torch.eye(4, dtype=F64).diff(dim=0)
    differences = torch.zeros(9, n, dtype=F64)
    differences[:, 8:20] = torch.block_diag(D, D, D)  # after the weight and the bias of the norm
    assert against_dense(B, torch.cat([torch.eye(n, dtype=F64), differences])) <= 1e-15
    assert adjoint_gap(B) <= 1e-14


@pytest.mark.parametrize("model", [nn.Conv2d(1, 1, 1), MLP(2, [3])])
def test_input_differences_without_weights_of_a_first_layer_is_refused_with_the_remedy(model):
    with pytest.raises(ValueError, match=r"nn\.Linear in theta"):
        InputDifferences(1.0)(model, [("weight", (1, 1, 1, 1)), ("0.bias", (3,))])


def test_the_hessian_is_the_matrix_of_its_products_also_where_vmap_cannot_run_the_operator():
    model = ode()
    theta = flat(model)
    differences = time_differences(model, parameters(model))

    def through_numbers(v):  # a product that leaves torch
        return torch.tensor((differences.mv(v)).tolist(), dtype=F64)

    by_hand = LinearOperator(differences.domain, differences.codomain, through_numbers, differences.rmv)
    for operator in (time_differences, by_hand):
        penalty = Tikhonov(0.7, operator).bind(model, parameters(model))
        matrix = penalty.hessian(theta)
        torch.testing.assert_close(matrix @ theta, penalty.hessian_mv(theta), rtol=1e-13, atol=1e-14)
        assert torch.equal(matrix[3], penalty.hessian_mv(torch.eye(len(theta), dtype=F64)[3]))
