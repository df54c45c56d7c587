"""Correlations, kernels and trends: every derivative against automatic differentiation."""

from __future__ import annotations

import pytest
import torch

from gnvpro.surrogate.correlation import SMOOTHNESS, correlation
from gnvpro.surrogate.kernel import Kernel
from gnvpro.surrogate.trend import columns, monomials

KERNELS = list(SMOOTHNESS)


def points(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def nested(function, x: torch.Tensor, kind: tuple[int, ...]) -> torch.Tensor:
    """A derivative of the sum of `function` over points, by automatic differentiation."""
    x = x.clone().requires_grad_(True)
    value = function(x)
    for e in kind:
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        value = slope[:, e]
    return value.detach()


@pytest.mark.parametrize("kind", KERNELS)
def test_derivatives_of_a_correlation_agree_with_automatic_differentiation(kind: str) -> None:
    length = torch.tensor(0.7, dtype=torch.float64)
    h = points(20, 1, 0)
    decay, polynomials = correlation(kind, h[:, 0], length, SMOOTHNESS[kind])
    for order, polynomial in enumerate(polynomials):
        expected = nested(lambda h: (lambda c: c[0] * c[1][0])(correlation(kind, h[:, 0], length, 0)), h, (0,) * order)
        assert torch.allclose(decay * polynomial, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["rbf", "matern52"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [((), ()), ((1,), ()), ((), (0,)), ((0,), (0,)), ((0, 1), ()), ((1, 1), (1,))]
)
def test_rows_of_derivatives_agree_with_automatic_differentiation(kind, shared, alpha, beta) -> None:
    lengths = torch.tensor([0.6, 1.3], dtype=torch.float64)
    kernel = Kernel(kind, lengths, torch.tensor([0.4, 0.9], dtype=torch.float64) if shared else None)
    x, y = points(5, 2, 1), points(5, 2, 2)
    values = kernel.between(x, y, (alpha,), (beta,)).diagonal()

    def entries(both: torch.Tensor) -> torch.Tensor:
        return torch.stack([kernel.between(b[None, :2], b[None, 2:], ((), ()), ((),))[0, 0] for b in both])

    expected = nested(entries, torch.cat([x, y], 1), alpha + tuple(2 + e for e in beta))
    assert torch.allclose(values, expected, rtol=1e-9, atol=1e-10)


def test_the_fast_rbf_kernel_is_the_product_of_its_correlations() -> None:
    kernel = Kernel("rbf", torch.tensor([0.6, 1.3, 4.0], dtype=torch.float64))
    x, y = points(6, 3, 3), points(4, 3, 4)
    apart = ((x[:, None] - y) / kernel.lengths).square().sum(-1)
    assert torch.allclose(kernel.between(x, y), torch.exp(-apart / 2), atol=1e-14)
    assert torch.allclose(kernel.between(x, y, ((), (0,)))[:6], torch.exp(-apart / 2), atol=1e-14)


@pytest.mark.parametrize("trend", ["constant", "linear", "squares", "quadratic"])
@pytest.mark.parametrize("kind", [(), (0,), (1, 1), (0, 1)])
def test_derivatives_of_trends_agree_with_automatic_differentiation(trend: str, kind: tuple[int, ...]) -> None:
    x, terms = points(7, 2, 5), monomials(trend, 2)
    found = columns(x, terms, (kind,))
    for j, term in enumerate(terms):
        expected = nested(lambda x, term=term: columns(x, (term,))[:, 0] + 0 * x.square().sum(1), x, kind)
        assert torch.allclose(found[:, j], expected)
