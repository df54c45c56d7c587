"""Cholesky factors of symmetric matrices that may be singular, with the smallest ridge that makes them exist."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDING = 1e-15  # first ridge that is tried, relative to the largest entry on the diagonal


def damped_cholesky(H: Tensor, damping: float = 0.0, metric: Tensor | None = None) -> tuple[Tensor, float]:
    """Return the lower factor of H + damping diag(metric), and the damping, increased by powers of ten until it works."""
    while True:
        damped = H
        if damping > 0:
            metric = torch.ones_like(H.diagonal()) if metric is None else metric
            damped = H.clone()
            damped.diagonal().add_(metric, alpha=damping)
        factor, info = torch.linalg.cholesky_ex(damped)
        if not info.item() and math.isfinite(float(factor.diagonal().sum())):  # NaN or infinity in H shows up here
            return factor, damping
        if not torch.isfinite(damped).all():  # no ridge can help; the trust region then makes no step
            return torch.eye(len(H), dtype=H.dtype, device=H.device), damping
        scale = float((H.diagonal() if metric is None else H.diagonal() / metric).abs().max())
        damping = max(10 * damping, ROUNDING * scale) or 1.0  # the scale of a zero matrix is zero
