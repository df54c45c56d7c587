"""Equal rows of a table become one row with a larger weight, in an order that depends on the rows alone.

A weight of two then means the same as a row that occurs twice, to the last bit: whatever follows (scaling, encodings, the
search, calibration) sees the same table. The order of the rows has no influence either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def merge_equal_rows(X: Array, targets: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return the distinct rows (inputs and target), their targets and the sums of their weights, in a shuffled order."""
    blank = np.isnan(X)
    table = np.column_stack([np.where(blank, 0.0, X), targets, blank[:, blank.any(0)]]) + 0.0  # no negative zeros
    order = sorted_rows(table)
    begins = np.flatnonzero(np.r_[True, (table[order][1:] != table[order][:-1]).any(1)])
    mixed = np.random.RandomState(0).permutation(len(begins))
    kept = order[begins][mixed]
    return X[kept], targets[kept], np.add.reduceat(weights[order], begins)[mixed]


def sorted_rows(table: Array) -> Array:
    """Return the order of the rows by their first entries; entries behind those that tell all rows apart are not read."""
    count = 2
    while True:
        order = np.lexsort(table[:, :count].T[::-1])
        some = table[order, :count]
        if count >= table.shape[1] or (some[1:] != some[:-1]).any(1).all():
            return order
        count *= 4
