"""Which eliminator a loss and the size of the head ask for."""

from __future__ import annotations

import torch

from gnvpro.head.eliminator import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import DENSE_HEAD, Newton
from gnvpro.head.newton_cg import NewtonCG
from gnvpro.problem.losses import Loss


def default_eliminator(loss: Loss, entries: int, dtype: torch.dtype = torch.float64) -> Eliminator:
    """The closed solution for least squares; Newton's method for other losses, without its Hessian for large heads.

    Features are computed in `dtype`, whose rounding errors are no directions to fit along.
    """
    if LeastSquares().why_not(loss) is None:
        return LeastSquares(torch.finfo(dtype).eps)
    return Newton() if entries <= DENSE_HEAD else NewtonCG()
