"""What is minimised: a network, samples, a loss and penalties, put together in one place.

    Phi(W, theta) = misfit(Z(theta) W') + alpha_1/2 |B theta|^2 + alpha_2/2 |W|^2

`Problem.reduced` is Phi with the head eliminated, a function of theta alone; `Problem.full` has theta and W as
variables. Both are objectives for an optimiser of your own:

>>> import gnvpro
>>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
>>> model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()
>>> problem = gnvpro.Problem(model, x, x**3, loss="least_squares")
>>> point = problem.reduced.at(problem.theta())
>>> point.gradient().shape, point.W.shape
(torch.Size([10]), torch.Size([1, 6]))

Legend: alpha_1, B -> theta_penalty, alpha_2 -> head_penalty, Z -> features with a column of ones where the head has a bias.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_method, check_number
from gnvpro.head.choose import default_eliminator
from gnvpro.head.eliminator import Eliminator, append_bias_column
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.head.newton_cg import NewtonCG
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.process_sums import sum_over
from gnvpro.linalg.sums import ChunkedSum, SampleSum
from gnvpro.network.evaluation import bare
from gnvpro.network.memory import default_memory
from gnvpro.network.passes import PassPlan
from gnvpro.network.separable import SeparableNetwork
from gnvpro.network.work import WorkMeter
from gnvpro.objectives.arguments import (
    as_tensor,
    check_alpha,
    check_inputs,
    check_model,
    check_penalty,
    check_runs,
    check_sample_weight,
    check_targets,
)
from gnvpro.objectives.evidence import effective_targets, first_penalties
from gnvpro.objectives.full import FullObjective
from gnvpro.objectives.reduced import ReducedObjective
from gnvpro.objectives.stream import Stream
from gnvpro.problem.losses import Loss, get_loss
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import BoundPenalty, Tikhonov
from gnvpro.processes import Processes
from gnvpro.samples.choose import as_stream
from gnvpro.samples.several import Batch, Inputs, Streamed, shapes_of, tensors_of
from gnvpro.samples.source import Samples

MAX_ITERATIONS_ON_CHANGING_SAMPLES = 20  # of the inner problem, which has no minimum to converge to


@dataclass(frozen=True)
class HeldOut:
    """Samples that nothing is fitted to."""

    inputs: Inputs
    misfit: Misfit
    passes: PassPlan
    targets: Tensor | None = None  # as given, where they are held

    def targets_like(self, outputs: Tensor) -> Tensor:
        """The targets as given, in the shape of outputs that have as many entries: (n,) beside (n, 1) would be broadcast."""
        if self.targets is None:
            raise ValueError(
                "metrics needs validation samples that are held in memory; give a part of them, or leave it out"
            )
        return self.targets.reshape(outputs.shape) if self.targets.numel() == outputs.numel() else self.targets


@dataclass(frozen=True)
class Searched:
    """Which penalties are to be found from the data."""

    theta: bool
    head: bool


class Problem:
    """A network, samples, a loss and penalties.

    Args:
        model: any nn.Module whose output is computed by an nn.Linear, or by a 1x1 nn.Conv2d. It runs in evaluation
            mode, and only `store` writes to it. Of DataParallel, DistributedDataParallel and torch.compile the module
            inside is taken.
        inputs: what the model takes, samples first: a tensor, an array or a DataFrame; a tuple or list of them for a model
            that is called with several arguments, a dictionary for one that is called by name.
            Arrays on disk (np.memmap, h5py, zarr) are read in chunks and never held; so is a Dataset or a DataLoader of
            (inputs, targets) or (inputs, targets, weights), beside which targets and sample_weight are left out.
        targets: real numbers for least squares; class labels, one-hot or soft labels for classification.
        loss: "least_squares", "logistic", "multinomial", or an object with the methods of `gnvpro.Loss`.
        theta_penalty: alpha in alpha/2 |B theta|^2, or a `Tikhonov` with B. Default 1e-10 for least squares, else 1e-4.
            "auto" is a first value from which `gnvpro.train` searches on.
        head_penalty: alpha in alpha/2 |W|^2, the bias included. Same default.
        sample_weight: a number for each sample, not negative (for least squares, also one for each entry of the targets,
            which may be NaN where that is zero): how often the sample counts. Only ratios matter to Phi; their
            sum, the number of samples, matters to penalties that are found from the data.
        head: the name of the last layer; found by running the model when not given.
        eliminator: how the head is eliminated; chosen by the loss and the size of the head when not given.
        memory: bytes for passes over samples. Default: an eighth of the machine's memory, or half of what is free if less.
        process_group: of `torch.distributed`, whose processes hold a part of the samples each: inputs, targets and weights
            are this one's. All of them make the same calls; the model of rank 0 is copied to the others.
        same_samples: whether every pass over a loader must have the same samples; stochastic methods do not need that.

    Raises:
        ValueError, TypeError: an argument cannot be used; the message names it and says what to do.
    """

    inputs: Inputs

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
    ) -> None:
        self.processes = Processes.of(process_group)
        self.same_samples = same_samples
        several = not self.processes.alone
        with self.processes.together():
            model = bare(check_model(model))
            self.loss = get_loss(loss)
            usual = 1e-10 if getattr(self.loss, "identity_hessian", False) else 1e-4
            self.penalty = check_penalty(usual if theta_penalty is None else theta_penalty)
            alpha = check_alpha("head_penalty", usual if head_penalty is None else head_penalty)
            self.searched = Searched(self.penalty.alpha == "auto", alpha == "auto")
            self.head_penalty = 1.0 if alpha == "auto" else alpha
            if memory is not None:
                check_number("memory", memory, 0.0, strict=True)
            self.head = head
            weights, stream = self._take(inputs, targets, sample_weight, model)
        if several:
            self.processes.check_same(
                self._common(model, weights is not None or (stream is not None and stream.weighted))
            )
        self.few = self._few()
        with self.processes.together():
            self.network = self._see(model)
            self.theta_penalty = self._bind()
            if stream is not None:
                self.inputs = stream = stream.check(self.network, self.loss)
                rows = torch.zeros(0)
            else:
                assert not isinstance(self.inputs, Streamed)
                rows = check_targets("targets", targets, self.inputs, self.network, self.loss, weights=weights)
            self.eliminator = self._choose_eliminator(eliminator)
        if weights is not None:
            rows, weights = self._without_samples_of_no_weight(rows, weights)
        self.memory = self._least_memory(memory)
        count = int(self.processes.gather([len(self.inputs)]).sum())
        over = sum_over(self.processes).of_samples(count)
        if stream is not None:
            if (
                not stream.same_samples
                and eliminator is None
                and isinstance(self.eliminator, Newton | NewtonCG | NewtonKrylov)
            ):
                self.eliminator = replace(self.eliminator, iterations=MAX_ITERATIONS_ON_CHANGING_SAMPLES)
            weight = stream.observed
            self.inputs = stream = stream.shared(over)
            self.misfit = stream.misfit(self.passes.size, over)
        else:
            weight = (
                rows.shape[0] if weights is None else float(weights.sum()) * rows.shape[0] / max(weights.numel(), 1)
            )
            self.misfit = Misfit.mean(self.loss, rows, weights, over)
        if self.misfit.by_entry and any(isinstance(p, str) for p in (theta_penalty, head_penalty)):
            raise ValueError(
                "penalties from the data ('auto') need one sample_weight per sample, not one per entry; give numbers"
            )
        self.meter = WorkMeter(count)
        # how many observations the evidence counts: rows, or the sum of their weights
        self.n_observed = float(self.misfit.over.total(torch.tensor(float(weight), dtype=torch.float64)))
        self._set_first_penalties()
        self.processes.spread([*model.parameters(), *model.buffers()])

    def _take(self, inputs: Any, targets: Any, weights: Any, model: nn.Module) -> tuple[Tensor | None, Stream | None]:
        """Inputs, and weights or a stream where they are not held."""
        several = not self.processes.alone
        source = as_stream("", inputs, targets, weights, self.same_samples)
        if source is not None:
            self.inputs = stream = Stream.of("", source, model, self.same_samples)
            return None, stream
        self.inputs = batch = check_inputs("inputs", inputs, model, may_be_empty=several)
        return check_sample_weight("sample_weight", weights, batch, may_be_zero=several), None

    def _common(self, model: nn.Module, weighted: bool) -> dict[str, str]:
        """What must be the same for every process, each with what it is here."""
        parameters = {
            f"model parameter {name}": f"{tuple(p.shape)} {p.dtype} {'trained' if p.requires_grad else 'frozen'}"
            for name, p in model.named_parameters()
        }
        return {
            "model": type(model).__qualname__,
            **parameters,
            "loss": f"{type(self.loss).__module__}.{type(self.loss).__qualname__}",
            "theta_penalty": repr(self.penalty.alpha),
            "head_penalty": "'auto'" if self.searched.head else repr(self.head_penalty),
            "shape of a sample": str(shapes_of(self.inputs)),
            "dtype of the inputs": str([tensor.dtype for tensor in tensors_of(self.inputs)]),
            "sample_weight": "given" if weighted else "left out",
            "number of threads (torch.get_num_threads())": str(torch.get_num_threads()),
        }

    def _few(self) -> Batch:
        """Two samples to try the model on, the same for every process."""
        if self.processes.alone:
            return self.inputs[:2]
        counts = self.processes.gather([len(self.inputs[:2])])[:, 0]
        if not counts.any():
            raise ValueError("inputs is empty on every process: there are no samples")
        few, device = self.processes.from_rank(int(counts.nonzero()[0, 0]), self.inputs[:2]), self.inputs.device
        return few.to(device) if isinstance(few, Tensor) else few.map(lambda tensor: tensor.to(device))

    def _least_memory(self, memory: float | None) -> float:
        """What every process can afford: those on one machine share it."""
        return -self.processes.largest(-(default_memory() / self.processes.here if memory is None else float(memory)))

    def _see(self, model: nn.Module) -> SeparableNetwork:
        return SeparableNetwork.of(model, self.few, self.head)

    def _bind(self) -> BoundPenalty:
        return self.penalty.bind(self.network.model, self.network.parameters)

    def _set_first_penalties(self) -> None:
        """Those that are searched for begin strong: from a smooth model the search comes down, from a rough one seldom up."""
        first = first_penalties(self.misfit, self.n_observed)
        if self.searched.theta:
            self.theta_penalty = replace(self.theta_penalty, alpha=first.theta)
        if self.searched.head:
            self.head_penalty = first.head

    def _without_samples_of_no_weight(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """They change nothing, and neither work nor batches should see them."""
        kept = weights > 0 if weights.ndim == 1 else (weights > 0).any(1)
        if self.processes.all(not kept.any()):
            raise ValueError("sample_weight is zero for every sample of every process: there is nothing to train on")
        if kept.all():
            return rows, weights
        assert not isinstance(self.inputs, Streamed)
        self.inputs = self.inputs[kept]
        return rows[kept.repeat_interleave(len(rows) // len(kept))], weights[kept]

    def _choose_eliminator(self, eliminator: Eliminator | None) -> Eliminator:
        check_method("eliminator", eliminator, "fit", "an object with a method fit, such as gnvpro.Newton()")
        if eliminator is None:
            entries = self.network.n_targets * (self.network.n_features + self.network.bias)
            return default_eliminator(self.loss, entries, self.network.dtype)
        trouble = eliminator.why_not(self.loss)
        if trouble is not None:
            raise ValueError(f"eliminator={eliminator!r} cannot be used: {trouble}")
        return eliminator

    @cached_property
    def n_independent(self) -> float:
        """Observations that intervals count: targets that go together have errors that go together, and are not as many."""
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

    @property
    def epsilon(self) -> float:
        """The relative rounding error of an objective: a sum of many terms in float64, of features in their own dtype."""
        return max(10 * torch.finfo(torch.float64).eps, torch.finfo(self.network.dtype).eps)

    # -- the model

    def theta(self) -> Tensor:
        """The model's own theta: every trainable parameter outside of the head, as one float64 vector."""
        return self.network.theta()

    def W(self) -> Tensor:
        """The model's own head, its bias as last column."""
        return self.network.W()

    def store(self, theta: Tensor, W: Tensor) -> None:
        """Write theta and W into the model."""
        self.network.store(theta, W)

    # -- passes over the samples

    @cached_property
    def passes(self) -> PassPlan:
        """How passes go through the samples; decided once."""
        return self.network.pass_plan(self.inputs, self.memory)

    # -- problems that differ in one thing

    def _with(self, **changed: Any) -> Problem:
        other = copy.copy(self)
        for decided in ("passes", "_first_sample"):
            other.__dict__.pop(decided, None)
        other.__dict__.update(changed)
        return other._in_chunks()

    def _in_chunks(self) -> Problem:
        """Sums over samples that are not held go by the chunks of the passes."""
        if isinstance(self.inputs, Stream):
            self.misfit = self.inputs.misfit(self.passes.size, self._others)
        return self

    @property
    def _others(self) -> SampleSum:
        """Sums over the holders of samples, from what each has."""
        return self.misfit.over.others if isinstance(self.misfit.over, ChunkedSum) else self.misfit.over

    def with_meter(self, meter: WorkMeter) -> Problem:
        """The same, its passes counted elsewhere."""
        return self._with(meter=meter, passes=self.passes)

    def with_passes(self, passes: PassPlan) -> Problem:
        """The same with other chunks of samples."""
        return self._with(passes=passes)

    def with_penalties(self, theta: float, head: float) -> Problem:
        """The same with other numbers in front of the penalties."""
        bound = replace(self.theta_penalty, alpha=theta)
        return self._with(passes=self.passes, theta_penalty=bound, head_penalty=head)

    def with_eliminator(self, eliminator: Eliminator) -> Problem:
        """The same with the head eliminated another way."""
        return self._with(eliminator=self._choose_eliminator(eliminator))

    def on_samples(self, samples: Tensor) -> Problem:
        """The same on a part of the samples; work is still counted in passes over all of them."""
        inputs, misfit = self.part(samples)
        return self._with(inputs=inputs, misfit=misfit)

    def part(self, samples: Tensor) -> tuple[Batch, Misfit]:
        """Inputs and misfit of some samples, numbered through all processes: those of them that are here."""
        here = len(self.inputs)
        own = samples
        if not self.processes.alone:
            own = samples - self._first_sample
            own = own[(own >= 0) & (own < here)]
        if isinstance(self.inputs, Stream):
            return self.inputs.held(own, samples.shape[0], self._others)
        assert not isinstance(self.inputs, Streamed)
        return self.inputs[own], self.misfit.take(own, here, samples.shape[0])

    @cached_property
    def _first_sample(self) -> int:
        """Samples of the processes before this one."""
        counts = self.processes.gather([len(self.inputs)])
        return int(counts[: self.processes.rank].sum())

    @property
    def n_samples(self) -> int:
        """Samples of all processes."""
        return self.misfit.over.count(len(self.inputs))

    def of_model(self, model: nn.Module, memory: float) -> Problem:
        """The same for another network of the same inputs and outputs, within so many bytes."""
        other = self._with(memory=memory)
        other.network = other._see(model)
        other.theta_penalty = replace(other._bind(), alpha=self.theta_penalty.alpha)
        other.__dict__.pop("passes", None)
        return other._in_chunks()

    def held_out(self, inputs: Any, targets: Any, sample_weight: Any = None) -> HeldOut:
        """Samples to validate on, checked."""
        network, several = self.network, not self.processes.alone
        source = as_stream("validation ", inputs, targets, sample_weight)
        if source is not None:
            return self._held_out_stream(source)
        with self.processes.together():
            inputs = check_inputs("validation inputs", inputs, network.model, may_be_empty=several)
            if len(inputs):
                check_runs("validation inputs", inputs, network)
            weights = check_sample_weight("validation weights", sample_weight, inputs, may_be_zero=several)
            rows = check_targets("validation targets", targets, inputs, network, self.loss, weights=weights)
        count = int(self.processes.gather([len(inputs)]).sum())
        if not count or (weights is not None and self.processes.all(not weights.any())):
            raise ValueError("validation holds no sample of positive weight on any process; leave it out or give some")
        misfit = Misfit.mean(self.loss, rows, weights, self._others.of_samples(count))
        given = as_tensor("validation targets", targets)
        return HeldOut(inputs, misfit, network.pass_plan(inputs, self.memory), given)

    def _held_out_stream(self, source: Samples) -> HeldOut:
        with self.processes.together():
            stream = Stream.of("validation ", source, self.network.model)
            check_runs("validation inputs", stream, self.network)
            stream = stream.check(self.network, self.loss)
        over = self._others.of_samples(int(self.processes.gather([len(stream)]).sum()))
        stream, passes = stream.shared(over), self.network.pass_plan(stream, self.memory)
        return HeldOut(stream, stream.misfit(passes.size, over), passes)

    def outputs(self, theta: Tensor, W: Tensor, held_out: HeldOut) -> Tensor:
        """The outputs on held-out samples; not counted as work."""
        features = self.network.features(theta, held_out.inputs, held_out.passes)
        return matmul_small(append_bias_column(features, self.network.bias), W.T)

    def shaped_outputs(self, theta: Tensor, W: Tensor, held_out: HeldOut) -> Tensor:
        """The same in the shape that the model gives them."""
        return self.network.shaped(self.outputs(theta, W, held_out), len(held_out.inputs))
