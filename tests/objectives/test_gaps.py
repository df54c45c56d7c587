"""Weights per entry: targets with gaps. Each output is then a separate least-squares problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gnvpro
from checks import relative, taylor_order
from gnvpro.network.passes import PassPlan
from gnvpro.network.subspace import choose_subspace
from gnvpro.objectives.gauss_newton_matrix import MatrixBuilder
from streamed import on_disk

F64 = torch.float64


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def samples() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets with gaps, and weights that are zero there."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, dtype=F64, generator=generator)
    y = torch.stack([torch.sin(x[:, 0]), x[:, 1] ** 2, x[:, 0] * x[:, 1]], 1)
    weights = torch.rand(40, 3, dtype=F64, generator=generator) + 0.5
    gaps = torch.rand(40, 3, generator=generator) < 0.3
    gaps[7] = True  # a sample without observations
    return x, y.masked_fill(gaps, torch.nan), weights.masked_fill(gaps, 0.0)


def problem(x: Any, y: Any, weights: Any, **options: Any) -> gnvpro.Problem:
    return gnvpro.Problem(
        network(), x, y, loss="least_squares", sample_weight=weights, theta_penalty=1e-2, head_penalty=1e-3, **options
    )


def outputs(theta: Tensor, W: Tensor) -> Tensor:
    """Outputs of `network`."""
    return torch.tanh(samples()[0] @ theta[:8].view(4, 2).T + theta[8:]) @ W[:, :-1].T + W[:, -1]


def phi(theta: Tensor, W: Tensor) -> Tensor:
    """The objective from its definition: gaps are left out one by one."""
    _, y, weights = samples()
    here = weights > 0
    squares = 0.5 * weights[here] * (outputs(theta, W)[here] - y[here]) ** 2
    return squares.sum() * 3 / weights.sum() + 0.5e-2 * theta.square().sum() + 0.5e-3 * W.square().sum()


def test_the_head_minimises_what_is_there_and_the_value_is_the_definition():
    p = problem(*samples())
    point = p.reduced.at(p.theta())
    W = point.W.clone().requires_grad_()
    value = phi(p.theta(), W)
    assert point.value == pytest.approx(value.item(), rel=1e-13)
    (gradient,) = torch.autograd.grad(value, W)
    assert float(gradient.norm()) <= 1e-13
    assert len(p.inputs) == int((samples()[2] > 0).any(1).sum()) < 40, "samples without weight are left out"


def test_the_gradient_is_the_derivative():
    p = problem(*samples())
    theta, point = p.theta(), p.reduced.at(p.theta())
    v = torch.randn(theta.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    slope = float(point.gradient() @ v)
    order = taylor_order(lambda h: abs(p.reduced.at(theta + h * v).value - point.value - h * slope))
    assert order == pytest.approx(2.0, abs=0.1)
    expected = torch.func.grad(lambda t: phi(t, point.W))(theta)
    assert relative(point.gradient(), expected) <= 1e-12


def test_the_curvature_is_the_dense_one():
    """J'HJ + a2 dW'dW + a1 I, with dW by differentiating the stationarity of W."""
    p = problem(*samples())
    theta, point = p.theta(), p.reduced.at(p.theta())
    weights = samples()[2]

    def stationary(t: Tensor, W: Tensor) -> Tensor:
        return torch.func.grad(lambda w: phi(t, w))(W).reshape(-1)

    H = torch.func.jacrev(lambda w: stationary(theta, w.reshape(point.W.shape)))(point.W.reshape(-1))
    mixed = torch.func.jacrev(lambda t: stationary(t, point.W))(theta)
    dW = -torch.linalg.solve(H, mixed)

    in_theta = torch.func.jacrev(lambda t: outputs(t, point.W).reshape(-1))(theta)
    in_W = torch.func.jacrev(lambda W: outputs(theta, W).reshape(-1))(point.W).flatten(1)
    J = in_theta + in_W @ dW
    scale = (weights * 3 / weights.sum()).reshape(-1)
    matrix = J.T @ (scale[:, None] * J) + 1e-3 * dW.T @ dW + 1e-2 * torch.eye(len(theta), dtype=F64)
    assert relative(point.curvature().dense(), matrix) <= 1e-10
    penalty = p.theta_penalty.hessian(theta)
    subspace = choose_subspace(p.network.directions, theta, penalty)
    inside = subspace.reduce(subspace.reduce(penalty).T)
    built = MatrixBuilder(subspace, inside, True, 1e9).build(point)
    assert relative(built.matrix, subspace.reduce(subspace.reduce(matrix).T)) <= 1e-9
    assert relative(built.gradient, point.gradient()) <= 1e-12


def test_equal_weights_per_entry_are_weights_per_sample():
    x, y, weights = samples()
    y, shares = y.nan_to_num(), weights[:, 0] + 0.1
    a, b = (problem(x, y, w) for w in (shares, shares[:, None].expand(40, 3).contiguous()))
    here, there = (p.reduced.at(p.theta()) for p in (a, b))
    assert here.value == pytest.approx(there.value, rel=1e-12)
    assert relative(here.gradient(), there.gradient()) <= 1e-11
    v = torch.ones_like(a.theta())
    assert relative(here.curvature().mv(v), there.curvature().mv(v)) <= 1e-10


def test_gaps_on_disk(tmp_path):
    x, y, weights = samples()
    held = problem(x, y, weights)
    disk = (on_disk(tmp_path, name, each) for name, each in zip("xyw", (x, y, weights), strict=True))
    streamed = problem(*disk).with_passes(PassPlan(7, 0.0))
    here, there = (p.reduced.at(p.theta()) for p in (streamed, held))
    assert here.value == pytest.approx(there.value, rel=1e-12)
    assert relative(here.W, there.W) <= 1e-11
    v = torch.ones_like(held.theta())
    assert relative(here.curvature().mv(v), there.curvature().mv(v)) <= 1e-10


@pytest.mark.parametrize(
    "method", ["gnvpro", "gauss-newton", "lbfgs-vpro", "adam", "adam-vpro", "nesterov", "dense", "krylov"]
)
def test_every_method_trains_on_targets_with_gaps(method):
    x, y, weights = samples()
    options: dict[str, Any] = {"solver": method} if method in ("dense", "krylov") else {"method": method}
    options |= {"theta_penalty": 1e-3, "head_penalty": 1e-3, "work": 60}
    result = gnvpro.train(
        network(), x, y, loss="least_squares", sample_weight=weights, validation=(x, y, weights), **options
    )
    assert result.history[-1].loss < result.history[0].loss
    assert result.history[-1].validation_loss == pytest.approx(result.history[-1].misfit, rel=1e-9)


REFUSED = [
    ({"sample_weight": None}, r"targets holds NaN .* or give sample_weight of the shape of the targets"),
    ({"sample_weight": torch.ones(40)}, r"targets holds NaN or infinity"),
    ({"sample_weight": torch.ones(40, 3)}, r"targets holds NaN or infinity"),
    ({"sample_weight": torch.ones(40, 2)}, r"sample_weight must have shape \(40,\), one per sample, or \(40, 3\)"),
    ({"loss": "multinomial"}, r"one per entry, which is for least squares; for Multinomial give one per sample"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_used_is_named(changes, message):
    x, y, weights = samples()
    with pytest.raises(ValueError, match=message):
        gnvpro.train(network(), x, y, **{"loss": "least_squares", "sample_weight": weights, **changes})


def test_a_table_with_missing_values():
    x, y, _ = samples()
    table = pd.DataFrame(y.numpy(), columns=["a", "b", "c"])
    result = gnvpro.train(network(), x, table, loss="least_squares", sample_weight=table.notna().astype(float), work=40)
    assert np.isfinite(result.history[-1].loss)


def test_penalties_from_the_data_need_weights_per_sample():
    x, y, weights = samples()
    with pytest.raises(ValueError, match="need one sample_weight per sample, not one per entry"):
        gnvpro.train(
            network(), x, y, loss="least_squares", sample_weight=weights, theta_penalty="auto", head_penalty="auto"
        )
