"""What an experiment is made of, as frozen data: sets, network, loss, penalties, and the settings of each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gnvpro
from gnvpro.data import Split
from gnvpro.head.eliminator import Eliminator

TITLES = {
    "gnvpro": "GNvpro",
    "gauss-newton": "Gauss-Newton",
    "lbfgs-vpro": "L-BFGSvpro",
    "adam": "ADAM",
    "nesterov": "Nesterov",
}


@dataclass(frozen=True)
class Loaded:
    """The three sets, where they come from, and what a figure needs to know about their samples."""

    split: Split
    source: str
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Training:
    """How one method trains in one experiment; the names are those of `gnvpro.train`."""

    work: float
    depth: int | None = None  # of the network at the first level, where depth can be chosen
    levels: int = 1
    solver: str = "auto"
    scaling: float | None = None  # of exact steps, see `gnvpro.DenseSettings`
    max_rank: int = 20
    rtol: float = 1e-2
    iterations: int | None = None
    batch_size: int | None = None
    iterations_per_batch: int = 3
    sweeps: int | None = None
    learning_rate: float = 1e-3
    keep: str = "last"

    def least_work(self, head: nn.Linear, loss: str) -> float:
        """What a start and one iteration cost at least, at each level.

        That is a forward pass and the gradient, a Krylov space of one dimension, a trial and its gradient; or, with
        `solver="dense"`, a forward pass and the rows of the Jacobian, a trial and, for least squares, the probe beside it.
        """
        if self.solver != "dense":
            return 6.0 * self.levels
        least_squares = loss == "least_squares"
        rows = min(head.in_features, head.out_features) if least_squares else head.in_features
        return (2.0 + rows + least_squares) * self.levels


@dataclass(frozen=True)
class Settings:
    """All methods of an experiment, and what they share."""

    methods: Mapping[str, Training]
    theta_penalty: float
    head_penalty: float
    time_penalty: bool = False  # whether the penalty on nodal weights is on their differences in time
    input_spread: float | None = None  # inputs are centred and scaled to this standard deviation, by one constant
    eliminator: Eliminator | None = None

    def with_solver(self, solver: str) -> Settings:
        """The same, with another way to make the steps of Gauss-Newton methods."""
        methods = {name: dataclasses.replace(training, solver=solver) for name, training in self.methods.items()}
        return dataclasses.replace(self, methods=methods)

    def penalty(self) -> gnvpro.Tikhonov:
        """The penalty on theta."""
        return gnvpro.Tikhonov(self.theta_penalty, gnvpro.time_differences if self.time_penalty else None)


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str
    title: str
    summary: str
    load: Callable[[int, Path | None], Loaded]
    network: Callable[[int, int | None], nn.Module]  # from the number of inputs and the depth
    loss: str
    paper: Settings  # as the paper states them, with its Krylov solver
    recommended: Settings
    classes: tuple[str, ...] = ()
    snapshots: bool = False  # whether features are kept on the way
    study: Callable[[nn.Module, Loaded, Settings, int], dict[str, np.ndarray]] | None = None

    @property
    def head(self) -> nn.Linear:
        """The last layer, of which only the size can be asked."""
        with torch.device("meta"):
            *_, head = self.network(1, None).modules()
        assert isinstance(head, nn.Linear)
        return head

    def settings(self, paper: bool) -> Settings:
        """The paper's settings or ours."""
        return self.paper if paper else self.recommended


def as_json(settings: Settings, method: str) -> dict[str, Any]:
    """The settings of one method as plain values."""
    return {
        **dataclasses.asdict(settings.methods[method]),
        "theta_penalty": settings.theta_penalty,
        "theta_penalty_operator": "time differences" if settings.time_penalty else "identity",
        "head_penalty": settings.head_penalty,
        "input_spread": settings.input_spread,
        "eliminator": None if settings.eliminator is None else repr(settings.eliminator),
    }
