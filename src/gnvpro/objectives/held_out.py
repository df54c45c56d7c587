"""Samples that nothing is fitted to: validation sets, held in memory or read in chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.sums import SampleSum
from gnvpro.network.passes import PassPlan
from gnvpro.network.separable import SeparableNetwork
from gnvpro.objectives.problem_arguments import as_tensor, check_inputs, check_runs, check_sample_weight, check_targets
from gnvpro.objectives.stream import Stream
from gnvpro.problem.misfit import Misfit
from gnvpro.samples.several import Inputs
from gnvpro.samples.source import Samples

if TYPE_CHECKING:
    from gnvpro.objectives.problem import Problem


@dataclass(frozen=True)
class HeldOut:
    """Samples that nothing is fitted to."""

    inputs: Inputs
    misfit: Misfit
    passes: PassPlan
    targets: Tensor | None = None  # as given, where they are held

    def targets_like(self, outputs: Tensor) -> Tensor:
        """Targets in the shape of the outputs if they have as many entries: (n,) and (n, 1) would broadcast."""
        assert self.targets is not None
        return self.targets.reshape(outputs.shape) if self.targets.numel() == outputs.numel() else self.targets

    def within(self, network: SeparableNetwork, memory: float) -> HeldOut:
        """Return the held-out samples for another network."""
        return replace(self, passes=network.pass_plan(self.inputs, memory))

    def outputs(self, network: SeparableNetwork, theta: Tensor, W: Tensor) -> Tensor:
        """Outputs for the samples as rows; not counted as work."""
        features = network.features(theta, self.inputs, self.passes)
        return matmul_small(append_bias_column(features, network.bias), W.T)

    def shaped_outputs(self, network: SeparableNetwork, theta: Tensor, W: Tensor) -> Tensor:
        """Outputs in the model's own shape, for metrics."""
        if self.targets is None:
            raise ValueError(
                "metrics needs samples that are held in memory; give some of them as arrays in validation=, or leave it out"
            )
        return network.shaped(self.outputs(network, theta, W), len(self.inputs))


def hold_out(problem: Problem, inputs: Any, targets: Any, sample_weight: Any) -> HeldOut:
    """Samples for the network and the loss of a problem, checked; held by the processes that hold its own samples."""
    network, processes = problem.network, problem.processes
    named = "validation ", inputs, targets, sample_weight
    source, inputs, targets, sample_weight = problem.take_samples(named, problem.working.given)
    if source is not None:
        return _stream(problem, source)
    several = not processes.alone
    with processes.together():
        inputs = check_inputs("validation inputs", inputs, problem.working.given, may_be_empty=several)
        if len(inputs):
            check_runs("validation inputs", inputs, network)
        weights = check_sample_weight("validation weights", sample_weight, inputs, may_be_zero=several)
        rows = check_targets("validation targets", targets, inputs, network, problem.loss, weights=weights)
    count = int(processes.gather([len(inputs)]).sum())
    if not count or (weights is not None and processes.all(not weights.any())):
        raise ValueError("validation holds no sample of positive weight on any process; leave it out or give some")
    misfit = Misfit.mean(problem.loss, rows, weights, SampleSum(processes).of_samples(count))
    given = as_tensor("validation targets", targets)
    return HeldOut(inputs, misfit, network.pass_plan(inputs, problem.memory), given)


def _stream(problem: Problem, source: Samples) -> HeldOut:
    network, processes = problem.network, problem.processes
    with processes.together():
        stream = Stream.of("validation ", source, problem.working.given)
        check_runs("validation inputs", stream, network)
        stream = stream.check(network, problem.loss)
    over = SampleSum(processes).of_samples(int(processes.gather([len(stream)]).sum()))
    stream, passes = stream.shared(over), network.pass_plan(stream, problem.memory)
    return HeldOut(stream, stream.misfit(passes.size, over), passes)
