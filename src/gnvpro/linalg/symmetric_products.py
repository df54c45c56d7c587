"""Products of pairs of rows, each pair once; sums over samples build symmetric matrices from them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

MAX_PRODUCT_ENTRIES = 1_000_000  # entries of products of rows in memory at a time, while samples are summed


def unique_products(rows: Tensor) -> Tensor:
    """Return products of each row with itself and every later one: (count (count + 1) / 2, n) of (count, n).

    Writing in place is three times as fast as gathering both factors (17 rows of 5000).
    """
    count, n = rows.shape
    products, start = rows.new_empty(count * (count + 1) // 2, n), 0
    for k, row in enumerate(rows.unbind()):
        torch.mul(rows[k:], row, out=products[start : start + count - k])
        start += count - k
    return products


@lru_cache(maxsize=64)
def pair_index(count: int, device: torch.device) -> Tensor:
    """Index into `unique_products` of every ordered pair (k, l), row-major."""
    k, l = torch.triu_indices(count, count, device=device)
    index = torch.empty(count, count, dtype=torch.int64, device=device)
    index[k, l] = index[l, k] = torch.arange(len(k), device=device)
    return index.view(-1)


@lru_cache(maxsize=64)
def block_index(K: int, f: int, device: torch.device) -> Tensor:
    """Index into the table (pairs of K, pairs of f), row by row, of every entry of the (K f, K f) matrix of f x f blocks."""
    outer, inner = pair_index(K, device).view(K, 1, K, 1), pair_index(f, device).view(1, f, 1, f)
    return (outer * (f * (f + 1) // 2) + inner).reshape(K * f, K * f)


def add_square(out: Tensor, rows: Tensor, others: Tensor | None = None, sign: float = 1.0, blocks: int = 4) -> None:
    """Add rows others' (symmetric) to the lower triangle of `out`, in blocks that skip most of the upper triangle.

    `dsyrk` would take a fifth less time, but its own threads conflict with those of torch.
    """
    others = rows if others is None else others
    size = -(-rows.shape[0] // blocks) if rows.shape[0] > 64 else max(rows.shape[0], 1)
    for i in range(0, rows.shape[0], size):
        out[i : i + size, : i + size].addmm_(rows[i : i + size], others[: i + size].T, alpha=sign)
