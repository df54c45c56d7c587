"""PyTorch networks of all kinds, trained as they come: gnvpro.train beside AdamW, at equal processor seconds.

    python -m benchmarks.networks                               the table of docs/lab/networks.md
    python -m benchmarks.networks --only mlp gru --seeds 0 1    some rows
    python -m benchmarks.networks --ours reduced                ReducedLoss with RotatedAdam in place of train
    python -m benchmarks.networks --curve vit --ours auto adam-vpro

Models are in float32, as PyTorch makes them. gnvpro.train gets the model, the training set, the validation set and the
seconds, and nothing else. AdamW has a cosine schedule that ends with the seconds; its rate and batch size (nine settings)
are chosen for each row on the validation set, on the first seed. The table has medians over seeds, on test samples that
nothing else has seen: errors in percent of wrong classes, or relative to the error of the mean.

Seconds are processor seconds of one thread, also those that limit a run: other programs on the machine do not count.
Defaults were chosen on the rows of DECIDE; CONFIRM was looked at afterwards.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

time.perf_counter = time.process_time  # limits in seconds are of this process, not of a busy machine

import torch  # noqa: E402
from sklearn.datasets import load_digits, make_friedman1  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gnvpro  # noqa: E402

RATES, BATCHES = (1e-3, 3e-3, 1e-2), (16, 64, 256)
TRAIN, VALIDATION = 0.7, 0.15  # shares of the samples; the rest is for the test

Inputs = Tensor | tuple[Tensor, ...]


# -- data


@dataclass(frozen=True)
class Data:
    """Inputs and targets, and the loss that suits them."""

    inputs: Inputs
    targets: Tensor
    loss: str

    @property
    def parts(self) -> tuple[tuple[Inputs, Tensor], ...]:
        """Samples for training, validation and test."""
        n = len(self.targets)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(7))
        cuts = [round(TRAIN * n), round((TRAIN + VALIDATION) * n)]
        return tuple((taken(self.inputs, part), self.targets[part]) for part in order.tensor_split(cuts))


def taken(inputs: Inputs, samples: Tensor) -> Inputs:
    """Some of the samples."""
    return tuple(part[samples] for part in inputs) if isinstance(inputs, tuple) else inputs[samples]


def generator(seed: int) -> torch.Generator:
    """Random numbers of one data set."""
    return torch.Generator().manual_seed(seed)


def digits() -> Data:
    """Digits of 8 x 8 pixels."""
    X, y = load_digits(return_X_y=True)
    return Data(torch.tensor(X / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y), "multinomial")


def friedman() -> Data:
    """Friedman's first function of ten inputs, with noise of a fifth of its deviation."""
    X, y = make_friedman1(1500, noise=1.0, random_state=0)
    return Data(
        torch.tensor(2 * X - 1).float(), torch.tensor((y - y.mean()) / y.std()).float()[:, None], "least_squares"
    )


def sine() -> Data:
    """A smooth function of three inputs, without noise."""
    X = torch.rand(900, 3, generator=generator(1)) * 2 - 1
    return Data(X, torch.sin(3 * X.sum(1, keepdim=True)), "least_squares")


def series(length: int = 24) -> Data:
    """The next value of a sum of two waves of random frequencies."""
    g = generator(2)
    a, b, p, q = (torch.rand(1000, 1, generator=g) for _ in range(4))
    t = torch.arange(length + 1)[None] / 4
    x = torch.sin((1 + a) * t + 6 * p) + 0.5 * torch.sin((2 + 3 * b) * t + 6 * q)
    return Data(x[:, :-1, None], x[:, -1:], "least_squares")


def tokens(length: int = 12) -> Data:
    """Four classes: whether the first token comes again, and whether the last one does."""
    x = torch.randint(0, 16, (1400, length), generator=generator(3))
    first, last = (x[:, :1] == x[:, 1:]).any(1), (x[:, -1:] == x[:, :-1]).any(1)
    return Data(x, 2 * first.long() + last.long(), "multinomial")


def two() -> Data:
    """A function of an image and of three numbers beside it."""
    images = digits().inputs
    assert isinstance(images, Tensor)
    more = torch.rand(len(images), 3, generator=generator(4))
    y = (
        torch.sin(4 * more[:, :1] * images.mean((1, 2, 3))[:, None] * 4)
        + more[:, 1:2] * images[:, 0, :, 3:5].mean((1, 2))[:, None]
    )
    return Data((images, more), (y - y.mean()) / y.std(), "least_squares")


