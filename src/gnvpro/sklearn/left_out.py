"""Logits of rows that are left out, without another fit: one Newton step from the fit of all rows.

For row i with weight w, logits x, derivative g of its loss in x, second derivative L, and V the posterior covariance of x,

    x_-i  =  x + V (I - w L V)^-1 w g

Legend: V -> covariance, w -> weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnvpro.head.hessian import assemble_hessian
from gnvpro.head.newton import Newton
from gnvpro.linalg.cholesky import damped_cholesky
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit
from gnvpro.sklearn.linear import thin_svd

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)  # of a linear model, strongest first
BIAS = 30.0  # constant column for the bias; its size makes the penalty on the bias negligible
MOST_OPERATIONS = 2e9  # per penalty of a linear model


def left_out_logits(loss: Loss, logits: Tensor, targets: Tensor, weights: Tensor, covariance: Tensor) -> Tensor:
    """Return the logits of each row, had it been left out."""
    apply = loss.hessian(logits, targets)
    units = torch.eye(logits.shape[1], dtype=logits.dtype)
    curvature = weights[:, None, None] * torch.stack([apply(u.expand_as(logits).contiguous()) for u in units], 2)
    gradient = (weights[:, None] * loss.gradient(logits, targets))[..., None]
    system = units - curvature @ covariance
    change: Tensor = covariance @ torch.linalg.solve(system, gradient)
    return logits + change[..., 0]


@dataclass(frozen=True)
class LinearClasses:
    """Logistic or multinomial regression on standardised columns; its penalty by the log loss of rows left out."""

    coefficients: Tensor  # (columns, logits)
    bias: Tensor
    left_out: Tensor  # (rows, logits)


def fit_linear_classes(columns: Tensor, loss: Loss, targets: Tensor, weights: Tensor) -> LinearClasses | None:
    """Fit to columns of mean zero; None for more rows and columns than leaving rows out takes quickly.

    More columns than rows are replaced by directions that span the rows, across which the penalty keeps coefficients at zero.
    """
    if columns.shape[1] > len(columns):
        directions = thin_svd(columns)[2]
        found = fit_linear_classes(columns @ directions, loss, targets, weights)
        return None if found is None else replace(found, coefficients=directions @ found.coefficients)
    n, entries = len(columns), targets.shape[1] * (columns.shape[1] + 1)
    if n * targets.shape[1] * entries**2 > MOST_OPERATIONS:
        return None
    Z = torch.cat([columns, columns.new_full((n, 1), BIAS)], 1)
    misfit, eliminator = Misfit.mean(loss, targets, weights), Newton()
    total, start = float(weights.sum()), None
    best, least = None, torch.inf
    for alpha in PENALTIES:
        fit = eliminator.fit(Z, misfit, alpha, start)
        start = fit.warm_start
        factor = damped_cholesky(total * assemble_hessian(Z, misfit, alpha, fit.outputs))[0]
        rows = torch.einsum("kl,nf->nklf", torch.eye(targets.shape[1]).to(Z), Z).flatten(2)  # (n, K, K f)
        half = torch.linalg.solve_triangular(factor, rows.flatten(0, 1).T, upper=False).T.view(rows.shape)
        left = left_out_logits(loss, fit.outputs, targets, weights, half @ half.mT)
        error = float(weights @ loss.value(left, targets))
        if error < least:
            best, least = LinearClasses(fit.W[:, :-1].T, BIAS * fit.W[:, -1], left), error
    return best
