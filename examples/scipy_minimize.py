# %% [markdown]
# # The reduced objective in another optimiser
#
# `gnvpro.Problem` combines a network, samples, a loss and penalties. `problem.reduced` is the objective with the head
# eliminated: a function of theta alone, with a value, a gradient and a curvature. Any optimiser can minimise it; this
# example uses SciPy's L-BFGS-B, which needs only a function that returns value and gradient.

# %%
from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import check_grad, minimize

import gnvpro

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.manual_seed(0)

x = torch.rand(200, 2)
y = torch.sin(3 * x.sum(1, keepdim=True)) * x[:, :1]
model = gnvpro.networks.MLP(2, [10], n_outputs=1)
problem = gnvpro.Problem(model, x, y, loss="least_squares", theta_penalty=1e-8, head_penalty=1e-8)


def value_and_gradient(theta: np.ndarray) -> tuple[float, np.ndarray]:
    """Return value and gradient, in two passes over the samples."""
    point = problem.reduced.at(torch.from_numpy(theta))
    return point.value, point.gradient().numpy()


# %% [markdown]
# This is the gradient of the reduced objective: the head follows theta.

# %%
start = problem.theta().numpy()
error = check_grad(lambda t: value_and_gradient(t)[0], lambda t: value_and_gradient(t)[1], start)
assert error < 1e-6 * np.linalg.norm(value_and_gradient(start)[1]) + 1e-7

# %%
found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
first = problem.reduced.at(problem.theta())
print(f"L-BFGS-B: {first.value:.2e} -> {found.fun:.2e} in {found.nfev} evaluations, {problem.meter.work:g} work units")
assert found.fun < 1e-2 * first.value

# %% [markdown]
# `store` writes theta and its optimal head into the model.

# %%
best = problem.reduced.at(torch.from_numpy(found.x))
problem.store(best.theta, best.W)
with torch.no_grad():
    misfit = 0.5 * (model(x) - y).square().sum(1).mean().item()
assert abs(misfit - best.misfit) < 1e-12