def blobs() -> Data:
    """Which pixels of noisy images are inside of one of three circles."""
    g, size = generator(5), 16
    grid = torch.arange(size).float()
    centres, radii = torch.rand(400, 3, 2, generator=g) * size, 2 + 2 * torch.rand(400, 3, generator=g)
    away = (grid[None, None, :, None] - centres[..., :1, None]) ** 2 + (
        grid[None, None, None] - centres[..., 1:, None]
    ) ** 2
    inside = (away < radii[..., None, None] ** 2).any(1)
    return Data(
        inside[:, None].float() + 0.7 * torch.randn(400, 1, size, size, generator=g), inside.long(), "multinomial"
    )


# -- networks


class Last(nn.Module):
    """The last state of a recurrent layer, or the first one of an encoder."""

    def __init__(self, layer: nn.Module, at: int = -1) -> None:
        super().__init__()
        self.layer, self.at = layer, at

    def forward(self, x: Tensor) -> Tensor:
        """One state per sequence."""
        out = self.layer(x)
        states: Tensor = out[0] if isinstance(out, tuple) else out
        return states[:, self.at]


class Encoder(nn.Module):
    """A transformer over tokens or patches."""

    def __init__(self, embedding: nn.Module, length: int, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embedding, self.place = embedding, nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mean over the sequence."""
        out: Tensor = self.encoder(self.embedding(x) + self.place).mean(1)
        return out


class Patches(nn.Module):
    """Patches of 2 x 2 pixels as tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens in the second axis."""
        out: Tensor = self.cut(x).flatten(2).transpose(1, 2)
        return out


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the block and its input."""
        return torch.relu(x + self.inner(x))


class TwoInputs(nn.Module):
    """An image and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 16))
        self.both = nn.Sequential(nn.Linear(19, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.head = nn.Linear(32, 1)

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        """One number."""
        out: Tensor = self.head(self.both(torch.cat([self.image(image), numbers], 1)))
        return out


class SmallUNet(nn.Module):
    """Down, up, and a convolution with a kernel of one."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 2, stride=2), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A class for each pixel."""
        first = self.first(x)
        out: Tensor = self.head(self.last(torch.cat([first, self.up(self.down(first))], 1)))
        return out


def mlp(n: int, *widths: int, act: Callable[[], nn.Module] = nn.Tanh, out: int = 1) -> nn.Module:
    """Linear layers."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((n, *widths)):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], out))


def cnn(norm: bool) -> nn.Module:
    """Two convolutions."""

    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), *([nn.BatchNorm2d(o)] if norm else []), nn.ReLU()]

    drop = [nn.Dropout(0.3)] if norm else []
    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *drop,
        nn.Linear(512, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


def resnet() -> nn.Module:
    """Two blocks with BatchNorm."""
    stem = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *stem, Residual(16), nn.MaxPool2d(2), Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


@dataclass(frozen=True)
class Row:
    """A network and the data that it is trained on."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[], Data]


DECIDE = [
    Row("MLP, sine without noise", lambda: mlp(3, 20, 20), sine),
    Row("MLP, Friedman with noise", lambda: mlp(10, 64, 64, act=nn.ReLU), friedman),
    Row("CNN, digits", lambda: cnn(False), digits),
    Row("CNN with BatchNorm and dropout, digits", lambda: cnn(True), digits),
    Row("GRU, series", lambda: nn.Sequential(Last(nn.GRU(1, 24, batch_first=True)), nn.Linear(24, 1)), series),
    Row("transformer, tokens", lambda: nn.Sequential(Encoder(nn.Embedding(16, 32), 12), nn.Linear(32, 4)), tokens),
]
CONFIRM = [
    Row("MLP, digits", lambda: nn.Sequential(nn.Flatten(), mlp(64, 64, 64, act=nn.GELU, out=10)), digits),
    Row("ResNet with BatchNorm, digits", resnet, digits),
    Row("LSTM, series", lambda: nn.Sequential(Last(nn.LSTM(1, 24, batch_first=True)), nn.Linear(24, 1)), series),
    Row("ViT, digits", lambda: nn.Sequential(Encoder(Patches(32), 16), nn.Linear(32, 10)), digits),
    Row("two inputs, image and numbers", TwoInputs, two),
    Row("U-net, segmentation", SmallUNet, blobs),
]


# -- trainers


def test_error(model: nn.Module, part: tuple[Inputs, Tensor], loss: str) -> float:
    """Percent of wrong classes, or error relative to that of the mean."""
    inputs, targets = part
    model.eval()
    with torch.no_grad():
        out = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if loss == "multinomial":
        return 100 * float((out.argmax(1) != targets).double().mean())
    return float((out - targets).square().mean().sqrt() / (targets - targets.mean()).square().mean().sqrt())


def by_adamw(model: nn.Module, data: Data, seconds: float, rate: float, batch: int) -> None:
    """AdamW with a cosine that ends with the seconds."""
    inputs, targets = data.parts[0]
    optimizer, begun, used = torch.optim.AdamW(model.parameters(), lr=rate), time.process_time(), 0.0
    loss = nn.CrossEntropyLoss() if data.loss == "multinomial" else nn.MSELoss()
    model.train()
    while used < 1:
        for part in torch.randperm(len(targets)).split(batch):
            used = (time.process_time() - begun) / seconds
            if used >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * used))
            own = taken(inputs, part)
            optimizer.zero_grad()
            loss(model(*own) if isinstance(own, tuple) else model(own), targets[part]).backward()
            optimizer.step()


