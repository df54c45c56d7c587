"""Properties of all flows: derivatives against autodiff, initial weights, shapes, and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from against_autodiff import CHECKS, Build, Case, frozen
from checks import F64
from gnvpro.network.derivatives.blocks import OuterBlock
from gnvpro.networks import NeuralODE, ResNet

CASES: dict[str, Build] = {
    "neural ode": (lambda: NeuralODE(5, 4, depth=3), (7, 5)),
    "neural ode, one step": (lambda: NeuralODE(5, 4, depth=1, final_time=1.0), (7, 5)),
    "neural ode, K frozen": (lambda: frozen(NeuralODE(5, 4, depth=2), "K"), (7, 5)),
    "neural ode, b frozen": (lambda: frozen(NeuralODE(5, 4, depth=2), "b", "K_in"), (7, 5)),
    "neural ode, flow frozen": (lambda: frozen(NeuralODE(5, 4, depth=2), "b", "K"), (7, 5)),
    "neural ode, opening frozen": (lambda: frozen(NeuralODE(5, 4, depth=2), "b_in", "K_in"), (7, 5)),
    "neural ode after a layer": (lambda: nn.Sequential(nn.Linear(3, 5), NeuralODE(5, 4, depth=2)), (7, 3)),
    "resnet": (lambda: ResNet(5, 4, depth=3, final_time=2.0), (7, 5)),
    "resnet, K frozen": (lambda: frozen(ResNet(5, 4, depth=3, final_time=2.0), "K", "b_in"), (7, 5)),
    "resnet, flow frozen": (lambda: frozen(ResNet(5, 4, depth=3, final_time=2.0), "K", "b"), (7, 5)),
    "resnet after a layer": (lambda: nn.Sequential(nn.Linear(3, 5), ResNet(5, 4, depth=2, final_time=2.0)), (7, 3)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch.func.jvp
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_against_autodiff(name: str, check: Callable[[Case], None]) -> None:
    check(Case(CASES[name]))


@pytest.mark.parametrize("size", [1, 2**20])  # bytes: a step at a time, all steps
@pytest.mark.parametrize("name", ["neural ode", "resnet"])
def test_blocks_of_steps_change_nothing(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnvpro.networks.flow.BLOCK_BYTES", size)
    for check in CHECKS[1:]:
        check(Case(CASES[name]))


def test_outer_products_are_left_as_they_are() -> None:
    seeds = torch.randn(2, 7, 4)
    for net in (NeuralODE(5, 4, depth=3), ResNet(5, 4, depth=3, final_time=2.0)):
        made = net.linearize({name: p.detach() for name, p in net.named_parameters()}, torch.randn(7, 5))
        rows, _ = made.jacobian(seeds, False)
        assert isinstance(rows["K_in"], OuterBlock)
        # Each matrix of a residual network belongs to one step; a node of the Neural ODE takes part in six stages.
        assert isinstance(rows["K"], list if isinstance(net, ResNet) else Tensor)


@pytest.mark.parametrize("net", [NeuralODE(3, 4, 2, dtype=F64), ResNet(3, 4, 2, 1.0, dtype=F64)])
def test_flows_take_inputs_of_any_leading_shape(net: nn.Module) -> None:
    y = torch.randn(2, 5, 3, dtype=F64)
    features = net(y)
    assert features.shape == (2, 5, 4)
    torch.testing.assert_close(features[1, 3], net(y[1, 3]), rtol=1e-13, atol=1e-14)


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


def test_an_empty_network_is_refused() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 3, 4, 0"):
        NeuralODE(3, 4, depth=0)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (NeuralODE(3, 4, 2), "n_inputs=3, width=4, depth=2, final_time=4, gamma=0.0001"),
        (ResNet(3, 4, 2, 5.0), "n_inputs=3, width=4, depth=2, final_time=5"),
    ],
)
def test_repr_shows_the_sizes(net: nn.Module, words: str) -> None:
    assert words in repr(net)
