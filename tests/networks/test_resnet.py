"""The residual network computes its equations."""

from __future__ import annotations

import torch

from checks import F64, randomized
from gnvpro.networks import ResNet


def test_resnet_computes_euler_steps() -> None:
    net, y = randomized(ResNet(3, 4, depth=2, final_time=3.0, dtype=F64)), torch.randn(5, 3, dtype=F64)
    assert isinstance(net, ResNet)
    u = torch.tanh(y @ net.K_in.T + net.b_in)
    for K, b in zip(net.K, net.b, strict=True):
        u = u + 1.5 * torch.tanh(u @ K.T + b)
    torch.testing.assert_close(net(y), u, rtol=1e-13, atol=1e-14)
