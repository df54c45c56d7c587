"""Small dense algebra on NumPy arrays, by LAPACK without the overhead of a checked call.

A fit of a few dozen samples factorises some hundred small matrices. One call into torch or numpy.linalg takes longer than
the factorisation; LAPACK's own functions do not. Stacks of matrices go through torch, which has batched kernels.

    A = Q R                            `factorise`         one matrix, or a stack (B, n, f)
    R^-1 b                             `back_substitute`   NaN if R is singular
    J = Q R,  along = Q'r              `triangle`          without Q
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import lapack

Array = NDArray[np.float64]


def factorise(A: Array) -> tuple[Array, Array]:
    """Q (B, n, f) and R (B, f, f) of a stack with at least as many rows as columns."""
    if len(A) > 1:
        Q, R = torch.linalg.qr(torch.from_numpy(A))
        return Q.numpy(), R.numpy()
    f = A.shape[2]
    if f == 0:
        return A, np.zeros((1, 0, 0))
    qr, tau, _, _ = lapack.dgeqrf(A[0])
    R = qr[:f] * upper(f)
    return lapack.dorgqr(qr, tau)[0][None], R[None]


def back_substitute(R: Array, b: Array) -> Array:
    """R^-1 b of stacks (B, f, f) and (B, f, r); NaN if R is singular."""
    if len(R) > 1:
        stacked: Array = torch.linalg.solve_triangular(torch.from_numpy(R), torch.from_numpy(b), upper=True).numpy()
        return stacked
    if b.size == 0:
        return np.zeros_like(b)
    found, info = lapack.dtrtrs(R[0], b[0])
    return found[None] if info == 0 else np.full_like(b, np.nan)


def triangle(J: Array, r: Array) -> tuple[Array, Array]:
    """R (p, p) and Q'r (p,) of J = Q R, from one factorisation of [J r]; rows of zeros if J has fewer rows than columns."""
    p = J.shape[1]
    both = np.empty((max(len(J), p + 1), p + 1), order="F")
    both[: len(J), :p], both[: len(J), p] = J, r
    both[len(J) :] = 0.0
    qr, _, _, _ = lapack.dgeqrf(both, overwrite_a=1)
    return qr[:p, :p] * upper(p), qr[:p, p]


@lru_cache(maxsize=64)
def upper(p: int) -> Array:
    """Ones in the upper triangle."""
    return np.triu(np.ones((p, p)))


def lengths(A: Array) -> Array:
    """The length of every column of a matrix."""
    norms: Array = np.sqrt(np.einsum("ij,ij->j", A, A))
    return norms
