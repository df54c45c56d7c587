"""The problem to minimise: a network, samples, a loss and penalties.

    Phi(W, theta) = misfit(Z(theta) W') + alpha_1/2 |B theta|^2 + alpha_2/2 |W|^2

`Problem.reduced` is Phi with the head eliminated, a function of theta alone; `Problem.full` has theta and W as
variables. Both are objectives for any optimiser:

>>> import gnvpro
>>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
>>> model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()
>>> problem = gnvpro.Problem(model, x, x**3, loss="least_squares")
>>> point = problem.reduced.at(problem.theta())
>>> point.gradient().shape, point.W.shape
(torch.Size([10]), torch.Size([1, 6]))

Legend: alpha_1, B -> theta_penalty, alpha_2 -> head_penalty, Z -> features, with a column of ones if the head has a bias.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_method, check_number
from gnvpro.head.default_eliminator import default_eliminator
from gnvpro.head.eliminator import Eliminator
from gnvpro.linalg.once import Once
from gnvpro.linalg.sums import SampleSum
from gnvpro.network.evaluation import bare
from gnvpro.network.memory import default_memory
from gnvpro.network.passes import PassPlan
from gnvpro.network.precision import WorkingModel
from gnvpro.network.separable import SeparableNetwork
from gnvpro.network.training_mode import TrainingMode, changing
from gnvpro.network.work import WorkMeter
from gnvpro.objectives.common_ground import common, few_samples
from gnvpro.objectives.evidence import effective_targets, first_penalties
from gnvpro.objectives.full import FullObjective
from gnvpro.objectives.held_out import HeldOut, hold_out
from gnvpro.objectives.problem_arguments import (
    check_alpha,
    check_inputs,
    check_model,
    check_penalty,
    check_sample_weight,
    check_targets,
)
from gnvpro.objectives.reduced import ReducedObjective, sum_of_squares
from gnvpro.objectives.stream import Stream, device_of
from gnvpro.objectives.taking import take_samples
from gnvpro.policy import Policy, as_policy
from gnvpro.problem.loss import Loss, get_loss
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import Tikhonov, default_penalty
from gnvpro.processes import Processes
from gnvpro.samples.several import Batch, Inputs, Streamed
from gnvpro.samples.source import Samples

T = TypeVar("T")


@dataclass(frozen=True)
class Searched:
    """The penalties to be found from the data."""

    theta: bool
    head: bool


class Problem:
    """A network, samples, a loss and penalties.

    Args:
        model: any nn.Module whose output is computed by an nn.Linear, or by a convolution with a kernel of one, and at most
            reshaped afterwards. It runs in evaluation mode, and only `store` writes to it. DataParallel,
            DistributedDataParallel and torch.compile are replaced by the module inside.
        inputs: what the model takes, samples first: a tensor, an array or a DataFrame; a tuple or list of them for a model
            that is called with several arguments, a dictionary for one that is called by name.
            Arrays on disk (np.memmap, h5py, zarr) are read in chunks and never held; so is a Dataset or a DataLoader of
            (inputs, targets) or (inputs, targets, weights); leave out targets and sample_weight then.
        targets: real numbers for least squares; class labels, one-hot or soft labels for classification.
        loss: "least_squares" ("mse", "squared_error"), "logistic", "multinomial" ("cross_entropy"), "log_loss" (logistic for
            one output, else multinomial), or an object with the methods of `gnvpro.extend.Loss`.
        theta_penalty: alpha in alpha/2 |B theta|^2, or a `Tikhonov` with B. Default 1e-10 for least squares, else 1e-4.
            "auto" is a first value, from which `gnvpro.train` starts its search.
        head_penalty: alpha in alpha/2 |W|^2, the bias included. Same default.
        sample_weight: a number for each sample, not negative (for least squares, also one for each entry of the targets,
            which may be NaN if its weight is zero): how often the sample counts. Only ratios matter to Phi; their
            sum, the number of samples, matters to penalties that are found from the data.
        head: name of the last layer. Default: found by running the model.
        eliminator: how the head is eliminated. Default: chosen by the loss and the size of the head.
        memory: bytes for passes over samples. Default: an eighth of the machine's memory, or half of what is free if less.
        process_group: a group of `torch.distributed`. Each process has a part of the samples: inputs, targets and weights
            belong to this process. All make the same calls; the model of rank 0 is copied to the others.
        same_samples: whether every pass over a loader must return the same samples; stochastic methods do not need that.
        policy: the thresholds that choose algorithms (see `gnvpro.policy`). Default: `gnvpro.policy.Policy()`.

    Raises:
        ValueError, TypeError: an argument cannot be used; the message names it and the remedy.

    >>> import gnvpro
    >>> X, model = torch.rand(9, 2).double(), gnvpro.networks.MLP(2, [4], n_outputs=1, dtype=torch.float64)
    >>> problem = Problem(model, X, X[:, :1], loss="least_squares")
    >>> problem.reduced.at(problem.theta()).gradient().shape
    torch.Size([12])
    """

    inputs: Inputs
    passes: PassPlan  # chunks of the passes over the samples

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any = None,
        *,
        loss: str | Loss,
        theta_penalty: float | str | Tikhonov | None = None,
        head_penalty: float | str | None = None,
        sample_weight: Any = None,
        head: str | None = None,
        eliminator: Eliminator | None = None,
        memory: float | None = None,
        process_group: Any = None,
        same_samples: bool = True,
        policy: Policy | None = None,
    ) -> None:
        self.processes, self.policy = Processes.of(process_group), as_policy(policy)
        self.same_samples, self.head = same_samples, head
        self._known: dict[Hashable, Any] = {}
        with self.processes.together():
            given = bare(check_model(model))
            self.loss = get_loss(loss)
            self._take_penalties(theta_penalty, head_penalty)
            if memory is not None:
                check_number("memory", memory, 0.0, strict=True)
        self.memory = self._least_memory(memory)
        named = "", inputs, targets, sample_weight
        source, inputs, targets, sample_weight = self.take_samples(named, given, self.same_samples)
        with self.processes.together():
            weights, stream = self._take(source, inputs, sample_weight, given)
        if not self.processes.alone:
            weighted = weights is not None or (stream is not None and stream.weighted)
            self.processes.check_same(common(self, given, weighted))
        self.few = few_samples(self.processes, self.inputs)
        many = self.processes.largest(stream.expected if stream is not None else len(self.inputs))
        with self.processes.together():
            noisy = not self.same_samples and bool(changing(given))
            self.working = WorkingModel.of(given, self.few, many, self.memory, self.policy.precision, noisy)
            self.network = self._network_of(self.working)
            if self.working.is_copy:
                self.working.module.eval()
            self.loss = get_loss(loss, self.network.n_targets)
            self.theta_penalty = self.penalty.bind(given, self.network.parameters)
            self.eliminator = self._choose_eliminator(eliminator)
            if stream is not None:
                stream = stream.check(self.network, self.loss)
            else:
                assert not isinstance(self.inputs, Streamed)
                rows = check_targets("targets", targets, self.inputs, self.network, self.loss, weights=weights)
        observed = self._hold(rows, weights) if stream is None else self._read(stream)
        if self.misfit.by_entry and (self.searched.theta or self.searched.head):
            raise ValueError(
                "penalties from the data ('auto') need one sample_weight per sample, not one per entry; give numbers"
            )
        self._first_sample = self._count_before()
        self.meter = WorkMeter(self.n_samples)
        # number of observations in the evidence: rows, or the sum of their weights
        self.n_observed = float(self.misfit.over.total(torch.tensor(float(observed), dtype=torch.float64)))
        self._set_first_penalties()
        self.processes.spread([*given.parameters(), *given.buffers()])
        self.working.follow()

    def _network_of(self, working: WorkingModel) -> SeparableNetwork:
        """Return features and head of the module that computes."""
        network = SeparableNetwork.of(working.module, self.few, self.head, working.casts_to)
        if not self.processes.alone:  # statistics would be those of each process's part
            network.mode = TrainingMode((), ())
        return network

    def _take_penalties(self, theta: float | str | Tikhonov | None, head: float | str | None) -> None:
        """Set the penalties to numbers, or note which ones to find from the data."""
        usual = default_penalty(self.loss)
        self.penalty = check_penalty(usual if theta is None else theta)
        alpha = check_alpha("head_penalty", usual if head is None else head)
        self.searched = Searched(self.penalty.alpha == "auto", alpha == "auto")
        self.head_penalty = 1.0 if alpha == "auto" else alpha

    def _hold(self, rows: Tensor, weights: Tensor | None) -> float:
        """Set the misfit of samples in memory; return their number, or the sum of their weights."""
        if weights is not None:
            rows, weights = self._without_samples_of_no_weight(rows, weights)
        self.misfit = Misfit.mean(self.loss, rows, weights, self._over_all())
        self.passes = self.network.pass_plan(self.inputs, self.memory)
        return rows.shape[0] if weights is None else float(weights.sum()) * rows.shape[0] / max(weights.numel(), 1)

    def _read(self, stream: Stream) -> float:
        """Set the misfit of samples that are read in chunks; return their number, or the sum of their weights."""
        self.inputs = stream
        over = self._over_all()
        self.inputs = shared = stream.shared(over)
        self.passes = self.network.pass_plan(shared, self.memory)
        self.misfit = shared.misfit(self.passes.size, over)
        return stream.observed

    def _over_all(self) -> SampleSum:
        """Return sums over the samples of all processes."""
        return SampleSum(self.processes).of_samples(int(self.processes.gather([len(self.inputs)]).sum()))

    def _take(self, source: Samples | None, inputs: Any, weights: Any, model: nn.Module) -> tuple[Any, Stream | None]:
        """Check inputs, and return their weights, or a stream if they are not held."""
        several = not self.processes.alone
        if source is not None:
            self.inputs = stream = Stream.of("", source, model, self.same_samples)
            return None, stream
        self.inputs = batch = check_inputs("inputs", inputs, model, may_be_empty=several)
        return check_sample_weight("sample_weight", weights, batch, may_be_zero=several), None

    def take_samples(
        self, named: tuple[str, Any, Any, Any], model: nn.Module, same: bool = True
    ) -> tuple[Samples | None, Any, Any, Any]:
        """Hold the samples of a loader if they are few: see `gnvpro.objectives.taking`."""
        most = self.policy.samples.held_memory * self.memory
        return take_samples(self.processes, named, same, most, device_of(model))

    def _least_memory(self, memory: float | None) -> float:
        """Return the memory that every process can use; processes on one machine share it."""
        return -self.processes.largest(-(default_memory() / self.processes.here if memory is None else float(memory)))

    def _set_first_penalties(self) -> None:
        """Start the search from strong penalties: it weakens them reliably, but rarely strengthens weak ones."""
        if not (self.searched.theta or self.searched.head):
            return  # the first penalties take two passes over samples outside memory
        shapes = [shape for _, shape in self.network.parameters if len(shape) > 1]
        # of more weights the evidence is an estimate, and a search seldom comes down from there
        few = self.network.n_theta <= self.policy.head.strong_start
        fan_in = max((math.prod(shape[1:]) for shape in shapes), default=1) if few else 1
        first = first_penalties(self.misfit, self.n_observed, fan_in)
        if self.searched.theta:
            self.theta_penalty = replace(self.theta_penalty, alpha=first.theta)
        if self.searched.head:
            self.head_penalty = first.head

    def _without_samples_of_no_weight(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Leave out samples of weight zero, which must not count as work or fill batches."""
        kept = weights > 0 if weights.ndim == 1 else (weights > 0).any(1)
        if self.processes.all(not kept.any()):
            raise ValueError("sample_weight is zero for every sample of every process: there is nothing to train on")
        if kept.all():
            return rows, weights
        assert not isinstance(self.inputs, Streamed)
        self.inputs = self.inputs[kept]
        return rows[kept.repeat_interleave(len(rows) // len(kept))], weights[kept]

    def _choose_eliminator(self, eliminator: Eliminator | None) -> Eliminator:
        check_method("eliminator", eliminator, "fit", "an object with a method fit, such as gnvpro.heads.Newton()")
        if eliminator is None:
            entries = self.network.n_targets * (self.network.n_features + self.network.bias)
            same = not isinstance(self.inputs, Stream) or self.inputs.same_samples
            return default_eliminator(self.loss, entries, self.stored_dtype, same, self.policy.head)
        trouble = eliminator.why_not(self.loss)
        if trouble is not None:
            raise ValueError(f"eliminator={eliminator!r} cannot be used: {trouble}")
        return eliminator

    @cached_property
    def n_independent(self) -> float:
        """Count independent observations for intervals: errors of related targets are related, so these count as fewer."""
        share = effective_targets(self.misfit) / self.network.n_targets if self.misfit.identity_hessian else 1.0
        return self.n_observed * share

    # -- the two objectives

    @property
    def reduced(self) -> ReducedObjective:
        """Phi with the head eliminated at every theta."""
        return ReducedObjective(self)

    @property
    def full(self) -> FullObjective:
        """Phi with theta and W as variables."""
        return FullObjective(self)

    @cached_property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the head in the user's model."""
        return self.working.stored(self.network.location.head_name)

    @cached_property
    def epsilon(self) -> float:
        """The relative rounding error of an objective: a sum of many terms in float64, of features in their own dtype."""
        return max(10 * torch.finfo(torch.float64).eps, torch.finfo(self.network.dtype).eps)

    # -- the model

    def theta(self) -> Tensor:
        """Return the model's theta: every trainable parameter outside the head, as one float64 vector."""
        self.working.follow()
        return self.network.theta()

    def W(self) -> Tensor:
        """Return the model's head, its bias as last column."""
        self.working.follow()
        return self.network.W()

    def store(self, theta: Tensor, W: Tensor) -> None:
        """Write theta and W into the model."""
        self.network.store(theta, W)
        if self.working.is_copy:
            self.working.show()

    def measure_statistics(self, theta: Tensor) -> None:
        """Set the statistics of norms in training mode to those of all samples at theta; not counted as work."""
        mode = self.network.mode
        if mode.buffers:
            with torch.no_grad(), mode.measured():  # the sum reads samples that are not in memory
                self.misfit.over.sum(sum_of_squares, self.network.features(theta, self.inputs, self.passes))
            self.working.show_buffers(mode.buffers)

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` computes from this problem, computed at the first request by this name."""
        if name not in self._known:
            self._known[name] = make()
        known: T = self._known[name]
        return known

    # -- problems that differ in one thing

    def _with(self, passes: PassPlan | None = None, **changed: Any) -> Problem:
        """Copy the problem with these changes; passes are given, or planned again."""
        other = copy.copy(self)
        other.__dict__.update(changed)
        other._known = {}
        other.passes = passes or other.network.pass_plan(other.inputs, other.memory)
        other._first_sample = other._count_before()
        if isinstance(other.inputs, Stream):  # sums over samples outside memory use the chunks of the passes
            other.misfit = other.inputs.misfit(other.passes.size, other.misfit.over)
        return other

    def with_meter(self, meter: WorkMeter) -> Problem:
        """Copy the problem with another meter for its passes."""
        return self._with(self.passes, meter=meter)

    def with_passes(self, passes: PassPlan) -> Problem:
        """Copy the problem with other chunks of samples."""
        return self._with(passes)

    def with_penalties(self, theta: float, head: float) -> Problem:
        """Copy the problem with other penalties."""
        bound = replace(self.theta_penalty, alpha=theta)
        return self._with(self.passes, theta_penalty=bound, head_penalty=head)

    def with_eliminator(self, eliminator: Eliminator) -> Problem:
        """Copy the problem with another eliminator."""
        return self._with(eliminator=self._choose_eliminator(eliminator))

    def on_samples(self, samples: Tensor) -> Problem:
        """Copy the problem for a part of the samples; work still counts passes over all of them."""
        inputs, misfit = self.part(samples)
        return self._with(inputs=inputs, misfit=misfit)

    def part(self, samples: Tensor) -> tuple[Batch, Misfit]:
        """Return inputs and misfit of those samples that are in this process; `samples` number through all processes."""
        here = len(self.inputs)
        own = samples
        if not self.processes.alone:
            own = samples - self._first_sample()
            own = own[(own >= 0) & (own < here)]
        if isinstance(self.inputs, Stream):
            return self.inputs.held(own, samples.shape[0], self.misfit.over)
        assert not isinstance(self.inputs, Streamed)
        return self.inputs[own], self.misfit.take(own, here, samples.shape[0])

    @property
    def takes_fast(self) -> bool:
        """Return whether every process can read any part of the samples without reading much more than that part."""
        return self.processes.all(not isinstance(self.inputs, Streamed) or self.inputs.takes_fast)

    def _count_before(self) -> Once[int]:
        """Return the number of samples of the processes before this one, gathered at its first use.

        It must not refer to the problem: a cycle would keep its samples until garbage is collected.
        """
        processes, here = self.processes, len(self.inputs)
        return Once(lambda: int(processes.gather([here])[: processes.rank].sum()))

    @property
    def n_samples(self) -> int:
        """Return the number of samples of all processes."""
        return self.misfit.over.count(len(self.inputs))

    def refined(self, refine: Callable[[nn.Module], nn.Module], memory: float) -> Problem:
        """Return the problem of another network with the same inputs and outputs, within this many bytes."""
        working = self.working.map(refine)
        network = self._network_of(working)
        network.mode = self.network.mode.in_copy(self.working.module, working.module)
        bound = replace(self.penalty.bind(working.given, network.parameters), alpha=self.theta_penalty.alpha)
        return self._with(memory=memory, working=working, network=network, theta_penalty=bound)

    def held_out(self, inputs: Any, targets: Any, sample_weight: Any = None) -> HeldOut:
        """Check samples to validate on and return them."""
        return hold_out(self, inputs, targets, sample_weight)
