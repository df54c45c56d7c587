"""A small network and samples for stochastic variable projection, and what its loops share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.problem.loss import HalfSquaredError, Multinomial, one_hot
from gnvpro.problem.misfit import Misfit


def network(outputs: int = 3, width: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def samples(n: int, kind: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(n, 4, dtype=torch.float64)
    if kind == "least_squares":
        return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x.square().sum(1)], 1)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long() + (x[:, 3] > 0.5).long()


def misfit_of(loss: str, targets: Tensor) -> Misfit:
    if loss == "least_squares":
        return Misfit.mean(HalfSquaredError(), targets)
    return Misfit.mean(Multinomial(), one_hot(targets, 3))


def exact(loss: object) -> gnvpro.heads.BatchHead:
    """The head of a batch alone, to the last digits."""
    return (
        gnvpro.heads.BatchHead(proximal=0.0)
        if loss == "least_squares"
        else gnvpro.heads.BatchHead(proximal=0.0, rtol=1e-13, steps=100)
    )


def train_a_little(
    criterion: gnvpro.ReducedLoss,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[tuple[Tensor, Tensor]],
    epochs: int = 3,
) -> None:
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(x, y).backward()
            optimizer.step()
