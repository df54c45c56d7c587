"""Samples, what was trained on them, and what is known about it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnvpro.head.eliminator import WarmStart, append_bias_column
from gnvpro.objectives.evidence import Evidence
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.training.judgement import is_assembled, joint_posterior
from gnvpro.training.result import Result

Array = NDArray[Any]
ASSEMBLED_ONCE = 10.0  # times the seconds of a matrix that a search assembles every few steps


@dataclass(frozen=True)
class Part:
    """Samples to train on, or to hold out."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor

    def take(self, rows: Array) -> Part:
        """Some of them."""
        return Part(self.inputs[rows], self.targets[rows], self.weights[rows])

    def along(self, directions: Tensor) -> Part:
        """With the coordinates of the inputs along these directions."""
        return replace(self, inputs=self.inputs @ directions)


@dataclass(frozen=True)
class Samples:
    """To train on, and held out."""

    part: Part
    rest: Part | None

    def scaled(self, columns: Tensor) -> Samples:
        """With the columns of the inputs multiplied."""
        return self._each(lambda part: replace(part, inputs=part.inputs * columns))

    def along(self, directions: Tensor) -> Samples:
        """With the coordinates of the inputs along these directions."""
        return self._each(lambda part: part.along(directions))

    def in_units(self, units: Tensor | None) -> Samples:
        """With the targets divided; None: as they are."""
        return self if units is None else self._each(lambda part: replace(part, targets=part.targets / units))

    def _each(self, change: Any) -> Samples:
        return Samples(change(self.part), None if self.rest is None else change(self.rest))


@dataclass(frozen=True)
class Trained:
    """A model, how it was trained, what it minimises, and the samples with inputs and targets in the units trained in."""

    model: nn.Sequential
    result: Result
    problem: Problem
    samples: Samples
    units: Tensor | None = None  # of the targets; None: as they came
    directions: Tensor | None = None  # that inputs were rotated to; None: as they came

    @property
    def log_evidence(self) -> float:
        """Of the penalties, found from the data."""
        assert self.result.chosen is not None
        return self.result.chosen.log_evidence

    @property
    def noise(self) -> float:
        """The standard deviation of the noise that was found, of the noisiest target."""
        assert self.result.chosen is not None
        return max(self.result.chosen.noise)

    @cached_property
    def joint(self) -> tuple[ReducedPoint, JointPosterior, Evidence] | None:
        """The point, what is not known there about theta and head, and the evidence; None if the matrix is too large."""
        problem = self.problem
        affordable = is_assembled(problem, ASSEMBLED_ONCE)
        return joint_posterior(problem, problem.theta(), problem.W()) if affordable else None


@dataclass(frozen=True)
class Found:
    """A network that was searched for, and how its inputs are scaled."""

    trained: Trained
    scaling: OrderedDict[str, nn.Module]
    columns: Tensor  # what scaled inputs are multiplied by

    @property
    def layers(self) -> OrderedDict[str, nn.Module]:
        """From inputs as they come to features."""
        return OrderedDict([*self.scaling.items(), ("features", self.trained.model.get_submodule("features"))])


def trained_point(problem: Problem) -> ReducedPoint:
    """The reduced objective where training ended."""
    return problem.reduced.start(problem.theta(), WarmStart(problem.W()))


def spread_of(posterior: JointPosterior | HeadPosterior, model: nn.Module, inputs: Tensor) -> Tensor:
    """How much is not known about the outputs of a chain of features and head."""
    if isinstance(posterior, HeadPosterior):
        return posterior.spread(features_of(model, inputs))
    return posterior.spread(model, inputs)


def features_of(model: Any, inputs: Tensor) -> Tensor:
    """What the head, the last of a chain of modules, is given, and the column of ones."""
    with torch.no_grad():
        return append_bias_column(model[:-1](inputs), True)
