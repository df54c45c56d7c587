"""The convolutional network starts as stated."""

from __future__ import annotations

import torch

from checks import F64
from gnvpro.networks import ConvNet


def test_convnet_starts_kaiming_uniform() -> None:
    torch.manual_seed(0)
    for weight in (p for p in ConvNet(dtype=F64).parameters() if p.dim() == 4):
        bound = (6 / weight[0].numel()) ** 0.5
        assert 0.99 * bound < weight.abs().max() <= bound
        assert abs(weight.var() / (bound**2 / 3) - 1) < 0.05
