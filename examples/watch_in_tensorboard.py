# %% [markdown]
# # Watching a run in TensorBoard
#
# A listener receives every iteration. `gnvpro.listeners.TensorBoard` writes each of its numbers as a scalar, for
#
#     tensorboard --logdir DIRECTORY
#
# Needs `pip install tensorboard`. This example writes to a temporary directory and reads the scalars back.

# %%
from __future__ import annotations

import math
import tempfile

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gnvpro

torch.manual_seed(0)
x = torch.linspace(-1, 1, 300, dtype=torch.float64)[:, None]
y = torch.sin(4 * x) * torch.exp(x)
train, validation = (x[::2], y[::2]), (x[1::2], y[1::2])
model = gnvpro.networks.MLP(1, [10], n_outputs=1, dtype=torch.float64)

folder = tempfile.TemporaryDirectory()
watcher = gnvpro.listeners.TensorBoard(folder.name)
result = gnvpro.train(model, *train, loss="least_squares", validation=validation, work=200, listeners=[watcher])

# %% [markdown]
# There is one scalar for each number of a `Record` and one point for each iteration, including the start. Values are
# stored in single precision.

# %%
events = EventAccumulator(folder.name).Reload()
names = events.Tags()["scalars"]
print("scalars:", ", ".join(sorted(names)))
assert {"loss", "misfit", "gradient_norm", "validation_loss", "seconds"} <= set(names)

for name in ("loss", "validation_loss"):
    written = events.Scalars(name)
    assert [point.step for point in written] == result.history.column("iteration")
    for point, value in zip(written, result.history.column(name), strict=True):
        assert math.isclose(point.value, value, rel_tol=1e-6)
print(f"{len(result.history)} iterations, loss {events.Scalars('loss')[0].value:.2e} -> {result.history[-1].loss:.2e}")
folder.cleanup()
