"""Domains and networks that the tests of equations share."""

from __future__ import annotations

import torch
from torch import nn

import gnvpro
from gnvpro import pde

SQUARE = pde.points.Box([0, 0], [1, 1])
LINE = pde.points.Box([0.0], [1.0])
ENDS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def network(n_inputs: int, widths: list[int], seed: int = 0) -> nn.Module:
    """An MLP of tanh units in float64."""
    torch.manual_seed(seed)
    return gnvpro.networks.MLP(n_inputs, widths, nn.Tanh, dtype=torch.float64)
