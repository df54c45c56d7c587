"""The networks: their equations, sizes, initial weights, and prolongation of the Neural ODE."""

from __future__ import annotations

import copy
import doctest
import importlib
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from gnvpro.networks import MLP, ConvNet, NeuralODE, ResNet

F64 = torch.float64


def randomized(net: nn.Module, scale: float = 0.5) -> nn.Module:
    torch.manual_seed(1)
    for p in net.parameters():
        nn.init.normal_(p, std=scale)
    return net


def neural_ode(depth: int, final_time: float = 1.0, scale: float = 0.5) -> NeuralODE:
    net = NeuralODE(3, 4, depth, final_time, dtype=F64)
    randomized(net, scale)
    return net


def test_neural_ode_computes_rk4_with_averaged_mid_stages() -> None:
    net, y = neural_ode(depth=2), torch.randn(5, 3, dtype=F64)
    h = 0.5

    def rate(t: float, u: Tensor) -> Tensor:
        left = int(t)
        right = min(left + 1, 2)
        K = (1 - (t - left)) * net.K[left] + (t - left) * net.K[right]
        b = (1 - (t - left)) * net.b[left] + (t - left) * net.b[right]
        return torch.tanh(u @ (K - K.T - 1e-4 * torch.eye(4, dtype=F64)).T + b)

    u = torch.tanh(y @ net.K_in.T + net.b_in)
    for j in (0.0, 1.0):  # time in units of h
        k1 = rate(j, u)
        k2 = rate(j + 0.5, u + h / 2 * k1)
        k3 = rate(j + 0.5, u + h / 2 * k2)
        k4 = rate(j + 1, u + h * k3)
        u = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    torch.testing.assert_close(net(y), u, rtol=1e-13, atol=1e-14)


def test_resnet_computes_euler_steps() -> None:
    net, y = randomized(ResNet(3, 4, depth=2, final_time=3.0, dtype=F64)), torch.randn(5, 3, dtype=F64)
    assert isinstance(net, ResNet)
    u = torch.tanh(y @ net.K_in.T + net.b_in)
    for K, b in zip(net.K, net.b, strict=True):
        u = u + 1.5 * torch.tanh(u @ K.T + b)
    torch.testing.assert_close(net(y), u, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("net", [NeuralODE(3, 4, 2, dtype=F64), ResNet(3, 4, 2, 1.0, dtype=F64)])
def test_flows_take_inputs_of_any_leading_shape(net: nn.Module) -> None:
    y = torch.randn(2, 5, 3, dtype=F64)
    features = net(y)
    assert features.shape == (2, 5, 4)
    torch.testing.assert_close(features[1, 3], net(y[1, 3]), rtol=1e-13, atol=1e-14)


def test_the_right_hand_side_is_antisymmetric_up_to_gamma() -> None:
    net = NeuralODE(3, 6, depth=3, gamma=0.1, dtype=F64)
    randomized(net)
    matrices, _ = net.stages(net.K, net.b)
    real = torch.linalg.eigvals(matrices).real
    torch.testing.assert_close(real, torch.full_like(real, -0.1), rtol=0, atol=1e-12)


def test_prolongation_keeps_the_ode_so_outputs_converge_at_order_four() -> None:
    # RK4 sees K(t), b(t) only at nodes and mid-points, and the average of two nodal values is the piecewise linear K(t)
    # at the mid-point. Prolongation samples the same piecewise linear functions, whose kinks stay on nodes: the ODE is
    # the same on every level and smooth inside each step. So the error is O(h^4) for any weights: a factor 16 a level.
    net, y = neural_ode(depth=2, scale=0.1), torch.randn(20, 3, dtype=F64)
    outputs = []
    for _ in range(5):
        outputs.append(net(y).detach())
        net = net.prolongated()
    changes = [float((fine - coarse).norm()) for coarse, fine in pairwise(outputs)]
    ratios = [a / b for a, b in pairwise(changes)]
    assert all(14 < ratio < 18 for ratio in ratios)
    assert 15.5 < ratios[-1] < 16.5


def test_prolongation_interpolates_nodal_weights_and_keeps_the_rest() -> None:
    coarse = neural_ode(depth=2, final_time=4.0)
    fine = coarse.prolongated()
    assert (fine.depth, fine.time_step, fine.gamma) == (4, 1.0, coarse.gamma)
    for name in NeuralODE.nodal_parameters:
        old, new = coarse.get_parameter(name), fine.get_parameter(name)
        assert torch.equal(new[::2], old)
        torch.testing.assert_close(new[1::2], (old[1:] + old[:-1]) / 2)
    assert torch.equal(fine.K_in, coarse.K_in)
    assert torch.equal(fine.b_in, coarse.b_in)
    with torch.no_grad():
        fine.K_in.zero_()
    assert coarse.K_in.abs().min() > 0, "the levels share no memory"


def test_prolongation_keeps_flags_type_and_mode() -> None:
    coarse = NeuralODE(3, 4, depth=2, dtype=F64).eval()
    coarse.K_in.requires_grad_(False)
    fine = coarse.prolongated()
    assert {p.dtype for p in fine.parameters()} == {F64}
    assert {name for name, p in fine.named_parameters() if not p.requires_grad} == {"K_in"}
    assert not fine.training
    assert coarse.train().prolongated().training


def test_prolongation_draws_no_random_numbers() -> None:
    net = NeuralODE(3, 4, depth=2)
    before = torch.get_rng_state()
    net.prolongated()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [NeuralODE, ResNet])
