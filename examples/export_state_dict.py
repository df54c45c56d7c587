# %% [markdown]
# # Taking the model away: state_dict
#
# The usual way of PyTorch: keys are those that the model had before it was trained.

# %%
from __future__ import annotations

import math

import torch

import gnvpro

torch.manual_seed(0)
inputs = torch.rand(300, 2, dtype=torch.float64)
targets = torch.stack([torch.sin(math.pi * inputs[:, 0]), inputs.prod(dim=1)], dim=1)
model = gnvpro.networks.MLP(2, [12], n_outputs=2, dtype=torch.float64)
gnvpro.train(model, inputs, targets, loss="least_squares", work=100)
new_inputs = torch.rand(7, 2, dtype=torch.float64)
with torch.no_grad():
    expected = model(new_inputs)

# %%
torch.save(model.state_dict(), "surrogate.pt")
print({key: tuple(value.shape) for key, value in model.state_dict().items()})

# %%
again = gnvpro.networks.MLP(2, [12], n_outputs=2, dtype=torch.float64)
again.load_state_dict(torch.load("surrogate.pt", weights_only=True))
with torch.no_grad():
    assert torch.equal(again(new_inputs), expected)

# %% [markdown]
# What scikit-learn's estimators fit is such a module too: it takes inputs and returns targets as they came.

# %%
estimator = gnvpro.GNvproRegressor(work=50, random_state=0).fit(inputs.numpy(), 100 * targets.numpy())
with torch.no_grad():
    assert torch.allclose(estimator.module_(new_inputs), torch.from_numpy(estimator.predict(new_inputs.numpy())))
print(estimator.module_)
