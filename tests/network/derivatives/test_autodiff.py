"""Derivatives by automatic differentiation, against jacrev of the features as a whole."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from checks import F64, relative
from gnvpro.network.derivatives.autodiff import Params, linearize_by_autodiff

SHAPES = {"A": (3, 2), "b": (3,), "unused": (2,)}
SIZES = [6, 3, 2]


def split(theta: Tensor) -> Params:
    return {name: part.view(SHAPES[name]) for name, part in zip(SHAPES, theta.split(SIZES), strict=True)}


def join(parts: Params) -> Tensor:
    return torch.cat(
        [parts[name].reshape(-1) if name in parts else torch.zeros(n) for name, n in zip(SHAPES, SIZES, strict=True)]
    )


def curved(params: Params, x: Tensor) -> Tensor:
    return torch.sin(x @ params["A"].T) * params["b"]


def linear(params: Params, x: Tensor) -> Tensor:
    return x @ params["A"].T + params["b"]


def constant(params: Params, x: Tensor) -> Tensor:
    return torch.cat([x, x[:, :1]], 1)


@pytest.mark.parametrize("run", [curved, linear, constant], ids=lambda run: run.__name__)
def test_against_jacrev(run):
    generator = torch.Generator().manual_seed(0)
    theta, d_theta = torch.randn(2, sum(SIZES), dtype=F64, generator=generator)
    x, d_rows = torch.randn(5, 2, dtype=F64, generator=generator), torch.randn(5, 3, dtype=F64, generator=generator)
    seeds = torch.randn(4, 5, 3, dtype=F64, generator=generator)
    made = linearize_by_autodiff(run, lambda params: nullcontext(), split(theta), x, split, join)
    J = jacrev(lambda t: run(split(t), x))(theta)  # (rows, features, theta)
    assert torch.equal(made.features, run(split(theta), x))
    for _ in range(2):  # the graph of the first product is used again
        assert relative(made.jvp(d_theta), J @ d_theta) <= 1e-14
        assert relative(made.vjp(d_rows), torch.einsum("nf,nfq->q", d_rows, J)) <= 1e-14
    ((rows, jacobians),) = made.jacobian(seeds)
    assert rows == slice(None)
    dense = torch.cat([jacobians[name] for name in SHAPES])
    assert relative(dense, torch.einsum("mnf,nfq->qmn", seeds, J)) <= 1e-14
