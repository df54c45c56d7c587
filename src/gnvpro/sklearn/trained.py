"""Training samples, the model trained on them, and its posterior."""

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
ASSEMBLED_ONCE = 10.0  # limit on the time of one matrix over the time allowed during a search, which assembles many


@dataclass(frozen=True)
class RowSet:
    """Samples to train on, or to hold out."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor

    def take(self, rows: Array) -> RowSet:
        """Return the samples of these rows."""
        return RowSet(self.inputs[rows], self.targets[rows], self.weights[rows])

    def along(self, directions: Tensor) -> RowSet:
        """Replace inputs by their coordinates along these directions."""
        return replace(self, inputs=self.inputs @ directions)


@dataclass(frozen=True)
class RowSets:
    """Training samples, and held-out samples or None."""

    part: RowSet
    rest: RowSet | None

    def scaled(self, columns: Tensor) -> RowSets:
        """Multiply the columns of the inputs."""
        return self._each(lambda part: replace(part, inputs=part.inputs * columns))

    def along(self, directions: Tensor) -> RowSets:
        """Replace inputs by their coordinates along these directions."""
        return self._each(lambda part: part.along(directions))

    def in_units(self, units: Tensor | None) -> RowSets:
        """Divide the targets by these units, if any."""
        return self if units is None else self._each(lambda part: replace(part, targets=part.targets / units))

    def _each(self, change: Any) -> RowSets:
        return RowSets(change(self.part), None if self.rest is None else change(self.rest))


@dataclass(frozen=True)
class Trained:
    """A model, its training result, its problem, and the samples in the units of the training."""

    model: nn.Sequential
    result: Result
    problem: Problem
    samples: RowSets
    units: Tensor | None = None  # divisors of the targets; None: standardised targets
    directions: Tensor | None = None  # to which inputs were projected; None: not projected

    @property
    def log_evidence(self) -> float:
        """Log evidence of the penalties found."""
        assert self.result.chosen is not None
        return self.result.chosen.log_evidence

    @property
    def noise(self) -> float:
        """Standard deviation of the noise of the noisiest target."""
        assert self.result.chosen is not None
        return max(self.result.chosen.noise)

    @cached_property
    def joint(self) -> tuple[ReducedPoint, JointPosterior, Evidence] | None:
        """The final point, the posterior of theta and head, and the evidence; None if the matrix is too large."""
        problem = self.problem
        affordable = is_assembled(problem, ASSEMBLED_ONCE)
        return joint_posterior(problem, problem.theta(), problem.W()) if affordable else None


@dataclass(frozen=True)
class Found:
    """A trained network and the scaling of its inputs."""

    trained: Trained
    scaling: OrderedDict[str, nn.Module]
    columns: Tensor  # factors of the scaled inputs

    @property
    def layers(self) -> OrderedDict[str, nn.Module]:
        """The modules from raw inputs to features."""
        return OrderedDict([*self.scaling.items(), ("features", self.trained.model.get_submodule("features"))])


def trained_point(problem: Problem) -> ReducedPoint:
    """Return the point of the reduced objective at which training ended."""
    return problem.reduced.start(problem.theta(), WarmStart(problem.W()))


def spread_of(posterior: JointPosterior | HeadPosterior, model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the variance of outputs over the noise's, for a chain of features and head."""
    if isinstance(posterior, HeadPosterior):
        return posterior.spread(features_of(model, inputs))
    return posterior.spread(model, inputs)


def features_of(model: Any, inputs: Tensor) -> Tensor:
    """Return the inputs of the head, which is the last of a chain of modules, and a column of ones."""
    with torch.no_grad():
        return append_bias_column(model[:-1](inputs), True)
