"""Combine networks for some or all targets, and a linear model, into one regressor.

Targets differ in noise, and a common network fits the clean ones first. A target may therefore have a separate network.
Predictions of left-out rows decide which network counts, and how much (`gnvpro.sklearn.blend`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.objectives.posterior import covering
from gnvpro.sklearn.blend import Blend, blend, trusted
from gnvpro.sklearn.linear import LinearModel
from gnvpro.sklearn.parts import COLUMNS, Posterior, SideBySide, Sources
from gnvpro.sklearn.trained import Array, Found, RowSet, Trained

OWN_NETWORK = 0.99  # a separate network must reduce the squared error of the common one by this factor
LEAST_UNEXPLAINED = 0.05  # of a row's residual
NO_BLEND = Blend(0.0, 0.0, torch.empty(0))


Fold = tuple[Trained, RowSet, Array]  # a model, samples that it has not seen, and their rows


@dataclass(frozen=True)
class Option:
    """A network for some of the targets, and its predictions of rows that are left out."""

    found: Found
    targets: Sequence[int]
    posterior: Posterior
    left_out: Tensor  # (rows, targets), in units of the standardised targets
    leverage: Tensor  # (rows, targets)
    beyond: Tensor | None = None  # (rows at the edge, targets): predictions without any of these rows
    folds: tuple[Fold, ...] = ()  # models of parts of the rows, if they were needed to predict rows left out
    again: Tensor | None = (
        None  # the same as `left_out` by models of parts of the rows, for targets of mostly noise; else NaN
    )
    members: tuple[tuple[Option, Tensor], ...] = ()  # the networks of a mean, and their weights for each target

    @property
    def parts(self) -> tuple[tuple[Option, Tensor], ...]:
        """The networks and their weights for each target."""
        return self.members or ((self, torch.ones(len(self.targets), dtype=torch.float64)),)


def mean_of(options: Sequence[Option], weights: Tensor) -> Option:
    """Return the mean of several networks, `weights` (networks, targets); all but its predictions are from the heaviest."""
    if len(options) == 1:
        return options[0]
    heaviest = options[int(weights.sum(1).argmax())]

    def mean(values: Sequence[Tensor]) -> Tensor:
        return (weights[:, None] * torch.stack([*values])).sum(0)

    return replace(
        heaviest,
        left_out=mean([option.left_out for option in options]),
        leverage=mean([option.leverage for option in options]),
        folds=(),
        members=tuple(zip(options, weights, strict=True)),
    )


@dataclass(frozen=True)
class Edge:
    """Rows at the edge of the table (`gnvpro.sklearn.edge`), and what a linear model without them predicts there."""

    rows: Array
    linear: Tensor | None  # (rows, targets)

    def at(self, left_out: Tensor, beyond: Tensor | None) -> Tensor:
        """Predictions of rows left out: one by one, but those at the edge together."""
        if not len(self.rows) or beyond is None:
            return left_out
        return left_out.index_copy(0, torch.from_numpy(self.rows), beyond)


NO_EDGE = Edge(np.empty(0, dtype=np.int64), None)


@dataclass(frozen=True)
class Choice:
    """The prediction of one target: shares of a network's output and of the linear model; without both, the mean."""

    option: Option | None
    column: int  # index of the network's output
    blend: Blend


def judged(
    options: Sequence[Option], linear: LinearModel | None, targets: Tensor, weights: Tensor, edge: Edge = NO_EDGE
) -> list[Choice]:
    """Choose for each target, by the squared errors of predictions of rows that are left out."""
    choices = []
    lines = torch.zeros_like(targets) if linear is None else linear.left_out
    lines_judged = lines if linear is None else edge.at(lines, edge.linear)
    for k, target in enumerate(targets.T):
        best, least = Choice(None, 0, NO_BLEND), torch.inf
        for option in options:
            if k in option.targets:
                column = list(option.targets).index(k)
                left_out = edge.at(option.left_out, option.beyond)[:, column]
                made = blend(left_out, lines_judged[:, k], target, weights)
                if option.again is not None and bool(option.again[:, column].isfinite().all()):
                    other = blend(option.again[:, column], lines_judged[:, k], target, weights)
                    made = made.halfway(other).of(left_out, lines_judged[:, k], target, weights)
                error = float(weights @ (target - made.left_out).square())
                if error < least:
                    made = made.of(option.left_out[:, column], lines[:, k], target, weights)
                    best, least = Choice(option, column, made), error * OWN_NETWORK
        choices.append(best)
    return choices


