# %% [markdown]
# # Variable projection in your own training loop
#
# `gnvpro.ReducedLoss` replaces the criterion. It eliminates the head on each batch, close to the previous head;
# `backward` gives the gradient of the other parameters, for any optimiser. At the end `refit` writes the best head for
# all samples into the model, which is plain PyTorch from then on.

# %%
from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gnvpro

torch.set_num_threads(1)
torch.manual_seed(0)
points = torch.rand(3000, 2) * 4 - 2
labels = (points.square().sum(1) * 2).floor().long().clamp(max=4)  # rings
train, test = slice(0, 2000), slice(2000, 3000)
loader = DataLoader(TensorDataset(points[train], labels[train]), batch_size=100, shuffle=True)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5))


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(points[test]).argmax(1) == labels[test]).float().mean())


# %% The loop, with the head eliminated
model = network()
criterion = gnvpro.ReducedLoss(model, loss="multinomial", head_penalty=1e-4)
optimizer = torch.optim.AdamW(criterion.parameters(), lr=1e-2)  # everything but the head
for _ in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(x, y).backward()
        optimizer.step()
criterion.refit(loader)

# %% The same loop with the usual criterion
usual = network()
optimizer = torch.optim.AdamW(usual.parameters(), lr=1e-2)
for _ in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(usual(x), y).backward()
        optimizer.step()

# %%
print(f"head eliminated: {accuracy(model):.1%}, usual loop: {accuracy(usual):.1%}")
assert accuracy(model) > accuracy(usual)
assert accuracy(model) > 0.85
