"""The misfit as a function of the outputs: roots of its Hessian."""

from __future__ import annotations

import torch

from dense_cases import F64, PseudoHuber, Rotated, relative
from gnvpro.problem.loss import Multinomial, matrix_root


def test_matrix_root_squares_to_the_hessian() -> None:
    outputs, targets = torch.randn(5, 3, dtype=F64), torch.randn(5, 3, dtype=F64)
    for loss in (PseudoHuber(), Rotated(), Multinomial()):
        hessian = loss.hessian(outputs, targets)
        C = loss.hessian_root(outputs, targets) if isinstance(loss, Multinomial) else matrix_root(hessian, outputs)
        v = torch.randn(5, 3, dtype=F64)
        assert relative((C @ (C.mT @ v[..., None]))[..., 0], hessian(v)) < 1e-13
