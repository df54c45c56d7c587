# %% [markdown]
# # A surrogate for a partial differential equation
#
# Solving a convection-diffusion-reaction equation takes about half a second; a network trained on 400 solutions answers
# at once. It maps 55 reaction coefficients to the concentrations at six points and twelve times. The data are shipped
# with the package.

# %%
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.data import cdr

data = cdr.load()
(inputs, targets), validation, test = data.train, data.validation, data.test
print(f"{len(inputs)} samples to train on, {inputs.shape[1]} inputs, {targets.shape[1]} targets")

# %% [markdown]
# Inputs are centred and scaled by one constant, to a standard deviation of 0.1. The network is a small ODE; its four
# time steps are enough to resolve it. The 72 x 9 weights of the head are eliminated.

# %%
mean, scale = inputs.mean(0), 10 * inputs.std()


def scaled(values: Tensor) -> Tensor:
    return (values - mean) / scale


torch.manual_seed(0)
model = nn.Sequential(
    gnvpro.networks.NeuralODE(55, 8, depth=4, final_time=2.0, dtype=torch.float64), nn.Linear(8, 72).double()
)
result = gnvpro.train(
    model,
    scaled(inputs),
    targets,
    loss="least_squares",
    validation=(scaled(validation[0]), validation[1]),
    keep="best",
    work=200,
)
print(result)

# %% [markdown]
# How accurate is it on unseen samples? Baselines: the mean of the training targets, and linear regression, which is a
# network without features.


# %%
def relative_errors(prediction: Tensor) -> Tensor:
    """|prediction - truth| / |truth|, one per sample of the test set."""
    return torch.linalg.vector_norm(prediction - test[1], dim=1) / torch.linalg.vector_norm(test[1], dim=1)


line = nn.Linear(55, 72).double()
gnvpro.train(line, scaled(inputs), targets, loss="least_squares", work=0)
with torch.no_grad():
    errors = {
        "mean of the training set": relative_errors(targets.mean(0).expand_as(test[1])),
        "linear regression": relative_errors(line(scaled(test[0]))),
        "network": relative_errors(model(scaled(test[0]))),
    }
for name, error in errors.items():
    print(f"{name:25s} mean relative error {error.mean():.4f}, worst {error.max():.4f}")
assert errors["network"].mean() < 0.2 * errors["linear regression"].mean()
assert errors["network"].mean() < 0.05 * errors["mean of the training set"].mean()

# %% [markdown]
# The figure: errors during training, errors of every test sample, and the worst sample.

# %%
figure, (curve, every, worst) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
work = result.history.column("work")
curve.semilogy(work, result.history.column("misfit"), label="training")
curve.semilogy(work, result.history.column("validation_loss"), label="validation")
curve.set(xlabel="work units (passes over the training set)", ylabel="mean half squared error", title="Training")
curve.legend()

for name, error in errors.items():
    every.plot(torch.linspace(0, 100, len(error)), error.sort().values, label=name)
every.set(xlabel="share of test samples, %", ylabel="relative error at most", title="Every test sample")
every.set(yscale="log", ylim=(3e-4, 10))
every.legend(loc="upper left")

sample = int(errors["network"].argmax())
times = 0.39 + 0.01 * torch.arange(12)
with torch.no_grad():
    predicted = model(scaled(test[0][sample : sample + 1]))[0].reshape(12, 6)
for point in range(6):
    worst.plot(times, test[1][sample].reshape(12, 6)[:, point], color=f"C{point}", label=f"point {point + 1}")
    worst.plot(times, predicted[:, point], "x", color=f"C{point}")
worst.set(xlabel="time", ylabel="concentration", title="Worst test sample (crosses: network)")
worst.legend(ncols=2, fontsize="small")

folder = Path("runs/demo")
folder.mkdir(parents=True, exist_ok=True)
figure.savefig(folder / "surrogate.png", dpi=110)
print(f"figure: {folder / 'surrogate.png'}")
