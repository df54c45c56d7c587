"""How much each column of the inputs matters: one penalty per column, from the evidence (MacKay and Neal's relevances).

One penalty a1 for all of theta treats columns alike. Where few of them matter, it is too strong for their weights, which are
large, and too weak for all others, which then fit noise. With a penalty a_j for the weights w_j of column j, out of the first
layer's h units,

    d log E / d log a_j  =  1/2 (gamma_j - pull_j),      gamma_j = h - a1 tr (S^-1)_jj,      pull_j = n a1 |w_j|^2 / v

(see `gnvpro.objectives.evidence`), so that the slope vanishes near a_j = a1 gamma_j / pull_j. A penalty a1 on a column
multiplied by s_j is a penalty a1 / s_j^2 on the column as it was; hence relevances are scales of the inputs:

    s_j  =  (pull_j + 1) / (gamma_j + 1),      brought to a mean square of one.

That is two of these steps at once, because after one of them the slopes still point the same way; the ones keep columns that
the data say nothing about where they are. There are as many numbers to fit as columns. They are worth a training of their own
where the slopes promise more than one of log evidence for each; the higher evidence then decides. Of many samples the slopes
are those of a model of a part of them, and there is nothing to decide: one training on all follows. Of very many the part is
small, and columns that say little there say more to all: one of the two steps is taken.

Legend: s -> scales, S^-1 -> variances, v -> noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnvpro.networks import MLP
from gnvpro.sklearn.trained import Trained


def column_scales(trained: Trained) -> tuple[Tensor | None, float]:
    """What to multiply the columns by, and the log evidence that promises; None and zero if too little, or not known."""
    features = trained.model.get_submodule("features")
    if not isinstance(features, MLP) or not features.widths or trained.joint is None:
        return None, 0.0
    gamma, pull = slopes_by_column(trained, features.get_parameter("0.weight").detach())
    scales = (pull + 1) / (gamma + 1)
    scales = scales / scales.square().mean().sqrt()
    gain = float(0.5 * ((pull - gamma) * scales.log()).sum())
    return (scales, gain) if gain > trained.problem.policy.estimator.column_gain * len(scales) else (None, 0.0)


def half_way(scales: Tensor) -> Tensor:
    """One of the two steps."""
    return scales.sqrt() / scales.mean().sqrt()


def slopes_by_column(trained: Trained, weight: Tensor) -> tuple[Tensor, Tensor]:
    """gamma and pull: twice the evidence's slopes, apart; `weight` is the first layer's."""
    problem = trained.problem
    assert trained.joint is not None
    _, posterior, found = trained.joint
    units, count = weight.shape
    variances = torch.cholesky_inverse(posterior.factor)[: weight.numel(), : weight.numel()]
    blocks = variances.view(units, count, units, count).diagonal(dim1=0, dim2=2).sum(2)  # a unit's own, added up
    alpha = problem.theta_penalty.alpha
    if trained.directions is None:
        gamma = units - alpha * blocks.diagonal()
    else:  # across the directions nothing is known but the prior
        V = trained.directions
        gamma, weight = units * V.square().sum(1) - alpha * ((V @ blocks) * V).sum(1), weight @ V.T
    return gamma, problem.n_observed * alpha * weight.square().sum(0) / found.noise
