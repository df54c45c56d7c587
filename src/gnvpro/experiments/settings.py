"""Parts of an experiment as frozen data: sets, network, loss, penalties, and the settings of each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import gnvpro
from gnvpro.data import Split
from gnvpro.methods.auto import Auto
from gnvpro.methods.gnvpro import GaussNewton, GNvpro
from gnvpro.methods.protocol import Method, Solver
from gnvpro.methods.step_solvers import Hybrid, Krylov
from gnvpro.methods.stochastic import TorchOptimizer
from gnvpro.problem.penalties import InputDifferences, OperatorFactory


@dataclass(frozen=True)
class ThreeSets:
    """The three sets, their source, and what a figure needs to know about their samples."""

    split: Split
    source: str
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Training:
    """Settings of one method in one experiment."""

    method: Method
    work: float
    depth: int | None = None  # of the network at the first level, if depth can be chosen
    levels: int = 1
    iterations: int | None = None
    keep: str = "last"
    seconds: float | None = None


@dataclass(frozen=True)
class Settings:
    """All methods of an experiment, and what they share."""

    methods: Mapping[str, Training]
    theta_penalty: float
    head_penalty: float
    time_penalty: bool = False  # whether the penalty on nodal weights is on their differences in time
    roughness: float = 0.0  # of the first layer's weights along the inputs, see `InputDifferences`
    input_spread: float | None = None  # inputs are centred and scaled to this standard deviation, by one constant
    scale_columns: bool = False  # each input is centred and scaled to standard deviation one, by the training set

    def adjusted(
        self, theta_penalty: float | None = None, head_penalty: float | None = None, **changed: Any
    ) -> Settings:
        """Return a copy with other penalties, and with other settings in the methods that have them (see `adjusted`)."""
        methods = {name: adjusted(training, **changed) for name, training in self.methods.items()}
        return having(self, methods=methods, theta_penalty=theta_penalty, head_penalty=head_penalty)

    def penalty(self) -> gnvpro.Tikhonov:
        """The penalty on theta."""
        return gnvpro.Tikhonov(self.theta_penalty, self.operator())

    def operator(self) -> OperatorFactory | None:
        """Return the operator that the penalty on theta applies first; None for theta itself."""
        if self.time_penalty:
            return gnvpro.time_differences
        return InputDifferences(self.roughness) if self.roughness else None


def adjusted(
    training: Training,
    work: float | None = None,
    solver: str | None = None,
    max_rank: int | None = None,
    learning_rate: float | None = None,
    seconds: float | None = None,
    **method: Any,
) -> Training:
    """Return a method with some settings replaced; settings that it does not have are left out."""
    chosen = training.method
    if isinstance(chosen, GNvpro | GaussNewton):
        own = having(chosen.solver, max_rank=max_rank)
        method["solver"] = named_solver(own, solver or "auto") if isinstance(own, Auto) else own
    elif isinstance(chosen, TorchOptimizer):
        method["lr"] = learning_rate
    changed = {name: value for name, value in method.items() if value is not None}
    return having(training, method=dataclasses.replace(chosen, **changed), work=work, seconds=seconds)


def having(settings: Any, **given: Any) -> Any:
    """Return a copy with the given values of its own fields; None keeps a field."""
    names = {field.name for field in dataclasses.fields(settings)}
    return dataclasses.replace(settings, **{k: v for k, v in given.items() if k in names and v is not None})


def named_solver(auto: Auto, name: str) -> Solver:
    """The solver of that name, with what `auto` would give it."""
    if name == "dense":
        return auto.dense
    spaces = {"krylov": Krylov, "hybrid": Hybrid}
    return spaces[name](auto.max_rank, auto.rtol) if name in spaces else auto


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str
    title: str
    summary: str
    load: Callable[[int, Path | None], ThreeSets]
    network: Callable[[int, int | None], nn.Module]  # from the number of inputs and the depth
    loss: str
    paper: Settings  # as the paper states them, with its Krylov solver
    recommended: Settings
    classes: tuple[str, ...] = ()
    snapshots: bool = False  # whether features are kept on the way
    study: Callable[[nn.Module, ThreeSets, Settings, int], dict[str, np.ndarray]] | None = None
    solver: str = "auto"  # of GNvpro in the recommended settings

    def settings(self, paper: bool) -> Settings:
        """The paper's settings or ours."""
        return self.paper if paper else self.recommended


def as_json(settings: Settings, method: str) -> dict[str, Any]:
    """The settings of one method as plain values."""
    training = {field.name: vars(settings.methods[method])[field.name] for field in dataclasses.fields(Training)}
    along_inputs = str(settings.operator() or "identity")
    return {
        **training,
        "method": method,
        "method_settings": repr(training["method"]),
        "theta_penalty": settings.theta_penalty,
        "theta_penalty_operator": "time differences" if settings.time_penalty else along_inputs,
        "head_penalty": settings.head_penalty,
        "input_spread": settings.input_spread,
        "scale_columns": settings.scale_columns,
    }