def by_train(model: nn.Module, data: Data, seconds: float, **settings: Any) -> Any:
    """gnvpro.train with nothing but the data, the validation set and the seconds."""
    (inputs, targets), validation, _ = data.parts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gnvpro.train(model, inputs, targets, loss=data.loss, validation=validation, seconds=seconds, **settings)


def by_reduced_loss(model: nn.Module, data: Data, seconds: float, rate: float = 1e-2, batch: int = 64) -> None:
    """ReducedLoss with RotatedAdam and a cosine."""
    inputs, targets = data.parts[0]
    criterion = gnvpro.ReducedLoss(model, loss=data.loss)
    optimizer, begun, used = gnvpro.methods.RotatedAdam(criterion.parameters(), lr=rate), time.process_time(), 0.0
    model.train()
    while used < 1:
        for part in torch.randperm(len(targets)).split(batch):
            used = (time.process_time() - begun) / seconds
            if used >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * used))
            optimizer.zero_grad()
            criterion(taken(inputs, part), targets[part]).backward()
            optimizer.step()
    criterion.refit((inputs, targets))


OURS: dict[str, Callable[..., Any]] = {
    "auto": by_train,
    "adam-vpro": functools.partial(by_train, method="adam-vpro"),
    "hybrid": functools.partial(by_train, solver="hybrid"),
    "reduced": by_reduced_loss,
}


def made(row: Row, seed: int) -> nn.Module:
    """The network of a seed."""
    torch.manual_seed(seed)
    return row.make()


def best_adamw(row: Row, data: Data, seconds: float) -> tuple[float, int]:
    """Rate and batch size with the lowest validation error on the first seed."""

    def error(setting: tuple[float, int]) -> float:
        model = made(row, 0)
        by_adamw(model, data, seconds, *setting)
        return test_error(model, data.parts[1], data.loss)

    return min(itertools.product(RATES, BATCHES), key=error)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--ours", nargs="*", default=["auto"], choices=list(OURS))
    parser.add_argument("--adamw", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--history", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warm = Data(torch.randn(60, 3), torch.randn(60, 1), "least_squares")
    by_train(mlp(3, 4), warm, 0.5)  # imports
    by_adamw(mlp(3, 4), warm, 0.1, 1e-3, 16)
    print("| network | " + " | ".join(given.ours) + (" | AdamW | its rate and batch |" if given.adamw else " |"))
    print("|---" * (1 + len(given.ours) + 2 * given.adamw) + "|")
    for row in DECIDE + CONFIRM:
        if given.only and not any(word.lower() in row.name.lower() for word in given.only):
            continue
        data, cells = row.data(), []
        for name in given.ours:
            errors = []
            for seed in given.seeds:
                model, begun = made(row, seed), time.process_time()
                result = OURS[name](model, data, given.seconds)
                taken_seconds = time.process_time() - begun
                errors.append(test_error(model, data.parts[2], data.loss))
                if given.history and result is not None:
                    show(result, taken_seconds)
            cells.append(f"{statistics.median(errors):.3g} ({', '.join(f'{e:.3g}' for e in errors)})")
        if given.adamw:
            rate, batch = best_adamw(row, data, given.seconds)
            errors = []
            for seed in given.seeds:
                model = made(row, seed)
                by_adamw(model, data, given.seconds, rate, batch)
                errors.append(test_error(model, data.parts[2], data.loss))
            cells += [
                f"{statistics.median(errors):.3g} ({', '.join(f'{e:.3g}' for e in errors)})",
                f"{rate:g}, {batch}",
            ]
        print(f"| {row.name} | " + " | ".join(cells) + " |", flush=True)


def show(result: Any, seconds: float) -> None:
    """Print how a run went."""
    print(f"  {result.status} {seconds:.2f} s")
    for line in result.plan:
        print("   ", line)
    records = list(result.history)
    for r in records[:: max(1, len(records) // 12)] + records[-1:]:
        scores = f"loss {r.loss:.4g}  misfit {r.misfit:.4g}  validation {r.validation_loss:.4g} {r.validation_accuracy}"
        print(f"    {r.iteration:4d} {r.solver or '':10s} {r.seconds:6.2f} s {r.work:7.1f} WU  {scores} {r.note or ''}")


if __name__ == "__main__":
    main()
