"""A geodesic correction: exact steps bent along the curve on which the outputs move straight.

With x_ss the second derivative of the outputs X and the head W along a step s, from one more forward pass at theta + h s,

    J' x_ss = 2/h^2 [ J'(X(theta + h s) - X(theta)) - h J'J s ],        a = -(A + damping D)^-1 J' x_ss

the step is s + a/2, unless 2 |a|_D > 0.75 |s|_D: then the curve bends too much for a parabola (Transtrum, Sethna, 2012).
J'J here is A without the penalty on theta, in the metric of the loss's Hessian.

Legend: h -> probe, alpha of Transtrum and Sethna -> limit; A, D and damping as in `gnvpro.minimize.dense_model`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.minimize.dense_model import DenseModel
from gnvpro.minimize.step_rules import Step
from gnvpro.objectives.gauss_newton_matrix import GaussNewtonMatrix
from gnvpro.objectives.reduced import ReducedObjective, ReducedPoint


@dataclass(frozen=True)
class Geodesic:
    """Bends the steps of a dense model along the geodesic, with one more forward pass each."""

    objective: ReducedObjective
    point: ReducedPoint
    matrix: GaussNewtonMatrix
    probe: float = 0.1
    limit: float = 0.75

    def bend(self, model: DenseModel, step: Step) -> Step:
        """Return the step plus half its acceleration, if that is short enough to be trusted."""
        a = self.acceleration(model, step)
        if a is None or not 2 * model.length(a) <= self.limit * step.norm:
            return step
        return replace(step, d_x=step.d_x + 0.5 * model.expand(a))

    def acceleration(self, model: DenseModel, step: Step) -> Tensor | None:
        """Return a in the coordinates of the model; None if the probe is not finite."""
        if step.norm == 0.0 or not math.isfinite(step.norm):
            return None
        point, h, meter = self.point, self.probe, self.point.problem.meter
        probe = self.objective.probe(point.x + h * step.d_x, point)
        if probe.fit is None:
            return None
        local, reduce = self.matrix, self.matrix.subspace.reduce
        there, here, passes = probe.fit, point.fit, meter.sample_passes
        assert here is not None
        change = reduce(local.pull_back(there.outputs - here.outputs, there.W - here.W))
        if local.product is None:  # passes already counted if the Jacobian did not fit into memory
            meter.sample_passes = passes
        y = reduce(step.d_x)
        straight = model.times(y) - local.penalty @ y
        return -model.solve((2 / h**2) * (change - h * straight), step.damping)
