"""A user's nn.Module as features and a head: the features at theta, and their linearisation.

    outputs = features(inputs, theta) W'

The features are the input of the head, flattened to rows: one per sample, or one per pixel (1x1 convolution) or
position (linear layer on sequences). theta is one float64 vector (`network.theta_and_head`); the network computes in its
own dtype.

Derivatives come from the layers' own formulas (`derivatives.chain`) if all layers have one, otherwise from automatic
differentiation (`derivatives.autodiff`).

A network holds no settings of a run: the chunking of passes and the counter of work are arguments of each pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, isinf, prod

import torch
from torch import Tensor, nn

from gnvpro.linalg.sums import SampleSum
from gnvpro.network.derivative_check import Findings, check_derivatives
from gnvpro.network.derivatives.autodiff import linearize_by_autodiff, sample_jacobian
from gnvpro.network.derivatives.chain import Formulas, bound, is_shared
from gnvpro.network.derivatives.linearization import FeatureLinearization, Rows
from gnvpro.network.evaluation import evaluating
from gnvpro.network.find_head import first_run
from gnvpro.network.habits import Habits, check_independence, check_state, find_habits, restored
from gnvpro.network.memory import Footprint, footprint
from gnvpro.network.operations import Operations, count_operations
from gnvpro.network.passes import (
    STREAMED_BYTES,
    Chunks,
    PassPlan,
    chunks_of,
    linearize_chunks,
    linearize_stream,
)
from gnvpro.network.places import intact
from gnvpro.network.subspace import Subspace, moving_directions
from gnvpro.network.theta_and_head import ThetaAndHead
from gnvpro.network.training_mode import TrainingMode
from gnvpro.network.work import WorkMeter
from gnvpro.samples.several import Batch, Inputs, Streamed, arguments_of, cast, entries_per_sample, shapes_of

GENEROUS_NUMBERS = 30  # numbers per input, unit and feature that a sample may occupy without being measured
EVERY_SAMPLE = SampleSum()


@dataclass
class SeparableNetwork(ThetaAndHead):
    """Features and head of a model, and the vector theta."""

    habits: Habits = field(default_factory=Habits)
    casts_to: torch.dtype | None = None  # dtype of the passes, if samples have another
    no_products: str | None = field(default=None, init=False)  # why products with the Jacobian are impossible
    mode: TrainingMode = field(default_factory=lambda: TrainingMode((), ()), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._units = sum([prod(shape[:-1]) for shape in self.shapes])  # rows of the weights
        self._footprints: dict[tuple[object, int], Footprint] = {}
        self._no_jacobian: dict[object, str | None] = {}
        self._operations: dict[object, Operations] = {}

    @staticmethod
    def of(
        model: nn.Module, inputs: Inputs, head: str | None = None, casts_to: torch.dtype | None = None
    ) -> SeparableNetwork:
        """Make a network from a model, after a trial on a few samples; raise a ValueError if it cannot be trained."""
        few, mode = cast(inputs[:2], casts_to), TrainingMode.of(model)
        with intact(model), evaluating(model):
            with restored(model) as before:
                first = first_run(model, few, head)
                network = SeparableNetwork(model, first.location, casts_to=casts_to)
                habits = find_habits(first, before, few)
                if habits.buffers or habits.attributes:
                    check_state(first.features, network.run_features({}, few))
            network.habits, network.mode = habits, mode
            network._check(first.features, few)
        return network

    def _check(self, features: Tensor, few: Batch) -> None:
        """Check that derivatives are right, and that features are a function of one sample at a time."""
        found = check_derivatives(self, few) if self.n_theta else Findings()
        if found.products is not None:
            plain, self.habits = self.habits, replace(self.habits, substitutes=True)
            other = check_derivatives(self, few)
            if other.wrong is other.fails is other.products is None:
                found = other
            else:
                self.habits = plain
        if (trouble := found.wrong or found.fails) is not None:
            raise ValueError(trouble)
        if not found.sure:
            check_state(features, self.run_features({}, few))
            try:
                alone = self.run_features({}, few[-1:])
            except Exception:  # BatchNorm, for example, has no variance of one sample
                alone = features.new_zeros(0)
            check_independence(features, len(few), alone)
        self.no_products = found.products

    @cached_property
    def directions(self) -> Subspace:
        """The directions in which theta can move the features."""
        return moving_directions(self.model, self.parameters, self.location.weight.device)

    # -- passes

    def features(self, theta: Tensor, inputs: Inputs, passes: PassPlan) -> Tensor:
        """Return features without derivatives, not counted as work: for validation and prediction."""
        params = self.split(theta)
        if isinstance(inputs, Streamed):
            return self._stream(params, inputs, WorkMeter(1), EVERY_SAMPLE).features
        return torch.cat(
            [self.features_of_batch(params, part) for part in chunks_of(inputs, passes)] or [self.no_features()]
        )

    def features_of_batch(self, params: dict[str, Tensor], inputs: Batch) -> Tensor:
        """Return features of some samples as rows, without derivatives."""
        with torch.no_grad():
            return self._rows_of(params, inputs)

    def _rows_of(self, params: dict[str, Tensor], inputs: Batch) -> Tensor:
        return self.rows(self._run(params, inputs))

    def linearize(
        self, theta: Tensor, inputs: Inputs, passes: PassPlan, meter: WorkMeter, over: SampleSum = EVERY_SAMPLE
    ) -> FeatureLinearization:
        """Return features and their Jacobian: one forward pass, stored as far as the plan allows."""
        params = self.split(theta)
        if isinstance(inputs, Streamed):
            return self._stream(params, inputs, meter, over)
        parts = inputs.split(passes.size) if len(inputs) else ()
        chunks = Chunks(partial(self.linearize_batch, params), parts, passes.kept, meter)
        return linearize_chunks(chunks, over, self)

    def _stream(
        self, params: dict[str, Tensor], inputs: Streamed, meter: WorkMeter, over: SampleSum
    ) -> FeatureLinearization:
        make, run = partial(self.linearize_batch, params), partial(self.features_of_batch, params)
        rows = len(inputs) * (prod(self.location.output_shape) // self.n_targets)
        return linearize_stream(make, run, (rows, self.n_features), inputs, meter, over, self.dtype)

    # -- memory

    def pass_plan(self, inputs: Inputs, memory: float, most: float = inf) -> PassPlan:
        """Return how passes go through these inputs within `memory` bytes and at most `most` samples at a time."""
        return PassPlan.within(memory, self.footprint(inputs, memory), inputs, most)

    def footprint(self, inputs: Inputs, memory: float, seeds: int = 0) -> Footprint:
        """Return bytes per sample; zero (not measured) if even a generous bound fits into a quarter of the memory.

        Measuring takes longer than training for small problems.
        """
        numbers = (
            GENEROUS_NUMBERS * (entries_per_sample(inputs) + self._units + self.n_features) + 2 * seeds * self.n_theta
        )
        if isinstance(inputs, Streamed):
            memory = min(memory, 4 * STREAMED_BYTES)
        if isinf(memory) or 8 * numbers * len(inputs) <= memory / 4:
            return Footprint(0.0, 0.0)
        return self.measured(inputs, seeds)

    def measured(self, inputs: Inputs, seeds: int = 0) -> Footprint:
        """Measure bytes per sample held by a linearisation, and the peak while passes run.

        The passes are one in each direction or, with `seeds`, that many backward passes for each sample at once.
        """
        theta = self.theta()

        def passes(few: Batch) -> FeatureLinearization:
            part = self.linearize_batch(self.split(theta), few)
            if seeds:
                list(part.jacobian(part.features.new_ones((seeds, *part.features.shape))))
            elif self.n_theta:
                part.jvp(theta)
                part.vjp(part.features)
            return part

        key = (shapes_of(inputs), seeds)
        if key not in self._footprints:
            with evaluating(self.model):  # as in training
                self._footprints[key] = footprint(passes, inputs[:4])
        return self._footprints[key]

    def operations(self, few: Batch) -> Operations:
        """Count the operations of a forward pass per sample, on a few samples."""
        key = shapes_of(few)
        if key not in self._operations:
            theta, passes, meter = self.theta(), PassPlan(len(few)), WorkMeter(1)
            with evaluating(self.model):
                self._operations[key] = count_operations(lambda part: self.linearize(theta, part, passes, meter), few)
        return self._operations[key]

    def why_no_jacobian(self, inputs: Inputs) -> str | None:
        """Return why the per-sample Jacobian cannot be computed; None if it can."""
        if len(self.location.output_shape) != 1:
            return "the head runs on many positions of a sample"
        few, key = cast(inputs[:2], self.casts_to), shapes_of(inputs)
        if key not in self._no_jacobian:  # cached: every evaluation of penalties needs it
            error = self._error_in_rows(few)
            self._no_jacobian[key] = error and f"torch.func.vmap cannot run the model ({error})"
        return self._no_jacobian[key]

    def _error_in_rows(self, few: Batch) -> str | None:
        """Return the error, if any, of the Jacobian of every sample on a few of them."""
        params, seeds = self.split(self.theta()), self.no_features().new_ones((1, len(few), self.n_features))
        try:
            if self._by_layers(params, few) is None:
                with restored(self.model):
                    sample_jacobian(self._rows_of, params, few, seeds)
        except Exception as error:
            return (str(error) or type(error).__name__).splitlines()[0]
        return None

    def linearize_batch(self, params: dict[str, Tensor], inputs: Batch) -> FeatureLinearization:
        """Return features of some samples and their Jacobian, all in memory."""
        if self.casts_to is not None:
            inputs = cast(inputs, self.casts_to)
        return self._by_layers(params, inputs) or linearize_by_autodiff(
            self._rows_of, self._at, params, inputs, self.split, self.join
        )

    def _by_layers(self, params: dict[str, Tensor], inputs: Batch) -> FeatureLinearization | None:
        """Use the layers' own formulas; return None if a layer has none."""
        if (self.mode.modules and self.mode.is_on) or self._formulas is None or not isinstance(inputs, Tensor):
            return None
        layers = self._formulas.at(params, inputs)
        if layers is None:
            return None
        shape, plain = layers.output.shape, len(self.location.output_shape) == 1  # one row per sample

        def jvp(d_theta: Tensor) -> Tensor:
            d_output = layers.jvp(self.split(d_theta), None)
            return d_output if plain else self.rows(d_output)

        def vjp(d_rows: Tensor) -> Tensor:
            return self.join(layers.vjp(d_rows if plain else self._unrows(d_rows, shape), False)[0])

        def jacobian(seeds: Tensor) -> Iterator[tuple[slice, Rows]]:
            yield slice(None), layers.jacobian(seeds.reshape(len(seeds), *shape), False)[0]

        return FeatureLinearization(layers.output if plain else self.rows(layers.output), jvp, vjp, jacobian)

    @cached_property
    def _formulas(self) -> Formulas | None:
        """Return the formulas of the feature extractor, if all its layers have one and share no parameter."""
        body, prefix = _without_head(self.model, self.location.head), ""
        if self.location.body_name is not None:
            body, prefix = self.model.get_submodule(self.location.body_name), self.location.body_name + "."
        if body is None or (self.n_theta and is_shared(body)):
            return None
        return bound(body, self.names, prefix)

    def outputs(self, params: dict[str, Tensor], inputs: Batch) -> Tensor:
        """Return the model's outputs at these parameters, including the head's; neither model nor inputs are changed."""
        if self.habits.writes_inputs:
            inputs = inputs.clone()
        positional, named = arguments_of(cast(inputs, self.casts_to))
        with self._at(params):
            return self.model(*positional, **named)

    @contextmanager
    def _at(self, params: dict[str, Tensor]) -> Iterator[None]:
        """Run the model in evaluation mode at these parameters; undo the side effects of a forward pass."""
        habits, params, mode = self.habits, self.in_own_kind(params), self.mode
        if written := (*habits.buffers, *(mode.buffers if mode.is_on else ())):
            params = {**params, **{name: self.model.get_buffer(name).detach().clone() for name in written}}
        with evaluating(self.model), habits.undone(), self.places.holding(params), mode.applied():
            yield

    def run_features(self, params: dict[str, Tensor], inputs: Batch) -> Tensor:
        """Return the input of the head, without derivatives."""
        with torch.no_grad():
            return self._run(params, inputs.clone())

    def _run(self, params: dict[str, Tensor], inputs: Batch) -> Tensor:
        """Return the head's input at these parameters."""
        with given_to(self.location.head) as features:
            self.outputs(params, inputs)
        return features[-1]


@contextmanager
def given_to(head: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of the head."""
    given: list[Tensor] = []
    handle = head.register_forward_hook(lambda module, args, output: given.append(args[0]))
    try:
        yield given
    finally:
        handle.remove()


def _without_head(module: nn.Module, head: nn.Module) -> nn.Module | None:
    """Return a chain of the model's own modules with the identity in place of the head; None if the model is not a chain."""
    if module is head:
        return nn.Identity()
    hooked = module._forward_hooks or module._forward_pre_hooks  # hooks may change the result
    if type(module).forward is not nn.Sequential.forward or hooked:
        return None
    children = list(module._modules.items())  # `named_children` omits a layer that is used a second time
    last_name, last = children[-1]
    tail = _without_head(last, head) if last is not None else None
    if tail is None:
        return None
    chain = nn.Sequential(OrderedDict([(name, child) for name, child in children[:-1] if child is not None]))
    chain.add_module(last_name, tail)
    return chain
