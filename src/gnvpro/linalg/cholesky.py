"""Cholesky factors of symmetric matrices that may be singular: as little is added to the diagonal as makes them exist."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-15  # first ridge that is tried, relative to the largest entry on the diagonal


def damped_cholesky(H: Tensor, damping: float = 0.0, metric: Tensor | None = None) -> tuple[Tensor, float]:
    """The lower factor of H + damping diag(metric), and the damping: as given, or the least power of ten above that works."""
    damped = H.clone()
    diagonal = damped.diagonal()
    metric = torch.ones_like(diagonal) if metric is None else metric
    diagonal.add_(metric, alpha=damping)
    while True:
        factor, info = torch.linalg.cholesky_ex(damped)
        if not info.item() and torch.isfinite(factor.diagonal()).all():  # what is not finite in H shows there
            return factor, damping
        if not torch.isfinite(damped).all():  # no ridge would ever be enough; the trust region then goes nowhere
            return torch.eye(len(H), dtype=H.dtype, device=H.device), damping
        scale = float((H.diagonal() / metric).abs().max())
        more = max(10 * damping, ROUNDING * scale) or 1.0  # a zero matrix has no scale
        diagonal.add_(metric, alpha=more - damping)
        damping = more
