"""Modules that compute something else in training mode: dropout, and norms with running statistics.

    batch of a method that draws batches     training mode: dropout draws, norms use the batch
    everything else                          evaluation mode: no dropout, norms use their running statistics

The statistics are not running: `measured` sets them to those of given samples, by one pass,

    mean, variance  =  those of a norm's inputs over all chunks of the pass

so they have no momentum and forget the weights of earlier steps. Numbers that a dropout draws depend on a seed alone.
Modules that the user left in evaluation mode stay in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

RANDOM = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)
KINDS = (nn.modules.batchnorm._NormBase, *RANDOM)


def is_norm(module: nn.Module) -> bool:
    """Return whether a module normalises by running statistics."""
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None


def is_random(module: nn.Module) -> bool:
    """Return whether a module draws random numbers in training mode."""
    share = getattr(module, "p", getattr(module, "dropout", 0.0))
    return isinstance(module, RANDOM) and isinstance(share, int | float) and share > 0


def changing(model: nn.Module) -> list[nn.Module]:
    """Return the modules in training mode that compute something else in evaluation mode."""
    return [
        module
        for module in model.modules()
        if module.training and isinstance(module, KINDS) and (is_norm(module) or is_random(module))
    ]


@dataclass
class _Sums:
    """Count, mean and sum of squared deviations of a norm's inputs, channel by channel."""

    count: float
    mean: Tensor
    squares: Tensor

    @staticmethod
    def of(values: Tensor) -> _Sums:
        rows = values.detach().to(torch.float64).movedim(1, 0).flatten(1)
        mean = rows.mean(1)
        return _Sums(rows.shape[1], mean, (rows - mean[:, None]).square().sum(1))

    def and_(self, other: _Sums) -> _Sums:
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return _Sums(count, mean, self.squares + other.squares + apart.square() * (self.count * other.count / count))


@dataclass
class TrainingMode:
    """The modules of a model that its user left in training mode, and that compute something else there."""

    modules: tuple[nn.Module, ...]
    buffers: tuple[str, ...]  # names of the norms' statistics
    seed: int | None = None  # in a batch: of the numbers that are drawn
    measures: bool = False  # in a pass that measures statistics

    @staticmethod
    def of(model: nn.Module) -> TrainingMode:
        """Find them in a model that is in its user's modes."""
        modules = changing(model)
        norms = {id(value) for module in modules if is_norm(module) for value in module.buffers(recurse=False)}
        return TrainingMode(tuple(modules), tuple(name for name, value in model.named_buffers() if id(value) in norms))

    def in_copy(self, model: nn.Module, other: nn.Module) -> TrainingMode:
        """Return the same of another network, whose modules have the same names, if they are there."""
        own = {id(module) for module in self.modules}
        names = {name for name, module in model.named_modules() if id(module) in own}
        modules = tuple(module for name, module in other.named_modules() if name in names)
        known = dict(other.named_buffers())
        return TrainingMode(modules, tuple(name for name in self.buffers if name in known))

    @property
    def norms(self) -> list[Any]:
        """The modules with statistics."""
        return [module for module in self.modules if is_norm(module)]

    @property
    def is_on(self) -> bool:
        """Whether passes run in training mode at the moment."""
        return self.seed is not None or self.measures

    @contextmanager
    def on_batch(self, seed: int) -> Iterator[None]:
        """Run passes in training mode; equal seeds draw equal numbers."""
        self.seed = seed if self.modules else None
        try:
            yield
        finally:
            self.seed = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the modules into the mode of the pass."""
        if not self.is_on:
            yield
            return
        modules = self.norms if self.measures else self.modules
        with torch.random.fork_rng(devices=[]):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            for module in modules:
                module.training = True
            try:
                yield
            finally:
                for module in modules:
                    module.training = False

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Set the statistics to those of the samples of the passes in this block."""
        found: dict[int, _Sums] = {}

        def note(key: int, module: nn.Module, args: tuple[Tensor, ...]) -> None:
            sums = _Sums.of(args[0])
            found[key] = found[key].and_(sums) if key in found else sums

        norms = self.norms
        hooks = [norm.register_forward_pre_hook(partial(note, key)) for key, norm in enumerate(norms)]
        self.measures = bool(norms)
        try:
            yield
        finally:
            self.measures = False
            for hook in hooks:
                hook.remove()
        for key, sums in found.items():
            norms[key].running_mean.copy_(sums.mean)
            norms[key].running_var.copy_(sums.squares / max(sums.count - 1, 1))
            if norms[key].num_batches_tracked is not None:
                norms[key].num_batches_tracked.fill_(max(1, int(norms[key].num_batches_tracked)))
