"""The Hessian of the inner problem as a matrix.

    H[(k, i), (l, j)]  =  sum_n  h_kl(n) z_i(n) z_j(n)  +  a2 [k = l, i = j]        h(n) the misfit's Hessian in row n

Both h and z z' are symmetric: what is summed is a product of one row for each pair k <= l with one for each pair i <= j,
a quarter of the entries of H, over the samples. For one output that is no product of matrices, and Z' diag(h) Z takes a half
to a third of the time.

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


def assemble_hessian(
    Z: Tensor, misfit: Misfit, head_penalty: float, outputs: Tensor, products: Tensor | None = None
) -> Tensor:
    """The Hessian in vec(W); the products of the features with each other are made, unless they are held."""
    K, f = outputs.shape[1], Z.shape[1]
    if K == 1:
        H = misfit.over.sum(sum_squares, Z, misfit.pieces, outputs)
    else:
        H = misfit.over.sum(sum_products, Z, misfit.pieces, outputs, products).view(-1)[block_index(K, f, Z.device)]
    H.diagonal().add_(head_penalty)
    return H


def held_products(Z: Tensor) -> Tensor | None:
    """z_i z_j for i <= j, (rows, pairs), where they are few enough to be held from one Hessian to the next."""
    f = Z.shape[1]
    few = isinstance(Z, Tensor) and Z.shape[0] * f * (f + 1) // 2 <= MAX_PRODUCT_ENTRIES
    return unique_products(Z.T).T if few else None


def sum_squares(Z: Tensor, misfit: Misfit, outputs: Tensor) -> Tensor:
    """The sum of h z_i z_j over the rows, of one output."""
    ones = torch.ones_like(outputs)
    return (misfit.hessian(outputs)(ones) * Z).T @ Z


def sum_products(Z: Tensor, misfit: Misfit, outputs: Tensor, products: Tensor | None) -> Tensor:
    """The sum of h_kl z_i z_j over the rows, k <= l and i <= j."""
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
    """The Hessian from every k-th row (k <= 4) when there are many: accurate enough to precondition with."""
    stride = min(4, outputs.shape[0] // (20 * Z.shape[1]))
    if stride > 1:

        def thin(A: Tensor) -> Tensor:
            return by_columns(A[::stride])

        weights = rowwise(lambda w: w[::stride] * stride, misfit.weights)
        misfit = replace(misfit, targets=rowwise(thin, misfit.targets), weights=weights)
        Z, outputs = rowwise(thin, Z), rowwise(thin, outputs)
    return assemble_hessian(Z, misfit, head_penalty, outputs)


def pairs_of_outputs(misfit: Misfit, outputs: Tensor, chunk: int) -> Iterator[Tensor]:
    """h_kl, (pairs, rows), so many rows at a time."""
    K = outputs.shape[1]
    factors = misfit.hessian_factors(outputs)
    if factors is None:
        apply = misfit.hessian(outputs)
        units = torch.eye(K, dtype=outputs.dtype, device=outputs.device)
        columns = [apply(unit.expand_as(outputs)).T[k:] for k, unit in enumerate(units)]
        yield from torch.cat(columns).split(chunk, 1)
        return
    squares = pair_index(K, outputs.device).view(K, K).diagonal()
    for d, v in zip(*(factor.T.split(chunk, 1) for factor in factors), strict=True):
        h = unique_products(v).neg_()
        h[squares] += d
        yield h
