"""Relevance of each input column: one penalty per column, chosen by the evidence (MacKay and Neal).

One penalty a1 for all of theta treats columns alike. If few of them matter, a1 is too strong for their weights, which are
large, and too weak for all others, which then fit noise. With a penalty a_j for the weights w_j of column j, out of the first
layer's h units,

    d log E / d log a_j  =  1/2 (gamma_j - pull_j),      gamma_j = h - a1 tr (S^-1)_jj,      pull_j = n a1 |w_j|^2 / v

(see `gnvpro.objectives.evidence`), so that the slope vanishes near a_j = a1 gamma_j / pull_j. A penalty a1 on a column
multiplied by s_j equals a penalty a1 / s_j^2 on the original column. Relevances are therefore scales of the inputs:

    s_j  =  (pull_j + 1) / (gamma_j + 1),      brought to a mean square of one.

This makes two such steps at once, because the slopes still point the same way after the first. The ones keep the scale of
columns about which the data contain no information. There are as many numbers to fit as columns, so another training pays
only if the slopes promise more than one unit of log evidence per column; the higher evidence then decides. With many samples,
the slopes come from a model of a part of them and one training on all follows. With very many samples the part is
small, and columns matter more for all samples than for the part: then only one of the two steps is made.

Legend: s -> scales, S^-1 -> variances, v -> noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnvpro.networks import MLP
from gnvpro.sklearn.trained import Trained


def column_scales(trained: Trained) -> tuple[Tensor | None, float]:
    """Return factors of the columns and the expected gain in log evidence; None and zero if it is too small or unknown."""
    features = trained.model.get_submodule("features")
    if not isinstance(features, MLP) or not features.widths or trained.joint is None:
        return None, 0.0
    gamma, pull = slopes_by_column(trained, features.get_parameter("0.weight").detach())
    scales = (pull + 1) / (gamma + 1)
    scales = scales / scales.square().mean().sqrt()
    gain = float(0.5 * ((pull - gamma) * scales.log()).sum())
    return (scales, gain) if gain > trained.problem.policy.estimator.column_gain * len(scales) else (None, 0.0)


def half_way(scales: Tensor) -> Tensor:
    """Return the factors of a single step instead of two."""
    return scales.sqrt() / scales.mean().sqrt()


def slopes_by_column(trained: Trained, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return gamma and pull, the two terms of the evidence's slopes; `weight` belongs to the first layer."""
    problem = trained.problem
    assert trained.joint is not None
    _, posterior, found = trained.joint
    units, count = weight.shape
    variances = torch.cholesky_inverse(posterior.factor)[: weight.numel(), : weight.numel()]
    blocks = variances.view(units, count, units, count).diagonal(dim1=0, dim2=2).sum(2)  # one block per unit
    alpha = problem.theta_penalty.alpha
    if trained.directions is None:
        gamma = units - alpha * blocks.diagonal()
    else:  # across the directions the variance is the prior's
        V = trained.directions
        gamma, weight = units * V.square().sum(1) - alpha * ((V @ blocks) * V).sum(1), weight @ V.T
    return gamma, problem.n_observed * alpha * weight.square().sum(0) / found.noise
