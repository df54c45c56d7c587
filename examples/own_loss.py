# %% [markdown]
# # Your own loss
#
# A loss is an object with three methods; it must be convex in the outputs. This example is a robust regression on data
# with ten per cent outliers. The pseudo-Huber loss grows like |r| for large residuals r, so no outlier dominates:
#
#     l(r) = d^2 (sqrt(1 + (r/d)^2) - 1),    l'(r) = r / sqrt(1 + (r/d)^2),    l''(r) = (1 + (r/d)^2)^(-3/2)

# %%
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import gnvpro

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


@dataclass(frozen=True)
class PseudoHuber(gnvpro.extend.Loss):
    """Squared error near zero, absolute error beyond d."""

    d: float = 0.1

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.d**2 * (torch.sqrt(1 + ((outputs - targets) / self.d) ** 2) - 1).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        residual = outputs - targets
        return residual / torch.sqrt(1 + (residual / self.d) ** 2)

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        curvature = (1 + ((outputs - targets) / self.d) ** 2) ** -1.5
        return lambda d_outputs: curvature * d_outputs


# %% [markdown]
# Check derivatives written by hand: torch differentiates the value.

# %%
outputs, targets = torch.randn(5, 1, requires_grad=True), torch.randn(5, 1)
loss = PseudoHuber()
(gradient,) = torch.autograd.grad(loss.value(outputs, targets).sum(), outputs, create_graph=True)
(curvature,) = torch.autograd.grad(gradient.sum(), outputs)
assert torch.allclose(gradient, loss.gradient(outputs, targets))
assert torch.allclose(curvature, loss.hessian(outputs, targets)(torch.ones(5, 1)))

# %%
torch.manual_seed(0)
x = torch.linspace(-1, 1, 300)[:, None]
truth = torch.sin(4 * x)
y = truth + 0.02 * torch.randn_like(x)
y[torch.rand(300) < 0.1] += 3  # outliers

errors = {}
for name, choice in {"least squares": "least_squares", "pseudo-Huber": PseudoHuber()}.items():
    torch.manual_seed(1)
    model = gnvpro.networks.MLP(1, [8], n_outputs=1)
    result = gnvpro.train(model, x, y, loss=choice, theta_penalty=1e-6, head_penalty=1e-6, work=200)
    errors[name] = float((model(x) - truth).square().mean().sqrt().detach())
    print(f"{name:14s} error {errors[name]:.4f}   {result.status}")
assert errors["pseudo-Huber"] < 0.05 < 0.2 < errors["least squares"]
