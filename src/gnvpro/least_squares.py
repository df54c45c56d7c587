"""Eliminating the head for least squares, by one singular value decomposition.

    sqrt(w) Z = U S V'                       (w = 1/n; thin, so U is (rows, k), V is (n_features, k))
    W         = C' sqrt(w) U S (S^2 + a2)^-1 V'
    D inv     = D V (S^2 + a2)^-1 V' + D (I - V V') / a2

The last term exists only where there are fewer rows than features. With a2 = 0 the solution of minimum norm is taken:
singular values that are rounding error count as zero, and so do their inverses.

Legend: paper's U and V are swapped here (its features are columns), Sigma -> s, alpha_2 -> head_penalty (a2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.head import HeadFit, WarmStart
from gnvpro.misfit import Misfit
from gnvpro.operators import LinearOperator, symmetric
from gnvpro.status import Status


@dataclass(frozen=True)
class LeastSquares:
    """The exact solution of the inner problem for `HalfSquaredError`."""

    def fit(self, Z: Tensor, misfit: Misfit, head_penalty: float, start: WarmStart | None) -> HeadFit:
        """The head that minimises the penalised squared error; needs no start."""
        root = misfit.weights.sqrt()
        U, s, Vt = torch.linalg.svd(root * Z, full_matrices=False)
        denominator = s.square() + head_penalty
        if head_penalty == 0:
            denominator[s <= torch.finfo(s.dtype).eps * max(Z.shape) * s[0]] = torch.inf
        W = ((root * misfit.targets).T @ U) * (s / denominator) @ Vt

        def build_inverse() -> tuple[LinearOperator, None]:
            spectrum = 1.0 / denominator
            outside = 1.0 / head_penalty if head_penalty > 0 and Vt.shape[0] < Vt.shape[1] else 0.0

            def solve(D: Tensor) -> Tensor:
                projected = D @ Vt.T
                solution = (projected * spectrum) @ Vt
                return solution + outside * (D - projected @ Vt) if outside else solution

            return symmetric(tuple(W.shape), solve), None

        return HeadFit(W, Z @ W.T, Status.CONVERGED, 1, build_inverse, exact=True, rowwise=True)
