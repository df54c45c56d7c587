"""Public names and signatures that others rely on, to the letter, on a problem with a known answer."""

from __future__ import annotations

import inspect

import pytest
import torch

import gnvpro

X = torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.sin(3 * X.sum(1, keepdim=True))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def test_solvers_and_methods_are_objects_with_these_settings() -> None:
    assert gnvpro.solvers.Krylov() == gnvpro.solvers.Krylov(max_rank=20, rtol=1e-2) == gnvpro.solvers.Krylov(20, 1e-2)
    assert gnvpro.solvers.Hybrid() == gnvpro.solvers.Hybrid(max_rank=20, rtol=1e-2)
    settings = ["step_control", "scaling", "geodesic", "residual_term", "samples"]
    assert list(inspect.signature(gnvpro.solvers.Dense).parameters) == settings
    adam = gnvpro.methods.TorchOptimizer(torch.optim.Adam)
    assert adam == gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-3, batch_size=32)
    with pytest.raises(TypeError, match="max_rank"):
        gnvpro.methods.TorchOptimizer(torch.optim.Adam, max_rank=3)


@pytest.mark.parametrize(
    "solver", ["auto", "dense", "hybrid", "krylov", gnvpro.solvers.Krylov(max_rank=5), gnvpro.solvers.Dense()]
)
@pytest.mark.parametrize("method", ["gnvpro", gnvpro.methods.GNvpro()])
def test_a_solver_is_a_name_or_an_object(
    method: str | gnvpro.extend.Method, solver: str | gnvpro.extend.Solver
) -> None:
    result = gnvpro.train(network(), X, Y, loss="least_squares", method=method, solver=solver, work=30)
    assert result.history[-1].loss < result.history[0].loss


@pytest.mark.parametrize(
    "method",
    [
        "gnvpro",
        "gauss-newton",
        "lbfgs-vpro",
        "adam",
        "nesterov",
        gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-2),
    ],
)
def test_a_method_is_a_name_or_an_object(method: str | gnvpro.extend.Method) -> None:
    result = gnvpro.train(network(), X, Y, loss="least_squares", method=method, work=20)
    assert len(result.history) > 1


def test_a_solver_beside_a_method_without_one_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ValueError, match="solver='dense' is for method='gnvpro', got method='adam', which makes its steps"
    ):
        gnvpro.train(network(), X, Y, loss="least_squares", method="adam", solver="dense")


def test_the_middle_level_has_value_gradient_curvature_head_and_outputs() -> None:
    alpha = 1e-3
    problem = gnvpro.Problem(network(), X, Y, loss="least_squares", theta_penalty=alpha, head_penalty=alpha)
    theta = problem.theta()
    point = problem.reduced.at(theta)
    hidden = torch.tanh(X @ theta[:8].reshape(4, 2).T + theta[8:])
    Z = torch.cat([hidden, torch.ones(40, 1, dtype=torch.float64)], 1)
    W = torch.linalg.solve(Z.T @ Z / 40 + alpha * torch.eye(5, dtype=torch.float64), Z.T @ Y / 40).T
    value = 0.5 * (Z @ W.T - Y).square().mean() + alpha / 2 * (theta.square().sum() + W.square().sum())
    assert torch.allclose(point.W, W)
    assert torch.allclose(point.outputs, Z @ W.T)
    assert point.value == pytest.approx(float(value))
    step, n = 1e-6, theta.numel()
    for k in range(n):
        e = step * torch.eye(n, dtype=torch.float64)[k]
        slope = (problem.reduced.at(theta + e).value - problem.reduced.at(theta - e).value) / (2 * step)
        assert point.gradient()[k] == pytest.approx(slope, abs=1e-8)
    assert point.curvature().mv(theta) @ theta > 0
    full = problem.full.at(problem.full.join(theta, W))
    assert full.value == pytest.approx(point.value)
    assert torch.allclose(full.gradient()[:n], point.gradient(), atol=1e-12)
    assert full.gradient()[n:].abs().max() < 1e-12  # W is optimal
