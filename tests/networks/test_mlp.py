"""The multilayer perceptron: which layers it has."""

from __future__ import annotations

import torch
from torch import nn

from gnvpro.networks import MLP


def test_mlp_alternates_linear_layers_and_activations() -> None:
    net = MLP(3, [5, 4], nn.ReLU, n_outputs=2)
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert net(torch.zeros(7, 3)).shape == (7, 2)
    assert MLP(3, [5, 4])(torch.zeros(7, 3)).shape == (7, 4)
