# %% [markdown]
# # Taking the model away: safetensors
#
# Weights alone, in a format that can be read safely from anywhere. Needs `pip install safetensors`.

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
try:
    from safetensors.torch import load_model, save_model
except ImportError:
    print("SKIPPED: safetensors is not installed (pip install safetensors)")
    raise SystemExit(0) from None

save_model(model, "surrogate.safetensors", metadata={"n_inputs": "2", "widths": "12", "n_outputs": "2"})

# %%
again = gnvpro.networks.MLP(2, [12], n_outputs=2, dtype=torch.float64)
load_model(again, "surrogate.safetensors")
with torch.no_grad():
    assert torch.equal(again(new_inputs), expected)
print("the same outputs, bit by bit")
