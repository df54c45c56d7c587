# %% [markdown]
# # Taking the model away: torch.export
#
# A trained model is a plain module, so `torch.export` turns it into a graph that needs neither its class nor gnvpro.

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
samples = torch.export.Dim("samples")
program = torch.export.export(model, (inputs,), dynamic_shapes=({0: samples},))
torch.export.save(program, "surrogate.pt2")

# %%
again = torch.export.load("surrogate.pt2").module()
difference = float((again(new_inputs) - expected).abs().max().detach())
print(f"largest difference of the exported program: {difference:.1e}")
assert difference < 1e-12
