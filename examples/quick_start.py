# %% [markdown]
# # Quick start
#
# Pass `gnvpro.train` any `nn.Module` that ends in a linear layer, the data and a loss. There is no learning rate to
# tune; `work` is the budget, in passes over the training set.

# %%
from __future__ import annotations

import torch

import gnvpro

torch.manual_seed(0)
inputs = torch.rand(900, 2, dtype=torch.float64) * 4 - 2  # points of a square
targets = inputs.norm(dim=1).clamp(max=2.9).long()  # labels 0, 1, 2: rings around the origin
train, validation = (inputs[:600], targets[:600]), (inputs[600:], targets[600:])

model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()
keys = list(model.state_dict())
result = gnvpro.train(model, *train, loss="multinomial", validation=validation, work=200)

# %% [markdown]
# The result contains the reason why training ended and a record of every iteration.

# %%
first, last = result.history[0], result.history[-1]
print(result.status)
print(f"loss {first.loss:.4f} -> {last.loss:.4f} in {last.work:.0f} passes over the training set")
print(f"validation accuracy {first.validation_accuracy:.1%} -> {last.validation_accuracy:.1%}")
assert last.loss < first.loss
assert last.validation_accuracy > 0.95
assert last.work <= 200

# %% [markdown]
# The model was trained in place and is plain PyTorch from now on.

# %%
new_inputs = torch.tensor([[0.1, 0.2], [1.0, 1.0], [-2.0, 1.5]], dtype=torch.float64)
rings = model(new_inputs).argmax(dim=1)
print(f"rings of three new points: {rings.tolist()}")
assert rings.tolist() == [0, 1, 2]
assert list(model.state_dict()) == keys
