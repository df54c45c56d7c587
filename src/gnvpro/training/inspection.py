"""Look before training: properties of a model and its samples, with advice.

    inputs      scale of every column, conditioning
    features    at the current theta: scale, conditioning, dead or duplicate features
    costs       seconds of a pass, measured; memory; the first solver of `auto`

Conditioning is measured on centred columns with a standard deviation of one, so it shows what scaling cannot cure.
It is computed on at most 5000 samples.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.auto import Auto
from gnvpro.methods.gnvpro import GNvpro, why_no_products
from gnvpro.network.evaluation import evaluating
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.policy import Policy
from gnvpro.problem.loss import Loss
from gnvpro.samples.several import Streamed, entries_per_sample, tensors_of
from gnvpro.training.plan import sentences

UNEVEN = 30.0  # ratio between the scales of two columns, or of a mean to its standard deviation
SMALL, LARGE = 0.03, 30.0  # standard deviations of inputs at which tanh is linear, or saturated
DEPENDENT = 1e7  # condition number
SAME = 1e-9  # relative deviation below which a column is constant, or two are equal
WARNED = 1e4  # value of UNEVEN at which `train` warns


@dataclass(frozen=True)
class MatrixColumns:
    """The columns of a matrix whose rows are samples."""

    values: Tensor  # of a limited number of samples
    mean: Tensor
    std: Tensor
    constant: tuple[int, ...]

    @staticmethod
    def of(values: Tensor, most: int) -> MatrixColumns:
        """Return the columns of these rows, at most `most` of them."""
        X = values[:most].detach().to(torch.float64)
        mean, std = X.mean(0), X.std(0, unbiased=False)
        constant = std <= SAME * (X.abs().amax(0) + 1e-300)
        return MatrixColumns(X, mean, std, tuple(constant.nonzero()[:, 0].tolist()))

    @cached_property
    def alive(self) -> Tensor:
        """Numbers of the columns that are not constant."""
        varies = torch.ones_like(self.std, dtype=torch.bool)
        varies[list(self.constant)] = False
        return varies.nonzero()[:, 0]

    @cached_property
    def scaled(self) -> Tensor:
        """These columns, centred and scaled."""
        return (self.values[:, self.alive] - self.mean[self.alive]) / self.std[self.alive]

    @cached_property
    def condition(self) -> float:
        """Condition number of the scaled columns."""
        if not len(self.alive):
            return 1.0
        singular = torch.linalg.svdvals(self.scaled)
        determined = len(self.scaled) > len(self.alive) and singular[-1] > 0
        return float(singular[0] / singular[-1]) if determined else float("inf")

    @cached_property
    def double(self) -> tuple[tuple[int, int], ...]:
        """Pairs that differ only by a factor and a shift."""
        together = (self.scaled.T @ self.scaled / len(self.scaled)).abs().triu(1) > 1 - SAME
        return tuple((int(self.alive[i]), int(self.alive[j])) for i, j in together.nonzero().tolist())

    def uneven(self, factor: float) -> tuple[int, ...]:
        """Return columns with a very different scale, or a mean far above their standard deviation."""
        if not len(self.alive):
            return ()
        mean, std = self.mean[self.alive], self.std[self.alive]
        middle = std.median()
        off = (std > factor * middle) | (std * factor < middle) | (mean.abs() > factor * std)
        return tuple(self.alive[off].tolist())


@dataclass(frozen=True)
class Inspection:
    """Result of `gnvpro.inspect`; it prints as a page of text.

    Args:
        head: name of the last layer, found by running the model.
        samples: number of samples.
        n_inputs: count of numbers per sample.
        n_features: number of features, without one for the bias.
        n_targets: number of outputs.
        n_theta: number of parameters before the head.
        precision: precision of the passes, with the reason.
        inputs: columns of the inputs; None unless samples are vectors.
        features: columns of the features.
        memory: memory limit in bytes.
        memory_of_pass: bytes that the derivatives of one forward pass need.
        solver: first solver of `auto`.
        plan: rules and their choices, in sentences.
        seconds_per_pass: measured seconds of a pass over the samples.
        advice: findings with advice, one sentence each.

    >>> import gnvpro
    >>> X, model = torch.rand(9, 2).double(), gnvpro.networks.MLP(2, [4], n_outputs=1, dtype=torch.float64)
    >>> found = gnvpro.inspect(model, X, X[:, :1], loss="least_squares")
    >>> found.head, found.n_features, found.n_theta
    ('2', 4, 12)
    """

    head: str
    samples: int
    n_inputs: int
    n_features: int
    n_targets: int
    n_theta: int
    precision: str
    inputs: MatrixColumns | None
    features: MatrixColumns
    memory: float
    memory_of_pass: float
    solver: str
    plan: tuple[str, ...]
    seconds_per_pass: float
    advice: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"head         {self.head!r}: {self.n_features} features -> {self.n_targets} outputs",
            f"network      {self.n_theta} parameters before the head, {self.precision}",
            f"samples      {self.samples}, of {self.n_inputs} numbers each",
        ]
        if self.inputs is not None:
            lines.append(f"inputs       {_scales(self.inputs)}")
        lines += [
            f"features     {_scales(self.features)}",
            f"memory       {_bytes(self.memory_of_pass)} for a forward pass, of {_bytes(self.memory)}",
            f"time         {1e3 * self.seconds_per_pass:.3g} ms per pass, measured",
            f"solver       auto begins with {self.solver!r} steps",
            *(f"{'plan' if k == 0 else '':13}{sentence}" for k, sentence in enumerate(self.plan)),
        ]
        told = [f"- {sentence}" for sentence in self.advice] or ["Nothing to advise."]
        return "\n".join([*lines, "", *told])

    def __repr__(self) -> str:
        return str(self)


def _scales(columns: MatrixColumns) -> str:
    low, high = float(columns.std.min()), float(columns.std.max())
    dead = f", {len(columns.constant)} constant" if columns.constant else ""
    double = f", {len(columns.double)} pairs alike" if columns.double else ""
    return f"standard deviations {low:.3g} to {high:.3g}, condition {columns.condition:.2g}{dead}{double}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.2g} MB"


def inspect(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: str | Loss,
    sample_weight: Any = None,
    head: str | None = None,
    memory: float | None = None,
    policy: Policy | None = None,
) -> Inspection:
    """Look at a model and samples before training; change nothing.

    Args:
        model, inputs, targets, loss, sample_weight: as for `gnvpro.train`.
        head, memory: as for `gnvpro.extend.Method`.
        policy: the thresholds that choose algorithms (see `gnvpro.policy`).

    Returns:
        The properties, with advice; print it.

    Raises:
        ValueError, TypeError: an argument cannot be used, as in `gnvpro.train`.

    >>> import gnvpro
    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(50, 2, dtype=torch.float64) * torch.tensor([1.0, 1000.0])
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    >>> found = gnvpro.inspect(model, x, x[:, :1], loss="least_squares")
    >>> found.head, found.n_features, found.inputs.uneven(30.0)
    ('2', 4, (1,))
    """
    problem = Problem(
        model, inputs, targets, loss=loss, sample_weight=sample_weight, head=head, memory=memory, policy=policy
    )  # fmt: skip
    network = problem.network
    with evaluating(network.model):
        point, seconds = timed_point(problem)
        features = MatrixColumns.of(point.Z[:, : network.n_features], problem.policy.memory.looked_at)
        usable = why_no_products("gnvpro", problem) is None
        solver = Auto().first_solver(problem) if usable else "none"
    found = Inspection(
        head=network.location.head_name or "the model itself",
        samples=len(problem.inputs),
        n_inputs=entries_per_sample(problem.inputs),
        n_features=network.n_features,
        n_targets=network.n_targets,
        n_theta=network.n_theta,
        precision=problem.working.reason,
        inputs=_columns_of_inputs(problem),
        features=features,
        memory=problem.memory,
        memory_of_pass=network.measured(problem.inputs).held * len(problem.inputs),
        solver=solver,
        plan=sentences(problem, GNvpro(), len(problem.inputs) * entries_per_sample(problem.inputs)) if usable else (),
        seconds_per_pass=seconds,
        advice=(),
    )
    return Inspection(**{**vars(found), "advice": tuple(advise(found, problem))})


def timed_point(problem: Problem) -> tuple[ReducedPoint, float]:
    """Return the reduced objective at the current theta with its gradient, and the seconds of a pass (the faster of
    two).

    Eliminating the head does not count.
    """
    taken: list[float] = []
    while not taken or (len(taken) < 2 and taken[0] < 1.0):
        begun, inner = time.perf_counter(), problem.meter.inner_seconds
        point = problem.reduced.start(problem.theta(), WarmStart(problem.W()))
        point.gradient()
        taken.append((time.perf_counter() - begun - (problem.meter.inner_seconds - inner)) / 2)
    return point, min(taken)


def advise(found: Inspection, problem: Problem) -> list[str]:
    """Return advice for the user, one sentence per finding."""
    return [*_about_inputs(found), *_about_features(found), *_about_sizes(found, problem)]


def _about_inputs(found: Inspection) -> list[str]:
    told: list[str] = []
    columns = found.inputs
    if columns is None:
        return told
    if columns.constant:
        told.append(f"Leave out input {_listed('column', columns.constant)}: the same for every sample.")
    if uneven := columns.uneven(UNEVEN):
        told.append(
            f"Standardise the inputs, (x - mean) / std, above all {_listed('column', uneven)}: far from the others in scale, "
            "or far from zero beside the spread."
        )
    elif not SMALL < float(columns.std.max()) < LARGE:
        told.append(
            f"Scale the inputs: standard deviations of {float(columns.std.max()):.2g} leave activations such as tanh "
            f"{'linear' if float(columns.std.max()) <= SMALL else 'saturated'} where training begins."
        )
    if columns.double:
        told.append(f"Input columns {columns.double[0][0]} and {columns.double[0][1]} say the same: leave one out.")
    return told


def _about_features(found: Inspection) -> list[str]:
    told, columns = [], found.features
    if len(columns.constant) == found.n_features:
        told.append(
            "Every feature is the same for every sample: the network is dead at this start. Draw other weights."
        )
    elif columns.constant:
        told.append(
            f"The same for every sample, which learns slowly or never: {_listed('feature', columns.constant)}. Draw other "
            "weights, or scale the inputs."
        )
    if columns.double:
        told.append(f"Features {columns.double[0][0]} and {columns.double[0][1]} are alike: were weights drawn twice?")
    elif columns.condition > DEPENDENT:
        told.append(
            f"The features depend on each other (condition {columns.condition:.1g}); a larger head_penalty, or fewer features, "
            "keep the head small."
        )
    return told


def _about_sizes(found: Inspection, problem: Problem) -> list[str]:
    told = []
    numbers = found.samples * found.n_targets
    fitted = found.n_theta + found.n_targets * (found.n_features + problem.network.bias)
    if fitted > numbers:
        told.append(
            f"There are {fitted} parameters and {numbers} numbers to fit: give validation=(inputs, targets) with "
            'keep="best", and larger penalties.'
        )
    if found.memory_of_pass > found.memory:
        told.append(
            f"A forward pass takes {_bytes(found.memory_of_pass)}, more than the budget of {_bytes(found.memory)}: part of it "
            "is computed again at every pass. Give more memory=, or batches."
        )
    if found.solver == "none":
        told.append("Products with the Jacobian cannot be had for this model: use method='lbfgs-vpro' or 'adam'.")
    return told


def _listed(what: str, numbers: tuple[int, ...]) -> str:
    few = f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:8]))}"
    return few if len(numbers) <= 8 else f"{few} and {len(numbers) - 8} more"


def warn_of_inputs(problem: Problem, stacklevel: int) -> None:
    """Warn of columns whose scales differ by a factor of ten thousand."""
    columns = _columns_of_inputs(problem)
    if columns is not None and (uneven := columns.uneven(WARNED)):
        warnings.warn(
            f"inputs: the scale of {_listed('column', uneven)}, or the distance from zero beside the spread, differs from the "
            f"others by a factor of {WARNED:g} or more; training will hardly see the small ones. Standardise the inputs, "
            "(x - mean) / std; gnvpro.inspect says more",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def _columns_of_inputs(problem: Problem) -> MatrixColumns | None:
    """Return the columns if samples are vectors of real numbers in memory."""
    if isinstance(problem.inputs, Streamed):
        return None
    tensors = tensors_of(problem.inputs)
    plain = len(tensors) == 1 and tensors[0].ndim == 2 and tensors[0].is_floating_point()
    return MatrixColumns.of(tensors[0], problem.policy.memory.looked_at) if plain and len(tensors[0]) > 1 else None
