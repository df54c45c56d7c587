"""Which eliminator a loss and the size of the head ask for."""

from __future__ import annotations

import torch

from gnvpro.head.eliminator import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import DENSE_HEAD, Newton
from gnvpro.head.newton_cg import NewtonCG
from gnvpro.problem.losses import Loss

MAX_ITERATIONS_ON_CHANGING_SAMPLES = 20  # of the inner problem, which has no minimum to converge to


def default_eliminator(
    loss: Loss, entries: int, dtype: torch.dtype = torch.float64, same_samples: bool = True
) -> Eliminator:
    """The closed solution for least squares; Newton's method for other losses, without its Hessian for large heads.

    Features are computed in `dtype`, whose rounding errors are no directions to fit along. Few steps are tried where every
    pass has other samples.
    """
    if LeastSquares().why_not(loss) is None:
        return LeastSquares(torch.finfo(dtype).eps)
    kind = Newton if entries <= DENSE_HEAD else NewtonCG
    return kind() if same_samples else kind(iterations=MAX_ITERATIONS_ON_CHANGING_SAMPLES)
