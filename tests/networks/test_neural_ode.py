"""The Neural ODE: its equations and its prolongation."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from checks import F64, randomized
from gnvpro.networks import NeuralODE


def neural_ode(depth: int, final_time: float = 1.0, scale: float = 0.5) -> NeuralODE:
    net = NeuralODE(3, 4, depth, final_time, dtype=F64)
    randomized(net, scale)
    return net


def test_neural_ode_computes_rk4_with_averaged_mid_stages() -> None:
    net, y = neural_ode(depth=2), torch.randn(5, 3, dtype=F64)
    h = 0.5

    def rate(t: float, u: Tensor) -> Tensor:
        left = int(t)
        right = min(left + 1, 2)
        K = (1 - (t - left)) * net.K[left] + (t - left) * net.K[right]
        b = (1 - (t - left)) * net.b[left] + (t - left) * net.b[right]
        return torch.tanh(u @ (K - K.T - 1e-4 * torch.eye(4, dtype=F64)).T + b)

    u = torch.tanh(y @ net.K_in.T + net.b_in)
    for j in (0.0, 1.0):  # time in units of h
        k1 = rate(j, u)
        k2 = rate(j + 0.5, u + h / 2 * k1)
        k3 = rate(j + 0.5, u + h / 2 * k2)
        k4 = rate(j + 1, u + h * k3)
        u = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    torch.testing.assert_close(net(y), u, rtol=1e-13, atol=1e-14)


def test_the_right_hand_side_is_antisymmetric_up_to_gamma() -> None:
    net = NeuralODE(3, 6, depth=3, gamma=0.1, dtype=F64)
    randomized(net)
    matrices, _ = net.stages(net.K, net.b)
    real = torch.linalg.eigvals(matrices).real
    torch.testing.assert_close(real, torch.full_like(real, -0.1), rtol=0, atol=1e-12)


def test_prolongation_keeps_the_ode_so_outputs_converge_at_order_four() -> None:
    # RK4 sees K(t), b(t) only at nodes and mid-points, and the average of two nodal values is the piecewise linear K(t)
    # at the mid-point. Prolongation samples the same piecewise linear functions, whose kinks stay on nodes: the ODE is
    # the same on every level and smooth inside each step. So the error is O(h^4) for any weights: a factor 16 per level.
    net, y = neural_ode(depth=2, scale=0.1), torch.randn(20, 3, dtype=F64)
    outputs = []
    for _ in range(5):
        outputs.append(net(y).detach())
        net = net.prolongated()
    changes = [float((fine - coarse).norm()) for coarse, fine in pairwise(outputs)]
    ratios = [a / b for a, b in pairwise(changes)]
    assert all(14 < ratio < 18 for ratio in ratios)
    assert 15.5 < ratios[-1] < 16.5


def test_prolongation_interpolates_nodal_weights_and_keeps_the_rest() -> None:
    coarse = neural_ode(depth=2, final_time=4.0)
    fine = coarse.prolongated()
    assert (fine.depth, fine.time_step, fine.gamma) == (4, 1.0, coarse.gamma)
    for name in NeuralODE.nodal_parameters:
        old, new = coarse.get_parameter(name), fine.get_parameter(name)
        assert torch.equal(new[::2], old)
        torch.testing.assert_close(new[1::2], (old[1:] + old[:-1]) / 2)
    assert torch.equal(fine.K_in, coarse.K_in)
    assert torch.equal(fine.b_in, coarse.b_in)
    with torch.no_grad():
        fine.K_in.zero_()
    assert coarse.K_in.abs().min() > 0, "the levels share no memory"


def test_prolongation_keeps_flags_type_and_mode() -> None:
    coarse = NeuralODE(3, 4, depth=2, dtype=F64).eval()
    coarse.K_in.requires_grad_(False)
    fine = coarse.prolongated()
    assert {p.dtype for p in fine.parameters()} == {F64}
    assert {name for name, p in fine.named_parameters() if not p.requires_grad} == {"K_in"}
    assert not fine.training
    assert coarse.train().prolongated().training


def test_prolongation_draws_no_random_numbers() -> None:
    net = NeuralODE(3, 4, depth=2)
    before = torch.get_rng_state()
    net.prolongated()
    assert torch.equal(torch.get_rng_state(), before)
