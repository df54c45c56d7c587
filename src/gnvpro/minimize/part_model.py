"""An almost exact step for many samples: the matrix of a part of them, and products with the curvature of all.

    (A + damping D) s = -g        A: curvature of all samples, g: their gradient      conjugate gradients, two passes each,
    (P + damping D) z =  r        P: matrix of a part of the samples                  preconditioned by its Cholesky factor

Squaring the Jacobian of n samples takes n m q^2 operations, the largest part of an exact step. P squares it for a
part with a few rows for each of the q directions, however large n is. Alone, P takes directions that the part barely
determines for flat and steps too far along them. The curvature of all samples corrects this in a few iterations,
since P differs little from A in all other directions.

Legend: P -> matrix, A -> products, D -> metric, m -> rows per sample.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gnvpro.linalg.conjugate_gradients import conjugate_gradients
from gnvpro.minimize.dense_model import DenseModel
from gnvpro.minimize.step_rules import Step

ITERATIONS = 6  # maximum number of conjugate-gradient iterations
TOLERANCE = 0.03  # relative residual at which they end


class PartModel(DenseModel):
    """The local model with the matrix of a part; its damped steps are for the curvature of all samples."""

    def __init__(
        self,
        matrix: Tensor,
        gradient: Tensor,
        metric: Tensor,
        expand: Callable[[Tensor], Tensor],
        bend: Callable[[DenseModel, Step], Step],
        product: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(matrix, gradient, metric, expand, bend)
        self.product = product  # A y, in the coordinates of the model

    def times(self, y: Tensor) -> Tensor:
        """Return A y for all samples."""
        return self.product(y)

    def straight_step(self, damping: float) -> Step:
        """Return the step for this damping, multiplied by powers of ten until the part's matrix is positive definite."""
        damping = super().straight_step(damping).damping
        y = conjugate_gradients(
            lambda p: self.product(p) + damping * self.metric * p,
            -self.gradient,
            lambda r: self.solve(r, damping),
            TOLERANCE,
            ITERATIONS,
        )
        # the residual is orthogonal to y, so y'Ay = -g'y - damping y'Dy
        predicted = 0.5 * float(damping * (self.metric * y) @ y - self.gradient @ y)
        return Step(self.expand(y), self.length(y), predicted, damping)
