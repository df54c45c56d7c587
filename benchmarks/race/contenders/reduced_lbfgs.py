"""Ten lines of plain PyTorch: torch.optim.LBFGS on the reduced loss, the head solved for in each evaluation.

The gradient of the reduced loss is the gradient of the loss at the solved head (the head's own gradient is zero
there), so autograd treats the head as a constant. For cross-entropy damped Newton steps from the last head find the
next.
"""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Referee
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])  # the first one imports for a second


def grid(spec: Spec) -> list[dict[str, Any]]:
    """History sizes."""
    return [{"history_size": size} for size in (10, 100)]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Iterate until the line search fails."""
    features, head = problem.model[:-1], problem.model[-1]
    (inputs, targets), work = problem.train, 0
    solve = newton if problem.classification else least_squares
    penalty = problem.spec.penalty
    referee.start()
    theta = dict(features.named_parameters())
    optimizer = torch.optim.LBFGS(
        theta.values(), max_iter=20, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe", **settings
    )

    def closure() -> Tensor:
        nonlocal work
        optimizer.zero_grad()
        Z = torch.nn.functional.pad(features(inputs), (0, 1), value=1.0)
        with torch.no_grad():
            W = solve(Z.detach(), targets, penalty, torch.cat([head.weight, head.bias[:, None]], 1))
            head.weight.copy_(W[:, :-1]), head.bias.copy_(W[:, -1])
        value = problem.objective(Z @ W.T, theta | {"W": W})
        value.backward()
        work += 2
        referee.look(lambda: problem.model, work)
        return value

    before = None
    while before is None or not torch.equal(before, problem.weights):
        before = problem.weights
        optimizer.step(closure)
    referee.look(lambda: problem.model, work, last=True)


def least_squares(Z: Tensor, targets: Tensor, penalty: float, W: Tensor) -> Tensor:
    """Minimise 1/(2n) |Z W' - C|^2 + penalty/2 |W|^2 by the normal equations and a Cholesky factor."""
    n, eye = len(Z), torch.eye(Z.shape[1], dtype=Z.dtype)
    return torch.cholesky_solve(Z.T @ targets / n, torch.linalg.cholesky(Z.T @ Z / n + penalty * eye)).T


def newton(Z: Tensor, labels: Tensor, penalty: float, W: Tensor) -> Tensor:
    """Minimise cross-entropy + penalty/2 |W|^2 by Newton steps that are halved until the objective falls."""
    (n, f), k = Z.shape, len(W)
    C, eye = one_hot(labels, k).to(Z), torch.eye(k * f, dtype=Z.dtype)

    def value(W: Tensor) -> Tensor:
        return cross_entropy(Z @ W.T, labels) + 0.5 * penalty * W.square().sum()

    for _ in range(20):
        P = (Z @ W.T).softmax(1)
        gradient = (P - C).T @ Z / n + penalty * W
        if gradient.norm() < 1e-8:
            break
        PZ = (P[:, :, None] * Z[:, None]).reshape(n, -1)
        hessian = penalty * eye - PZ.T @ PZ / n
        for i in range(k):
            hessian[i * f : (i + 1) * f, i * f : (i + 1) * f] += PZ[:, i * f : (i + 1) * f].T @ Z / n
        step = torch.linalg.solve(hessian, -gradient.reshape(-1)).reshape(W.shape)
        length, now = 1.0, value(W)
        while value(W + length * step) > now and length > 1e-6:
            length /= 2
        W = W + length * step
    return W
