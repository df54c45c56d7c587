"""Other first weights for a run that makes no progress with the given ones.

A feature tanh(a'x + b) or sin(a'x + b) varies over a length of 1/|a|, and steps change a by small factors only. If
the solution varies over much shorter lengths than the weights were drawn for (such as u_t + 40 u_x = 0 along t), no
run approaches it. The head alone does not show which weights would help: the best ones for random features led
nowhere. A few steps do. So

    theta(s)    the first parameters, with the first weights of axis i times s_i and their biases times max s

is tried once for s = 3, 10, 30, 100 along all axes and along each of them, a few iterations each. The run continues
from the trial with the smallest misfit on fresh points, if that is at most half of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro.minimize.step_rules import NielsenRule
from gnvpro.minimize.trust_region import TrustRegion
from gnvpro.pde.beside import Beside
from gnvpro.pde.field_objective import EquationObjective, EquationPoint, local_model
from gnvpro.pde.residuals import Check

EARLY = 30  # iterations after which a run may count as stalled
STALLED = 1.25  # stalled: Phi falls by at most this factor between two checks, and
LEFT = 1e-3  # is at least this share of Phi of the zero field
FACTORS = (3.0, 10.0, 30.0, 100.0)
STEPS = 8  # iterations of a trial
ENOUGH = 0.5  # required misfit relative to the run's own


@dataclass(frozen=True)
class TrialEnd:
    """The result of a trial."""

    misfit: float
    point: EquationPoint
    factors: list[float]


def better_start(
    objective: EquationObjective, check: Check, first: Tensor, own: float, over: Callable[[], bool]
) -> TrialEnd | None:
    """Return the best trial from parameters near the first ones; None if no misfit is half of the run's own."""
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
        region = TrustRegion(objective, local_model, point, None, NielsenRule())
        for _ in range(STEPS):
            if region.iterate() is None:
                break
        misfit = check.misfit(check.seen(region.point.theta, region.point.fitted))
        if misfit < (ENOUGH * own if best is None else best.misfit):
            best = TrialEnd(misfit, region.point, factors.tolist())
    return best


def gets_nowhere(iterations: int, before: float, value: float, of_zero: float) -> bool:
    """Return True if other weights should be tried, from Phi at the last check, now, and of the zero field."""
    return iterations <= EARLY and before < STALLED * value and value > LEFT * of_zero


def _tried(axes: int) -> Iterator[Tensor]:
    along = [torch.ones(axes), *(torch.eye(axes) if axes > 1 else [])]
    for exponent in along:
        for factor in FACTORS:
            yield torch.tensor(factor, dtype=torch.float64) ** exponent


def first_linear(features: nn.Module) -> nn.Linear | None:
    """Return the linear layer that takes the points, if there is one."""
    if isinstance(features, nn.Linear):
        return features
    if isinstance(features, Beside):
        return first_linear(features.parts[0])
    if isinstance(features, nn.Sequential) and len(features):
        return first_linear(features[0])
    return None
