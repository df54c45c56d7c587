# %% [markdown]
# # The reduced objective in another optimiser
#
# `gnvpro.Problem` puts a network, samples, a loss and penalties together. `problem.reduced` is the objective with the head
# eliminated: a function of theta alone, with a value, a gradient and a curvature. Any optimiser can take it from there; here
# L-BFGS-B of SciPy, which is asked for nothing but a function that returns a value and a gradient.

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
    """Two passes over the samples."""
    point = problem.reduced.at(torch.from_numpy(theta))
    return point.value, point.gradient().numpy()


# %% [markdown]
# The gradient is that of the reduced objective, the head following theta.

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
# `store` writes theta and the head that belongs to it into the model.

# %%
best = problem.reduced.at(torch.from_numpy(found.x))
problem.store(best.theta, best.W)
with torch.no_grad():
    misfit = 0.5 * (model(x) - y).square().sum(1).mean().item()
assert abs(misfit - best.misfit) < 1e-12
