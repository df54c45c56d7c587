"""Rows at the edge of a table with long tails, left out all together.

A row that is left out alone lies between others, unless it is one of the extreme ones. New rows of long-tailed columns lie
beyond all that was seen, and squared errors are theirs first: a network saturates there, and a linear model may go on right or
wrong. So the rows that are farthest out are predicted by models that have seen none of them.

    distance of a row  =  max over long-tailed columns of  |x - median| / width
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.sklearn.linear import fit_linear
from gnvpro.sklearn.scaling import moderate_factors, plain_scaling, tails_of
from gnvpro.sklearn.trained import Array

SHARE = 0.05  # of the rows


def edge_rows(X: Array, weights: Array) -> Array:
    """Return the rows that are farthest out in columns with long tails; none without such columns."""
    X = X * moderate_factors(X)
    centre, width = tails_of(X, weights)
    long = width > 0
    if not long.any() or SHARE * len(X) < 1:
        return np.empty(0, dtype=np.int64)
    distance = (abs(X - centre)[:, long] / width[long]).max(1)
    return np.sort(np.argsort(-distance, kind="stable")[: math.ceil(SHARE * len(X))])


def linear_beyond(X: Array, targets: Tensor, weights: Array, edge: Array) -> Tensor | None:
    """Return the predictions of rows at the edge by the linear model of all others, or None if it is too large."""
    rest = np.setdiff1d(np.arange(len(X)), edge)
    columns: nn.Module = plain_scaling(X[rest], weights[rest])
    shares, goals = torch.tensor(weights[rest]), targets[rest]
    model = fit_linear(columns(torch.tensor(X[rest])), goals, shares)
    if model is None:
        return None
    outside: Tensor = columns(torch.tensor(X[edge]))
    return (shares @ goals) / shares.sum() + outside @ model.coefficients
