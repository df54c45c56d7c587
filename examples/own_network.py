# %% [markdown]
# # Your own network
#
# A small ResNet in torchvision's style: blocks with shortcuts, batch normalisation, global average pooling and `fc` at
# the end. `gnvpro.train` accepts it unchanged and finds the head by running the model once.
#
# Batch normalisation uses its running statistics during training (the objective must be one function), so one pass over
# the data sets them first.

# %%
from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gnvpro

torch.set_num_threads(1)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None if stride == 1 else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.nn.functional.silu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.nn.functional.silu(out + (x if self.downsample is None else self.downsample(x)))


class SmallResNet(nn.Module):
    """A stem, two blocks, global average pooling, a linear head."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(16, n_classes)  # its position in the class does not matter
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 16, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(torch.nn.functional.silu(self.stem(x))))
        return self.fc(x.mean(dim=(2, 3)))


# %%
pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
labels = torch.tensor(labels)
train, test = (images[:600], labels[:600]), (images[1200:], labels[1200:])

torch.manual_seed(0)
model = SmallResNet(10)
with torch.no_grad():
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.momentum = 1.0  # use the statistics of this pass only
    model(train[0])
model.eval()
before = {key: tuple(value.shape) for key, value in model.state_dict().items()}

result = gnvpro.train(model, *train, loss="multinomial", validation=test, work=120)
first, last = result.history[0], result.history[-1]
print(result.status)
print(f"test accuracy: {first.validation_accuracy:.1%} with the best head on random features,")
print(f"               {last.validation_accuracy:.1%} after {last.work:.0f} passes over the training set")

# %% [markdown]
# The model was trained in place and is still plain PyTorch: same class, same `state_dict` keys.

# %%
assert last.validation_accuracy > 0.85
assert last.validation_accuracy > first.validation_accuracy + 0.15
assert last.loss < 0.5 * first.loss
assert before == {key: tuple(value.shape) for key, value in model.state_dict().items()}
with torch.no_grad():
    assert abs((model(test[0]).argmax(1) == test[1]).float().mean().item() - last.validation_accuracy) < 2e-3
