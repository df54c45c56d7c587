"""The four problems: data, network, loss, penalties, error measure, and the accuracies to reach.

If its interface allows it, every contender minimises the same objective from the same first weights,

    mean over samples of the loss  +  penalty/2 |B theta|^2  +  penalty/2 |W|^2,

loss = 1/2 |outputs - targets|^2 or cross-entropy. B is the identity; on the weights of a Neural ODE it takes
differences in time, over sqrt(h), as in the paper (`gnvpro.time_differences`). The score is the error on unseen
samples. A seed draws (or splits) the data and draws the first weights.

Legend: weights are one float64 vector, in the order of `model.named_parameters()`; the last two parameters are the
head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gnvpro.data import Samples, cdr, indian_pines, peaks
from gnvpro.networks import MLP, NeuralODE, ResNet


@dataclass(frozen=True)
class Spec:
    """Definition of a problem, before a seed is chosen."""

    name: str
    title: str
    loss: str  # name in `gnvpro.train`
    penalty: float
    load: Callable[[int], tuple[Samples, Samples]]  # training and validation samples
    network: Callable[[int], nn.Module]  # number of inputs -> network
    measure: str  # of the error on the validation set
    ladder: tuple[float, ...]  # accuracies to reach
    seconds: float  # limit of a run
    in_time: bool = False  # penalise differences in time


@dataclass(frozen=True)
class Problem:
    """A problem and a seed: the samples, and a model with its first weights."""

    spec: Spec
    train: Samples
    validation: Samples
    model: nn.Module

    @property
    def classification(self) -> bool:
        """True if targets are labels."""
        return self.spec.loss == "multinomial"

    @property
    def weights(self) -> Tensor:
        """Current weights of the model: the first ones, before training."""
        return parameters_to_vector(self.model.parameters()).detach().clone()

    def on(self, inputs: Tensor, targets: Tensor) -> Problem:
        """Return this problem with other training samples."""
        return replace(self, train=(inputs, targets))

    @cached_property
    def time_steps(self) -> dict[str, float]:
        """h of the parameters whose differences in time are penalised."""
        return {
            f"{prefix}.{name}": module.time_step
            for prefix, module in (self.model.named_modules() if self.spec.in_time else ())
            for name in getattr(module, "nodal_parameters", ())
        }

    def penalised(self, parts: Mapping[str, Any]) -> list[Any]:
        """Return B theta and W as vectors, from the parameters by name (torch or JAX)."""
        steps = self.time_steps
        return [
            ((part[1:] - part[:-1]) * steps[name] ** -0.5 if name in steps else part).reshape(-1)
            for name, part in parts.items()
        ]

    def objective(self, outputs: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the objective, from outputs on the training set and the parameters by name."""
        targets = self.train[1]
        if self.classification:
            fit = nn.functional.cross_entropy(outputs, targets)
        else:
            fit = 0.5 * (outputs - targets).square().sum() / len(targets)
        return fit + 0.5 * self.spec.penalty * torch.cat(self.penalised(parts)).square().sum()

    def outputs_at(self, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """The network with these weights, as a function of inputs."""
        vector_to_parameters(weights, self.model.parameters())
        return self.model

    def error(self, outputs: Callable[[Tensor], Tensor]) -> float:
        """Error of a network on the validation set, as named by `Spec.measure`."""
        inputs, targets = self.validation
        with torch.no_grad():
            predicted = outputs(inputs)
        if self.classification:
            return float((predicted.argmax(1) != targets).double().mean())
        if self.spec.measure == "mean relative error":
            return float(((predicted - targets).norm(dim=1) / targets.norm(dim=1)).mean())
        return float((predicted - targets).square().mean())


def make(name: str, seed: int) -> Problem:
    """Return the problem of this name for a seed."""
    spec = SPECS[name]
    train, validation = spec.load(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = spec.network(train[0].shape[1])
    return Problem(spec, train, validation, model)


# -- the samples


def load_regression(seed: int) -> tuple[Samples, Samples]:
    """20 smooth functions on [-1, 1]^3, each a mean of three waves: 400 samples, 1000 for validation."""
    shape = torch.Generator().manual_seed(0)  # the functions are the same for every seed, the samples are not
    waves = 0.5 * torch.randn(3, 20, 3, generator=shape, dtype=torch.float64)
    phases = 2 * math.pi * torch.rand(3, 20, generator=shape, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)

    def sample(n: int) -> Samples:
        x = 2 * torch.rand(n, 3, generator=draw, dtype=torch.float64) - 1
        return x, torch.sin(torch.einsum("ni,wki->wnk", x, waves) + phases[:, None]).mean(0)

    return sample(400), sample(1000)


def load_cdr(seed: int) -> tuple[Samples, Samples]:
    """The shipped set, inputs centred and scaled to a standard deviation of 0.1: raw ones stop ADAM."""
    split = cdr.load(seed=seed)
    mean, scale = split.train[0].mean(), 0.1 / split.train[0].std()
    train, validation = (((x - mean) * scale, c) for x, c in (split.train, split.validation))
    return train, validation


def load_peaks(seed: int) -> tuple[Samples, Samples]:
    """Draw the samples of peaks."""
    split = peaks.load(seed=seed)
    return split.train, split.validation


def load_indian_pines(seed: int) -> tuple[Samples, Samples]:
    """Load Indian Pines from the data directory."""
    split = indian_pines.load(seed=seed)
    return split.train, split.validation


def flow(features: nn.Module, width: int, n_targets: int) -> nn.Module:
    """Build a network in time and its head."""
    return nn.Sequential(features, nn.Linear(width, n_targets, dtype=torch.float64))


SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "regression",
            "20 smooth functions of 3 variables: 3-16-16-20 tanh network, 400 samples, least squares",
            "least_squares",
            1e-10,
            load_regression,
            lambda n: MLP(n, [16, 16], n_outputs=20, dtype=torch.float64),
            "MSE",
            (1e-3, 1e-4, 3e-5, 1e-5, 5e-6, 2e-6),
            12.0,
        ),
        Spec(
            "cdr",
            "CDR: 55 -> 72, Neural ODE of width 8 and depth 8, 400 samples, least squares",
            "least_squares",
            1e-10,
            load_cdr,
            lambda n: flow(NeuralODE(n, 8, 8, 4.0, dtype=torch.float64), 8, cdr.N_TARGETS),
            "mean relative error",
            (0.1, 0.03, 0.01, 0.003, 0.001),
            15.0,
            in_time=True,
        ),
        Spec(
            "peaks",
            "peaks: 2 -> 5 classes, residual network of width 4 and depth 8, 5000 samples, cross-entropy",
            "multinomial",
            1e-6,
            load_peaks,
            lambda n: flow(ResNet(n, 4, 8, 5.0, dtype=torch.float64), 4, peaks.N_CLASSES),
            "error rate",
            (0.3, 0.1, 0.05, 0.03, 0.02, 0.01),
            8.0,
        ),
        Spec(
            "indian-pines",
            "Indian Pines: 200 bands -> 16 classes, Neural ODE of width 32 and depth 4, 2957 samples, cross-entropy",
            "multinomial",
            1e-3,
            load_indian_pines,
            lambda n: flow(NeuralODE(n, 32, 4, 4.0, dtype=torch.float64), 32, len(indian_pines.CLASSES)),
            "error rate",
            (0.3, 0.25, 0.22, 0.2, 0.18, 0.17),
            14.0,
            in_time=True,
        ),
    )
}


def missing(name: str) -> str | None:
    """Return why a problem cannot run here, or None if it can."""
    if name != "indian-pines":
        return None
    try:
        indian_pines.read()
    except FileNotFoundError as error:
        return str(error)
    return None
