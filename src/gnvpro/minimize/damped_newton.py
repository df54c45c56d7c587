"""Newton's method with a backtracking search: one loop, and directions to choose from.

    W  <-  W + t d,        H d = -g        t from `SearchRule`, d from

    a Cholesky factor, used again while its steps reduce the gradient fast      `head.newton`
    conjugate gradients, to the digits that the next step can use               `head.newton_cg`, `stochastic.batch_head`
    Q and R of the linearised equations                                         `pde.field_head`

Each direction is a `LineModel`, so the loop is the trust region's (`trust_region.minimize`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gnvpro.minimize.line_model import LineModel, SearchRule
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import Objective, PointT, TrustRegion, minimize


def damped_newton(
    objective: Objective[PointT],
    first: PointT,
    direction: Callable[[PointT], Tensor],
    converged: Callable[[PointT], bool],
    trials: int,
) -> tuple[PointT, Status, int]:
    """Return the last accepted point, why the search ended, and the number of trials."""

    def model(point: PointT) -> LineModel:
        gradient = point.gradient()
        return LineModel(gradient, direction(point).reshape(-1), len(gradient))

    return minimize(TrustRegion(objective, model, first, rule=SearchRule()), converged, trials)
