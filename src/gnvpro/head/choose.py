"""Which eliminator a loss and the size of the head ask for."""

from __future__ import annotations

from gnvpro.head.eliminator import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import DENSE_HEAD, Newton, NewtonKrylov
from gnvpro.problem.losses import Loss


def default_eliminator(loss: Loss, entries: int) -> Eliminator:
    """The closed solution for least squares; Newton's method for other losses, on Krylov spaces for large heads."""
    if LeastSquares().why_not(loss) is None:
        return LeastSquares()
    return Newton() if entries <= DENSE_HEAD else NewtonKrylov()
