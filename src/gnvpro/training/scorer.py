"""Scores of a model on samples that it is not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gnvpro.network.separable import SeparableNetwork
from gnvpro.objectives.held_out import HeldOut
from gnvpro.processes import Processes
from gnvpro.training.scores import Metric, Scores


@dataclass(frozen=True)
class Scorer:
    """Loss, accuracy and metrics; passes over the samples are not work."""

    validation: HeldOut | None
    measured: HeldOut | None  # samples for the metrics, if there are any
    metrics: Mapping[str, Metric]
    processes: Processes

    def within(self, network: SeparableNetwork, memory: float) -> Scorer:
        """Return the same scorer for another network."""
        validation, measured = (each and each.within(network, memory) for each in (self.validation, self.measured))
        return Scorer(validation, measured, self.metrics, self.processes)

    def scores(self, network: SeparableNetwork, theta: Tensor, W: Tensor) -> Scores:
        """Return the scores of the model with these parameters."""
        validation, loss, accuracy = self.validation, None, None
        if validation is not None:
            outputs = validation.outputs(network, theta, W)
            loss, accuracy = validation.misfit.value(outputs), validation.misfit.accuracy(outputs)
        return Scores(loss, accuracy, self.measure(network, theta, W) if self.measured else None)

    def measure(self, network: SeparableNetwork, theta: Tensor, W: Tensor) -> dict[str, float]:
        """Return the metrics."""
        if self.measured is None:
            return {}
        outputs = self.measured.shaped_outputs(network, theta, W)
        targets = self.measured.targets_like(outputs)
        values = {name: metric.value(name, outputs, targets) for name, metric in self.metrics.items()}
        return values if self.processes.alone else self._mean_over_processes(values, len(outputs))

    def _mean_over_processes(self, values: dict[str, float], samples: int) -> dict[str, float]:
        """Return metrics of parts of the samples, averaged with their numbers as weights."""
        count, *totals = (
            self.processes.gather([samples, *(samples * value for value in values.values())]).sum(0).tolist()
        )
        return {name: total / count for name, total in zip(values, totals, strict=True)}
