"""Directions in theta that matter: a direction is left out only if neither samples nor penalty depend on it."""

from __future__ import annotations

import torch
from torch import Tensor

from dense_cases import F64, ode
from gnvpro import Tikhonov, time_differences
from gnvpro.network.find_head import find_head
from gnvpro.network.separable import SeparableNetwork
from gnvpro.network.subspace import choose_subspace, moving_directions


def test_symmetric_directions_are_left_out_where_nothing_asks_for_them() -> None:
    model = ode(3)
    network = SeparableNetwork(model, find_head(model, torch.zeros(2, 3, dtype=F64), None))
    theta, n = network.theta(), network.n_theta
    few = moving_directions(model, network.parameters, theta.device)
    assert few.count == n - 3 * 10  # 3 nodes, 10 symmetric directions of a 4 x 4 matrix
    Q = torch.stack([few.expand(unit) for unit in torch.eye(few.count, dtype=F64)], 1)
    assert torch.allclose(Q.T @ Q, torch.eye(few.count, dtype=F64), atol=1e-15, rtol=0)
    v = torch.randn(n, dtype=F64)
    assert torch.allclose(few.reduce(v), Q.T @ v, atol=1e-15, rtol=0)

    def penalty(tikhonov: Tikhonov) -> Tensor:
        bound = tikhonov.bind(model, network.parameters)
        return torch.stack([bound.hessian_mv(unit) for unit in torch.eye(n, dtype=F64)])

    differences, plain = penalty(Tikhonov(1e-3, time_differences)), penalty(Tikhonov(1e-3))
    assert choose_subspace(few, theta, differences).count == few.count
    assert choose_subspace(few, theta, plain).count == n  # it pulls the symmetric part to zero
    assert choose_subspace(few, few.expand(few.reduce(theta)), plain).count == few.count
    coupling = torch.ones(n, n, dtype=F64) * 1e-3
    assert choose_subspace(few, torch.zeros(n, dtype=F64), coupling).count == n
