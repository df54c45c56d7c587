"""ADAM in rotated coordinates: what it is without rotations, and what these are good for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnvpro.methods import RotatedAdam
from gnvpro.stochastic.learning_rate import cosine
from gnvpro.stochastic.rotated_adam import Rotated


def test_without_rotations_it_is_adam() -> None:
    torch.manual_seed(0)
    target = torch.randn(3, 4, dtype=torch.float64)
    own, other = (nn.Parameter(torch.zeros(3, 4, dtype=torch.float64)) for _ in range(2))
    rotated = RotatedAdam([own], lr=0.1, betas=(0.9, 0.99), eps=1e-8, max_side=0)
    adam = torch.optim.Adam([other], lr=0.1, betas=(0.9, 0.99), eps=1e-8)
    own.grad = own.detach() - target
    rotated.step()  # learns nothing, and does not move
    for _ in range(10):
        own.grad, other.grad = own.detach() - target, other.detach() - target
        rotated.step()
        adam.step()
    torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


def test_rotations_of_the_problem_do_not_slow_it() -> None:
    """min |A (w - 1) B| with condition 1e4 in rotated coordinates: ADAM cannot see the axes, RotatedAdam finds them."""
    torch.manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0] for _ in range(2))
    scales = torch.logspace(0, -1.5, 8, dtype=torch.float64)
    A, B = U @ torch.diag(scales) @ U.T, V @ torch.diag(scales) @ V.T
    values = []
    for make in (lambda p: RotatedAdam(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.95, 0.95))):
        w = nn.Parameter(torch.zeros(8, 8, dtype=torch.float64))
        optimizer = make([w])
        for k in range(300):
            optimizer.param_groups[0]["lr"] = cosine(0.1, k / 300, k)
            optimizer.zero_grad()
            value = (A @ (w - torch.ones_like(w)) @ B).square().sum()
            value.backward()
            optimizer.step()
        values.append(value.item())
    assert values[0] < 0.1 * values[1]


def test_rounding_errors_do_not_choose_the_coordinates() -> None:
    """A first gradient of rank one leaves most coordinates open; two runs must choose equal ones."""
    torch.manual_seed(0)
    first = torch.randn(6, 1, dtype=torch.float64) @ torch.randn(1, 5, dtype=torch.float64)
    later = torch.randn(25, 6, 5, dtype=torch.float64)
    ends = []
    for error in (0.0, 1e-16):
        w = nn.Parameter(torch.zeros(6, 5, dtype=torch.float64))
        optimizer = RotatedAdam([w], lr=0.1)
        for gradient in (first, *later):
            w.grad = gradient + error * torch.randn_like(gradient)
            optimizer.step()
        ends.append(w.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(5,), (3, 1, 2, 2), (1, 4), (4, 300)])
def test_parameters_of_every_shape_are_moved_to_the_minimum(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    optimizer = RotatedAdam([w], lr=0.1)
    before = w.square().sum().item()
    for k in range(200):
        optimizer.param_groups[0]["lr"] = cosine(0.1, k / 200, k)
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()
    assert w.square().sum().item() < 1e-2 * before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] must be below 1"),
        ({"every": 0}, "every must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RotatedAdam([nn.Parameter(torch.zeros(2))], **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_in_half_precision_are_moved_to_the_minimum(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    target = torch.randn(3, 4)
    w = nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    optimizer = RotatedAdam([w], every=2)
    for step in range(200):
        w.grad = w.detach() - target.to(dtype)
        optimizer.param_groups[0]["lr"] = cosine(0.1, step / 200, step)
        optimizer.step()
    assert float((w.detach().float() - target).square().sum()) < 1e-2 * float(target.square().sum())


def test_kernels_of_convolutions_may_be_longer_than_matrices() -> None:
    matrix, kernel = torch.nn.Parameter(torch.ones(8, 75)), torch.nn.Parameter(torch.ones(8, 3, 5, 5))
    optimizer = RotatedAdam([matrix, kernel], max_side=20)
    (matrix.square().sum() + kernel.square().sum()).backward()
    optimizer.step()
    assert "right" not in optimizer.state[matrix]
    assert optimizer.state[kernel]["right"].shape == (75, 75)
    assert "left" in optimizer.state[matrix]


def test_a_mean_that_is_short_at_first_lags_less_and_is_the_same_later() -> None:
    """Gradients that turn around after ten steps: who remembers fewer of them follows sooner."""
    turned = []
    for shortest in (None, 4):
        kernel, state = Rotated(max_side=0, shortest=shortest), {}
        for k in range(1000):
            w = torch.zeros(1, dtype=torch.float64)
            kernel.step(w, torch.tensor([1.0 if k <= 10 else -1.0], dtype=torch.float64), state, 1.0)
            turned.append(w.item())
    plain, grown = turned[:1000], turned[1000:]
    assert next(k for k, step in enumerate(grown) if step > 0) < next(k for k, step in enumerate(plain) if step > 0)
    assert grown[1] == plain[1]
    assert abs(grown[-1] - plain[-1]) < 1e-6
