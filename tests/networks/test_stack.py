"""A slice of a network, and the sizes of all."""

from __future__ import annotations

import pytest
from torch import nn

from gnvpro.networks import MLP, ConvNet, NeuralODE, ResNet


@pytest.mark.parametrize("net", [MLP(3, [5, 4], nn.ReLU, n_outputs=2), ConvNet()])
def test_a_slice_is_a_plain_sequential_on_the_same_layers(net: nn.Sequential) -> None:
    features = net[:-1]
    assert type(features) is nn.Sequential
    assert features[0] is net[0]
    assert len(features) == len(net) - 1
    assert isinstance(net[-1], nn.Linear)


def test_sizes_are_those_of_the_paper() -> None:
    def count(net: nn.Module) -> int:
        return sum(p.numel() for p in net.parameters())

    assert count(NeuralODE(55, 8, depth=8)) == 1096
    assert count(NeuralODE(3, 16, depth=8)) == 2512
    assert count(ConvNet()[:-1]) == 53_600
    assert count(MLP(2, [4, 4, 2])) == 42
    assert [tuple(p.shape) for p in ResNet(2, 4, 8, 5.0).parameters()] == [(4, 2), (4,), (8, 4, 4), (8, 4)]
