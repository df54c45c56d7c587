"""Other first weights, where a run gets nowhere with those it was given.

A feature tanh(a'x + b) or sin(a'x + b) varies over a length of 1/|a|, and steps change a by factors of a few at most. Where the
solution varies over much shorter lengths than the weights were drawn for (u_t + 40 u_x = 0 does along t), no run comes
near it. The head alone does not show which weights would: the best ones for random features led nowhere. A few steps do. So

    theta(s)    the first parameters, the first weights of axis i times s_i and their biases times max s

is tried once for s = 3, 10, 30, 100 along all axes and along each of them, a few iterations each, and the run goes on from
where the misfit on fresh points is least, if that is a half of its own at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro.pde import core
from gnvpro.pde.beside import Beside
from gnvpro.pde.objective import EquationObjective, EquationPoint, local_model
from gnvpro.pde.residuals import Check

EARLY = 30  # iterations in which a run may be seen to get nowhere
STALLED = 1.25  # the factor by which Phi falls between two looks, at most, and
LEFT = 1e-3  # the share of Phi of the field zero, at least: nowhere
FACTORS = (3.0, 10.0, 30.0, 100.0)
STEPS = 8  # of a trial
ENOUGH = 0.5  # of the run's own misfit


@dataclass(frozen=True)
class Found:
    """Where a trial came to."""

    misfit: float
    point: EquationPoint
    factors: list[float]


def better_start(
    objective: EquationObjective, check: Check, first: Tensor, own: float, over: Callable[[], bool]
) -> Found | None:
    """The best trial from parameters near the first ones; None where no misfit is half of the run's own."""
    system = objective.system
    layer = first_linear(system.field.features)
    if layer is None or not layer.weight.requires_grad:
        return None
    best = None
    for factors in _tried(layer.in_features):
        if over():
            break
        times = {id(layer.weight): factors, id(layer.bias): factors.max()}
        point = objective.start(system.multiplied(first, times), torch.zeros_like(system.field.W()))
        if point.fit is None:
            continue
        region = core.TrustRegion(objective, local_model, point, None, core.NielsenRule())
        for _ in range(STEPS):
            if region.iterate() is None:
                break
        misfit = check.misfit(check.seen(region.point.theta, region.point.fitted))
        if misfit < (ENOUGH * own if best is None else best.misfit):
            best = Found(misfit, region.point, factors.tolist())
    return best


def gets_nowhere(iterations: int, before: float, value: float, of_zero: float) -> bool:
    """Whether to try others, from Phi at the last look, here, and of the field zero."""
    return iterations <= EARLY and before < STALLED * value and value > LEFT * of_zero


def _tried(axes: int) -> Iterator[Tensor]:
    along = [torch.ones(axes), *(torch.eye(axes) if axes > 1 else [])]
    for exponent in along:
        for factor in FACTORS:
            yield torch.tensor(factor, dtype=torch.float64) ** exponent


def first_linear(features: nn.Module) -> nn.Linear | None:
    """The linear layer that takes the points, where there is one."""
    if isinstance(features, nn.Linear):
        return features
    if isinstance(features, Beside):
        return first_linear(features.parts[0])
    if isinstance(features, nn.Sequential) and len(features):
        return first_linear(features[0])
    return None
