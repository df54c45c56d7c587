"""A problem with its network, ready to be solved; and an entry of the catalogue, which makes one for every seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gnvpro import pde
from gnvpro.networks import MLP


@dataclass(frozen=True)
class PosedEquations:
    """A problem with its network, ready to be solved."""

    field: pde.Field
    equations: Sequence[pde.Equation]
    exact: Callable[[Tensor], Tensor]
    check: Tensor  # points for the error
    box: pde.points.Box  # for pictures: the first two coordinates vary, the others are in the middle
    belongs: Callable[[Tensor], Tensor] | None = None  # where the domain is not all of the box
    constants: dict[str, tuple[pde.Constant, float]] = field(
        default_factory=dict
    )  # unknown ones, and their true values


@dataclass(frozen=True)
class CatalogueEntry:
    """An entry of the catalogue."""

    name: str
    title: str
    summary: str
    pose: Callable[[int], PosedEquations]
    seconds: float
    published: str
    goal: float | None = None  # the error to reach
    relative: bool = False  # whether errors are relative to the solution
    axes: tuple[str, str] = ("x", "y")


def shallow(
    n_inputs: int,
    seed: int,
    widths: Sequence[int] = (64,),
    spread: Sequence[float] | None = None,
    activation: Callable[[], nn.Module] = nn.Tanh,
) -> nn.Module:
    """A network; `spread` multiplies the first weights of each input, the largest one the biases."""
    torch.manual_seed(seed)
    network = MLP(n_inputs, widths, activation, dtype=torch.float64)
    if spread is not None:
        with torch.no_grad():
            network[0].weight.mul_(torch.tensor(spread, dtype=torch.float64))
            network[0].bias.mul_(max(spread))
    return network


def xavier(n_inputs: int, seed: int, widths: Sequence[int], first: nn.Module | None = None) -> nn.Module:
    """A deep tanh network with Xavier's normal weights and first biases from U(-1, 1), after a first layer if there is one."""
    torch.manual_seed(seed)
    network = MLP(n_inputs, widths, dtype=torch.float64)
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    nn.init.uniform_(network[0].bias, -1.0, 1.0)
    return network if first is None else nn.Sequential(first, *network)


def fresh(box: pde.points.Box, seed: int, count: int = 9000) -> Tensor:
    """Points for the error, never trained on."""
    return box.inside(count, 10_000 + seed, "uniform").points
