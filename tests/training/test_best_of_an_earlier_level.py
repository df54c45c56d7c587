"""The best model of a level that the run has left is not the network that it returns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gnvpro
from checks import F64
from gnvpro.networks import NeuralODE


@pytest.mark.parametrize("work", [0, 1, 4, 60])
def test_levels_batches_and_the_best_model_go_together(work: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4, dtype=F64)
    y = torch.sin(x[:, :2] * x[:, 1:3])
    model = nn.Sequential(NeuralODE(4, 5, depth=2), nn.Linear(5, 2)).double()
    method = gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(30), levels=2)
    result = gnvpro.train(
        model, x, y, loss="least_squares", method=method, keep="best", work=work, validation=(x[:9], y[:9])
    )
    assert result.model[0].depth == 4
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())
