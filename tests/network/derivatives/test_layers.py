"""Every layer with a rule against autodiff, alone or between two linear layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from against_autodiff import CHECKS, Build, Case, frozen
from gnvpro.network.derivatives.blocks import OuterBlock
from gnvpro.network.derivatives.chain import linearize


def between(layer: nn.Module, width: int = 4, final: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), layer, nn.Linear(final, 2))


def used_batch_norm(layer: nn.Module) -> nn.Module:
    """Batch normalisation with random means and variances."""
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2.0)
    return layer


ACTIVATIONS = [
    nn.Tanh(),
    nn.Sigmoid(),
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.1, inplace=True),
    nn.ELU(),
    nn.SiLU(inplace=True),
    nn.GELU(),
    nn.Softplus(),
]
CASES: dict[str, Build] = {
    "linear": (lambda: nn.Linear(3, 4), (7, 3)),
    "linear without bias": (lambda: nn.Linear(3, 4, bias=False), (7, 3)),
    "linear, weight frozen": (lambda: frozen(nn.Linear(3, 4), "weight"), (7, 3)),
    "linear on 3-D inputs": (lambda: between(nn.Tanh()), (7, 5, 3)),
    "conv with stride, padding, dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(3, 2, (3, 2), stride=2, padding=(2, 1), dilation=2),
        ),
        (4, 2, 9, 8),
    ),
    "conv with groups": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2, padding="same"), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2, stride=2)
        ),
        (4, 2, 8, 8),
    ),
    "conv, weights frozen": (
        lambda: frozen(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3)), "2.weight", "0.bias"),
        (4, 2, 7, 7),
    ),
    "average pool with overlap": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.Flatten()
        ),
        (4, 2, 8, 8),
    ),
    "max pool": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Flatten()), (4, 2, 8, 8)),
    "max pool with overlap": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, stride=(2, 1), padding=1, ceil_mode=True)),
        (4, 2, 8, 9),
    ),
    "max pool with dilation": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2, 1, dilation=2)), (4, 2, 7, 7)),
    "layer norm": (lambda: between(nn.LayerNorm(4)), (7, 3)),
    "layer norm over two axes": (lambda: between(nn.LayerNorm((5, 4), eps=0.1)), (7, 5, 3)),
    "layer norm on 3-D inputs": (lambda: between(nn.LayerNorm(4)), (7, 5, 3)),
    "layer norm without bias": (lambda: between(nn.LayerNorm(4, bias=False)), (7, 3)),
    "layer norm without parameters": (lambda: between(nn.LayerNorm(4, elementwise_affine=False)), (7, 3)),
    "layer norm, weight frozen": (lambda: frozen(between(nn.LayerNorm(4)), "1.weight"), (7, 3)),
    "batch norm": (lambda: between(used_batch_norm(nn.BatchNorm1d(4))), (7, 3)),
    "batch norm on 3-D inputs": (lambda: between(used_batch_norm(nn.BatchNorm1d(5))), (7, 5, 3)),
    "batch norm without parameters": (lambda: between(used_batch_norm(nn.BatchNorm1d(4, affine=False))), (7, 3)),
    "batch norm of images": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), used_batch_norm(nn.BatchNorm2d(3)), nn.ReLU(), nn.Flatten()),
        (4, 2, 6, 6),
    ),
} | {f"{type(f).__name__} activation": (lambda f=f: between(f), (7, 3)) for f in ACTIVATIONS}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch.func.jvp
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_against_autodiff(name: str, check: Callable[[Case], None]) -> None:
    check(Case(CASES[name]))


def test_a_linear_layer_leaves_its_outer_products_as_they_are() -> None:
    layer, inputs, seeds = nn.Linear(3, 4), torch.randn(7, 3), torch.randn(2, 7, 4)
    made = linearize(layer, {"weight": layer.weight.detach()}, inputs)
    assert made is not None
    block = made.jacobian(seeds, False)[0]["weight"]
    assert isinstance(block, OuterBlock)
    assert torch.equal(block.g, seeds.permute(2, 0, 1))
    assert torch.equal(block.x, inputs.T)
    assert (block.size, *block.g.shape[1:]) == block.dense().shape == (12, 2, 7)


class OwnTanh(nn.Tanh):
    """Keeps the class of a layer with a rule, changes what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * torch.tanh(x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (OwnTanh(), (4, 3)),
        (nn.Flatten(0), (4, 3)),
        (nn.LayerNorm((4, 3)), (4, 3)),
        (nn.BatchNorm1d(3).train(), (4, 3)),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), (4, 3)),
        (nn.MaxPool2d(2), (1, 4, 4)),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (2, 1, 5, 5)),
        (nn.GroupNorm(1, 3), (4, 3)),
    ],
    ids=[
        "own forward",
        "flatten samples",
        "normalised over samples",
        "batch norm in training",
        "batch norm of the batch",
        "image without samples",
        "circular padding",
        "no rule",
    ],
)
def test_what_a_layer_does_not_cover_gives_none(layer: nn.Module, shape: tuple[int, ...]) -> None:
    params = {name: p.detach() for name, p in layer.named_parameters()}
    assert linearize(layer, params, torch.randn(shape)) is None