def test_initial_weights_have_variance_two_over_fan_in(kind: type[NeuralODE] | type[ResNet]) -> None:
    torch.manual_seed(0)
    net = kind(300, 100, depth=3, final_time=1.0, dtype=F64)
    for weights, fan_in in ((net.K_in, 300), (net.K[0], 100)):
        n = weights.numel()
        assert abs(weights.mean()) < 4 * (2 / fan_in / n) ** 0.5
        assert abs(weights.var() * fan_in / 2 - 1) < 4 * (2 / n) ** 0.5
    assert all(torch.equal(K, net.K[0]) for K in net.K), "drawn once, repeated over time"
    assert not net.b.any()
    assert not net.b_in.any()


def test_sizes_are_those_of_the_paper() -> None:
    def count(net: nn.Module) -> int:
        return sum(p.numel() for p in net.parameters())

    assert count(NeuralODE(55, 8, depth=8)) == 1096
    assert count(NeuralODE(3, 16, depth=8)) == 2512
    assert count(ConvNet()[:-1]) == 53_600
    assert count(MLP(2, [4, 4, 2])) == 42
    assert [tuple(p.shape) for p in ResNet(2, 4, 8, 5.0).parameters()] == [(4, 2), (4,), (8, 4, 4), (8, 4)]


def test_convnet_starts_kaiming_uniform() -> None:
    torch.manual_seed(0)
    for weight in (p for p in ConvNet(dtype=F64).parameters() if p.dim() == 4):
        bound = (6 / weight[0].numel()) ** 0.5
        assert 0.99 * bound < weight.abs().max() <= bound
        assert abs(weight.var() / (bound**2 / 3) - 1) < 0.05


@pytest.mark.parametrize("net", [MLP(3, [5, 4], nn.ReLU, n_outputs=2), ConvNet()])
def test_a_slice_is_a_plain_sequential_on_the_same_layers(net: nn.Sequential) -> None:
    features = net[:-1]
    assert type(features) is nn.Sequential
    assert features[0] is net[0]
    assert len(features) == len(net) - 1
    assert isinstance(net[-1], nn.Linear)


def test_mlp_alternates_linear_layers_and_activations() -> None:
    net = MLP(3, [5, 4], nn.ReLU, n_outputs=2)
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert net(torch.zeros(7, 3)).shape == (7, 2)
    assert MLP(3, [5, 4])(torch.zeros(7, 3)).shape == (7, 4)


@pytest.mark.parametrize("net", [NeuralODE(3, 4, 2), ResNet(3, 4, 2, 1.0), MLP(3, [4]), ConvNet()])
def test_networks_can_be_copied_and_saved(net: nn.Module) -> None:
    twin = copy.deepcopy(net)
    randomized(twin)
    twin.load_state_dict(net.state_dict())
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (NeuralODE(3, 4, 2), "n_inputs=3, width=4, depth=2, final_time=4, gamma=0.0001"),
        (ResNet(3, 4, 2, 5.0), "n_inputs=3, width=4, depth=2, final_time=5"),
    ],
)
def test_repr_tells_the_sizes(net: nn.Module, words: str) -> None:
    assert words in repr(net)


def test_an_empty_network_is_refused() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 3, 4, 0"):
        NeuralODE(3, 4, depth=0)


@pytest.mark.parametrize("name", ["neural_ode", "resnet", "mlp", "convnet"])
def test_docstring_examples_run(name: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"gnvpro.networks.{name}"))
    assert attempted > 0
    assert failed == 0
