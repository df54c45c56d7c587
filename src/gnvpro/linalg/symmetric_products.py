"""The products of rows with each other, each pair once: what sums of symmetric matrices over samples are made of."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def pairs(rows: Tensor) -> Tensor:
    """The products of a row with itself and every later one, for each row."""
    count, n = rows.shape
    out, start = rows.new_empty(count * (count + 1) // 2, n), 0
    for k, row in enumerate(rows.unbind()):
        torch.mul(rows[k:], row, out=out[start : start + count - k])
        start += count - k
    return out


@lru_cache(maxsize=64)
def places(count: int, device: torch.device) -> Tensor:
    """Where the pair (k, l) stands among `pairs`: for every k and every l, one after the other."""
    k, l = torch.triu_indices(count, count, device=device)
    where = torch.empty(count, count, dtype=torch.int64, device=device)
    where[k, l] = where[l, k] = torch.arange(len(k), device=device)
    return where.view(-1)
