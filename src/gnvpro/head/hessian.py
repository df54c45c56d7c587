"""The Hessian of the inner problem as a matrix.

    H[(k, i), (l, j)]  =  sum_n  h_kl(n) z_i(n) z_j(n)  +  a2 [k = l, i = j]        h(n) the misfit's Hessian in row n

Both h and z z' are symmetric, so the sum is a matrix product over the samples: one row for each pair k <= l times
one for each pair i <= j, a quarter of the entries of H. For one output this is no matrix product, and Z' diag(h) Z
takes a half to a third of the time. So does Z' diag(h_kl) Z for all k and l if samples and outputs are few, because
calls cost more than sums.

Legend: K -> n_targets, f -> n_features (with the column of ones), a2 -> head_penalty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gnvpro.linalg.columns import by_columns
from gnvpro.linalg.rows import rowwise
from gnvpro.linalg.symmetric_products import MAX_PRODUCT_ENTRIES, block_index, pair_index, unique_products
from gnvpro.problem.misfit import Misfit

FEW_ENTRIES = 200_000  # the usual `few` of `assemble_hessian`


def assemble_hessian(
    Z: Tensor,
    misfit: Misfit,
    head_penalty: float,
    outputs: Tensor,
    products: Tensor | None = None,
    few: float = FEW_ENTRIES,
) -> Tensor:
    """Return the Hessian in vec(W); `products` of the features with each other are computed if not given.

    Up to `few` numbers h_kl z_i, these are computed for all pairs of outputs, which is faster for small problems.
    """
    K, f = outputs.shape[1], Z.shape[1]
    if K == 1 or has_few_entries(Z, misfit, K, few):
        H = misfit.over.sum(sum_squares, Z, misfit.pieces, outputs)
    else:
        H = misfit.over.sum(sum_products, Z, misfit.pieces, outputs, products).view(-1)[block_index(K, f, Z.device)]
    H.diagonal().add_(head_penalty)
    return H


def has_few_entries(Z: Tensor, misfit: Misfit, n_targets: int, few: float) -> bool:
    """True if h_kl z_i is computed for all pairs; uses the samples of all processes, which must sum alike."""
    rows = misfit.over.count(Z.shape[0])
    return isinstance(Z, Tensor) and n_targets**2 * Z.shape[1] * rows <= few


def held_products(Z: Tensor) -> Tensor | None:
    """Return z_i z_j for i <= j, (rows, pairs), if they are few enough to be reused by the next Hessian."""
    f = Z.shape[1]
    one_block = isinstance(Z, Tensor) and Z.shape[0] <= MAX_PRODUCT_ENTRIES // (f * (f + 1) // 2)
    return unique_products(Z.T).T if one_block else None


def sum_squares(Z: Tensor, misfit: Misfit, outputs: Tensor) -> Tensor:
    """Sum h_kl z_i z_j over the rows."""
    size = outputs.shape[1] * Z.shape[1]
    blocks = (hessian_of_rows(misfit, outputs)[:, :, None] * Z.T) @ Z
    return blocks.transpose(1, 2).reshape(size, size)


def hessian_of_rows(misfit: Misfit, outputs: Tensor) -> Tensor:
    """Return h_kl, (n_targets, n_targets, rows)."""
    factors = misfit.hessian_factors(outputs)
    if factors is None:
        return torch.stack(columns_of_rows(misfit, outputs))
    d, v = factors[0], factors[1].T
    h = v[:, None] * -v
    h.diagonal().add_(d)
    return h


def columns_of_rows(misfit: Misfit, outputs: Tensor) -> list[Tensor]:
    """Yield the columns h_k of the misfit's Hessian, each (n_targets, rows)."""
    apply, K = misfit.hessian(outputs), outputs.shape[1]
    units = torch.eye(K, dtype=outputs.dtype, device=outputs.device)
    return [apply(unit.expand_as(outputs)).T for unit in units]


def sum_products(Z: Tensor, misfit: Misfit, outputs: Tensor, products: Tensor | None) -> Tensor:
    """Sum h_kl z_i z_j over the rows, for k <= l and i <= j."""
    K, f = outputs.shape[1], Z.shape[1]
    if products is not None:
        (curved,) = pairs_of_outputs(misfit, outputs, max(1, len(Z)))
        return curved @ products
    sums = Z.new_zeros((K * (K + 1) // 2, f * (f + 1) // 2))
    chunk = max(1, MAX_PRODUCT_ENTRIES // sum(sums.shape))
    for curved, z in zip(pairs_of_outputs(misfit, outputs, chunk), Z.T.split(chunk, 1), strict=True):
        sums.addmm_(curved, unique_products(z).T)
    return sums


def approximate_hessian(Z: Tensor, misfit: Misfit, head_penalty: float, outputs: Tensor) -> Tensor:
    """Return the Hessian from every k-th row (k <= 4) if there are many: accurate enough for preconditioning."""
    stride = min(4, outputs.shape[0] // (20 * Z.shape[1]))
    if stride > 1:

        def thin(A: Tensor) -> Tensor:
            return by_columns(A[::stride])

        weights = rowwise(lambda w: w[::stride] * stride, misfit.weights)
        misfit = replace(misfit, targets=rowwise(thin, misfit.targets), weights=weights)
        Z, outputs = rowwise(thin, Z), rowwise(thin, outputs)
    return assemble_hessian(Z, misfit, head_penalty, outputs)


def pairs_of_outputs(misfit: Misfit, outputs: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield h_kl, (pairs, rows), `chunk` rows at a time."""
    K = outputs.shape[1]
    factors = misfit.hessian_factors(outputs)
    if factors is None:
        columns = columns_of_rows(misfit, outputs)
        yield from torch.cat([column[k:] for k, column in enumerate(columns)]).split(chunk, 1)
        return
    squares = pair_index(K, outputs.device).view(K, K).diagonal()
    for d, v in zip(*(factor.T.split(chunk, 1) for factor in factors), strict=True):
        h = unique_products(v).neg_()
        h[squares] += d
        yield h
