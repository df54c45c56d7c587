# %% [markdown]
# # Segmentation with a 1x1 convolution as head
#
# A 1x1 convolution is a linear layer on every pixel, so it can be eliminated. Targets are one label per pixel:
# background, disc or square, in a noisy image.

# %%
from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import gnvpro

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
SIZE = 20


def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images with a bright disc and a dark square, and the label of each pixel."""
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    centres = torch.randint(4, SIZE - 4, (samples, 4, 1, 1), generator=generator)
    disc = (row - centres[:, 0]) ** 2 + (column - centres[:, 1]) ** 2 <= 12
    square = ((row - centres[:, 2]).abs() <= 3) & ((column - centres[:, 3]).abs() <= 3) & ~disc
    labels = disc.long() + 2 * square.long()
    images = disc.double() - square.double() + 0.5 * torch.randn(labels.shape, generator=generator)
    return images[:, None], labels


generator = torch.Generator().manual_seed(0)
train, test = draw(40, generator), draw(40, generator)

# %%
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 6, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(6, 6, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(6, 3, 1),  # the head
)
result = gnvpro.train(model, *train, loss="multinomial", validation=test, work=120)


def overlap(predicted: Tensor, labels: Tensor) -> list[float]:
    """Intersection over union of each class."""
    pairs = [(predicted == k, labels == k) for k in range(3)]
    return [float((p & t).sum() / (p | t).sum()) for p, t in pairs]


with torch.no_grad():
    predicted = model(test[0]).argmax(1)
noisy = (test[0][:, 0] > 0.5).long() + 2 * (test[0][:, 0] < -0.5).long()  # baseline: each pixel by its own brightness
print("pixel accuracy", f"{result.history[-1].validation_accuracy:.1%}", result.status)
print("overlap by thresholds  ", [f"{o:.2f}" for o in overlap(noisy, test[1])])
print("overlap by the network ", [f"{o:.2f}" for o in overlap(predicted, test[1])])
assert result.history[-1].validation_accuracy > 0.95
assert all(mine > other + 0.1 for mine, other in zip(overlap(predicted, test[1]), overlap(noisy, test[1]), strict=True))

# %%
try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no figure: matplotlib is not installed")
else:
    figure, axes = plt.subplots(1, 3, figsize=(7, 2.6), layout="constrained")
    for axis, (title, image) in zip(
        axes, {"image": test[0][0, 0], "label": test[1][0], "predicted": predicted[0]}.items(), strict=True
    ):
        axis.imshow(image)
        axis.set_title(title)
        axis.axis("off")
    Path("runs").mkdir(exist_ok=True)
    figure.savefig("runs/segmentation.png", dpi=120)