def taken(option: Option, count: int) -> list[Choice]:
    """Choose one network without a blend; targets that it does not predict are constant."""
    own = list(option.targets)
    return [
        Choice(option, own.index(k), trusted(option.left_out[:, own.index(k)]))
        if k in own
        else Choice(None, 0, NO_BLEND)
        for k in range(count)
    ]


def is_plain(choices: Sequence[Choice]) -> bool:
    """Return whether one network predicts all targets, without a linear model."""
    first = choices[0].option
    return (
        first is not None
        and not first.members
        and all(c.option is first and c.blend.network > 0 and c.blend.linear == 0 for c in choices)
    )


def plain(choices: Sequence[Choice]) -> nn.Sequential:
    """Return the single network with its scaling, shrunk; outputs are in units of the standardised targets."""
    option = choices[0].option
    assert option is not None
    model, units = option.found.trained.model, option.found.trained.units
    head, shares = model.get_submodule("head"), torch.tensor([c.blend.network for c in choices]).double()
    with torch.no_grad():
        factors = shares if units is None else shares * units
        head.get_parameter("weight").mul_(factors[:, None])
        head.get_parameter("bias").mul_(factors)
    return nn.Sequential(OrderedDict([*option.found.layers.items(), ("head", head)])).eval()


def assembled(
    choices: Sequence[Choice], coefficients: Tensor | None, columns: nn.Module, n_inputs: int
) -> tuple[nn.Sequential, dict[str, Posterior], tuple[Sources, ...]]:
    """Return one module of all parts that count, the posteriors of its networks, and the parts whose spread each target uses.

    `coefficients`, (columns, targets), belong to the linear model of standardised `columns`.
    """
    used: list[Option] = []
    for choice in choices:
        if choice.option is not None and choice.blend.network > 0:
            used += [option for option, _ in choice.option.parts if option not in used]
    names = {id(option): f"network{i}" for i, option in enumerate(used)}
    heads = [option.found.trained.model.get_submodule("head") for option in used]
    widths = [head.get_parameter("weight").shape[1] for head in heads]
    parts: dict[str, nn.Module] = {names[id(option)]: nn.Sequential(option.found.layers) for option in used}
    blends = [choice.blend for choice in choices]
    if not used or any(b.linear > 0 for b in blends):
        parts[COLUMNS] = columns
    n_columns = n_inputs if COLUMNS in parts else 0
    head = nn.Linear(sum(widths) + n_columns, len(choices), dtype=torch.float64)
    sources = []
    with torch.no_grad():
        weight, bias = head.weight.zero_(), head.bias.zero_()
        for k, choice in enumerate(choices):
            a, b = choice.blend.network, choice.blend.linear
            own: list[tuple[str, int, float]] = []
            if choice.option is not None and a > 0:
                for option, member_weights in choice.option.parts:
                    i, units = used.index(option), option.found.trained.units
                    member = float(member_weights[choice.column])
                    factor = a * member * (1.0 if units is None else float(units[choice.column]))
                    begin = sum(widths[:i])
                    weight[k, begin : begin + widths[i]] = factor * heads[i].get_parameter("weight")[choice.column]
                    bias[k] += factor * heads[i].get_parameter("bias")[choice.column]
                    own.append((names[id(option)], choice.column, member))
            sources.append(tuple(own) or ((COLUMNS if b > 0 else "", k if b > 0 else 0, 1.0),))
            if b > 0 and coefficients is not None:
                weight[k, sum(widths) :] = b * coefficients[:, k]
    module = nn.Sequential(OrderedDict(features=SideBySide(parts), head=head)).eval()
    return module, {names[id(option)]: option.posterior for option in used}, tuple(sources)


def noise_of(choice: Choice, k: int, target: Tensor, weights: Tensor, linear: LinearModel | None) -> Tensor:
    """Return the variance of a target's noise: squared residuals of left-out rows minus what the spread explains."""
    residuals = target - choice.blend.left_out if len(choice.blend.left_out) else target - target
    if choice.option is not None and choice.blend.network > 0:
        leverage = choice.option.leverage[:, choice.column]
    else:
        leverage = weights / weights.sum() if linear is None else linear.leverage[:, k]
    scores = (residuals * (1 - leverage).clamp_min(LEAST_UNEXPLAINED).sqrt())[:, None]
    variance = (weights[:, None] * scores.square()).sum(0) / weights.sum()
    return covering(variance, scores, weights[:, None])[0]
