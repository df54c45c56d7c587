"""The default eliminator for a loss and a size of the head."""

from __future__ import annotations

import torch

from gnvpro.head.eliminator import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import Newton
from gnvpro.head.newton_cg import NewtonCG
from gnvpro.policy import HeadPolicy
from gnvpro.problem.loss import Loss

MAX_ITERATIONS_ON_CHANGING_SAMPLES = 20  # the inner problem then has no minimum to converge to


def default_eliminator(
    loss: Loss,
    entries: int,
    dtype: torch.dtype = torch.float64,
    same_samples: bool = True,
    policy: HeadPolicy | None = None,
) -> Eliminator:
    """Return the closed solution for least squares, else Newton's method, without its Hessian for large heads.

    Features are computed in `dtype`, whose rounding errors must not be fitted. If the samples change in every pass,
    only a few steps are tried.
    """
    if LeastSquares().why_not(loss) is None:
        return LeastSquares(torch.finfo(dtype).eps)
    rules = policy or HeadPolicy()
    kind = Newton if entries <= rules.newton_entries else NewtonCG
    return kind() if same_samples else kind(iterations=MAX_ITERATIONS_ON_CHANGING_SAMPLES)
