"""Derivatives carried through the layers, against nested automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro import pde
from gnvpro.pde.activations import derivatives_of
from gnvpro.pde.beside import FunctionsLayer
from gnvpro.pde.carry import ChainCarrier, carrier_for
from gnvpro.pde.forward_jets import AutodiffCarrier
from gnvpro.pde.jets import Channels, Laplacian, partitions

ACTIVATIONS = [nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.Softplus(beta=3.0), nn.SiLU(), nn.GELU(), pde.Sine()]
CHANNELS = [
    (),
    (0,),
    (1,),
    (0, 0),
    (0, 1),
    (1, 2),
    (0, 0, 1),
    (0, 1, 2),
    (0, 0, 2, 2),
    Laplacian((0, 1, 2)),
    Laplacian((1, 2)),
]


def nested(features: nn.Module, points: Tensor, channel: tuple[int, ...]) -> Tensor:
    """D_channel of every feature, by reverse mode again and again."""
    points = points.clone().requires_grad_()
    columns = []
    for column in features(points).unbind(1):
        for axis in channel:
            (slope,) = torch.autograd.grad(column.sum(), points, create_graph=True, allow_unused=True)
            column = torch.zeros(len(points)).double() if slope is None else slope[:, axis]
            if not column.requires_grad:
                column = column + 0 * points[:, 0]
        columns.append(column.detach())
    return torch.stack(columns, 1)


def expected(features: nn.Module, points: Tensor, channel: tuple[int, ...] | Laplacian) -> Tensor:
    if isinstance(channel, Laplacian):
        return sum(nested(features, points, (i, i)) for i in channel.axes)
    return nested(features, points, channel)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_slopes_of_an_activation_are_those_of_autograd(activation: nn.Module) -> None:
    x = torch.linspace(-4, 4, 41, dtype=torch.float64).requires_grad_()
    formulas = derivatives_of(activation)
    assert formulas is not None
    got = formulas(x.detach(), 5)
    want = activation(x)
    for order in range(6):
        torch.testing.assert_close(got[order], want.detach(), rtol=1e-9, atol=1e-10)
        (want,) = torch.autograd.grad(want.sum(), x, create_graph=True)


def test_softplus_is_straight_above_its_threshold() -> None:
    x = torch.tensor([25.0], dtype=torch.float64)
    value, slope, second = derivatives_of(nn.Softplus())(x, 2)
    assert (float(value), float(slope), float(second)) == (25.0, 1.0, 0.0)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_every_derivative_is_that_of_nested_autograd(activation: nn.Module) -> None:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 4, bias=False), activation).double()
    points = torch.randn(6, 3, dtype=torch.float64)
    channels = Channels.closed(CHANNELS)
    carrier = carrier_for(features, [n for n, _ in features.named_parameters()])
    assert isinstance(carrier, ChainCarrier)
    jet = carrier.run(dict(features.named_parameters()), points, channels).jet
    for channel in CHANNELS:
        want = expected(features, points, channel)
        torch.testing.assert_close(jet[channels.index(channel)], want, rtol=1e-9, atol=1e-10)


def test_periodic_layer_carries_its_derivatives() -> None:
    torch.manual_seed(0)
    features = nn.Sequential(pde.Periodic(3, {1: 0.7, 2: 2.0}, harmonics=2), nn.Linear(9, 4), nn.Tanh()).double()
    points = torch.randn(5, 3, dtype=torch.float64)
    channels = Channels.closed(CHANNELS)
    carrier = carrier_for(features, [n for n, _ in features.named_parameters()])
    assert isinstance(carrier, ChainCarrier)
    jet = carrier.run(dict(features.named_parameters()), points, channels).jet
    for channel in CHANNELS:
        torch.testing.assert_close(
            jet[channels.index(channel)], expected(features, points, channel), rtol=1e-8, atol=1e-8
        )
    shifted = points + torch.tensor([0.0, 0.7, -2.0], dtype=torch.float64)
    torch.testing.assert_close(features(points), features(shifted), rtol=1e-11, atol=1e-11)


def networks() -> list[nn.Module]:
    torch.manual_seed(1)
    return [
        gnvpro.networks.MLP(2, [5, 4], nn.Tanh, dtype=torch.float64),
        nn.Sequential(nn.Linear(2, 5), nn.SiLU(), nn.Linear(5, 3, bias=False), pde.Sine()).double(),
        nn.Sequential(pde.Periodic(2, {0: 1.0}), nn.Linear(3, 4), nn.Tanh()).double(),
        gnvpro.networks.ResNet(2, 4, 3, 1.0, dtype=torch.float64),
        nn.Sequential(
            pde.Beside(gnvpro.networks.MLP(2, [3], dtype=torch.float64), pde.Functions(lambda x: x[:, :1].exp() * x)),
            nn.Linear(5, 3, dtype=torch.float64),
            nn.Tanh(),
        ),
        gnvpro.networks.NeuralODE(2, 3, 2, 1.0, dtype=torch.float64),
    ]


@pytest.mark.parametrize("features", networks(), ids=lambda m: type(m).__name__)
def test_rows_in_theta_are_those_of_autograd(features: nn.Module) -> None:
    """One row for each point: the gradient of that point's weighted sum of derivatives."""
    channels = Channels.closed([(0, 1), Laplacian((0, 1))])
    points = torch.randn(4, 2, dtype=torch.float64)
    params = {n: p.detach() for n, p in features.named_parameters()}
    done = carrier_for(features, list(params)).run(params, points, channels)
    G = torch.randn(done.jet.shape, dtype=torch.float64)
    got = done.jacobian(G)

    def weighted(x: Tensor, g: Tensor) -> Tensor:
        x = x[None].clone().requires_grad_()
        total = x.new_zeros(())
        for f, column in enumerate(features(x).unbind(1)):
            for position, channel in enumerate(channels.keys):
                parts = [(i, i) for i in channel.axes] if isinstance(channel, Laplacian) else [channel]
                for axes in parts:
                    value = column
                    for axis in axes:
                        value = torch.autograd.grad(value.sum(), x, create_graph=True)[0][:, axis]
                    total = total + g[position, f] * value.sum()
        return total

    for i in range(4):
        gradients = torch.autograd.grad(weighted(points[i], G[:, i]), list(features.parameters()), allow_unused=True)
        want = torch.cat(
            [
                torch.zeros(p.numel()).double() if g is None else g.reshape(-1)
                for g, p in zip(gradients, features.parameters(), strict=True)
            ]
        )
        torch.testing.assert_close(got[i], want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("features", networks(), ids=lambda m: type(m).__name__)
def test_formulas_and_automatic_differentiation_agree(features: nn.Module) -> None:
    """At biases that are not zero, and for third derivatives too."""
    with torch.no_grad():
        for p in features.parameters():
            p.add_(0.3 * torch.randn_like(p))
    params = {n: p.detach() for n, p in features.named_parameters()}
    points = torch.randn(5, 2, dtype=torch.float64)
    channels = Channels.closed([(0,), (0, 1, 1), Laplacian((0, 1))])
    carrier = carrier_for(features, list(params))
    assert isinstance(carrier, ChainCarrier)
    by_formulas = carrier.run(params, points, channels)
    by_autodiff = AutodiffCarrier(features, tuple(params)).run(params, points, channels)
    torch.testing.assert_close(by_formulas.jet, by_autodiff.jet, rtol=1e-10, atol=1e-11)
    G = torch.randn(by_formulas.jet.shape, dtype=torch.float64)
    rows = by_autodiff.jacobian(G)
    torch.testing.assert_close(by_formulas.jacobian(G), rows, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(by_formulas.gradient(G), rows.sum(0), rtol=1e-9, atol=1e-10)


def test_frozen_parameters_have_no_columns() -> None:
    features = gnvpro.networks.MLP(2, [6, 3], nn.Tanh, dtype=torch.float64)
    features[0].requires_grad_(False)
    trained = [n for n, p in features.named_parameters() if p.requires_grad]
    params = {n: p.detach() for n, p in features.named_parameters() if p.requires_grad}
    done = carrier_for(features, trained).run(params, torch.randn(5, 2, dtype=torch.float64), Channels.closed([(0, 0)]))
    assert done.jacobian(torch.ones_like(done.jet)).shape == (5, 6 * 3 + 3)


def test_a_shared_layer_goes_by_automatic_differentiation() -> None:
    layer = nn.Linear(2, 2).double()
    shared = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh())
    assert isinstance(carrier_for(shared, ["0.weight", "0.bias"]), AutodiffCarrier)


def test_a_hook_goes_by_automatic_differentiation() -> None:
    features = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double()
    features[1].register_forward_hook(lambda module, args, output: 2 * output)
    assert isinstance(carrier_for(features, ["0.weight", "0.bias"]), AutodiffCarrier)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (2, 2), (3, 5), (4, 15), (5, 52)])
def test_partitions_are_counted_by_the_numbers_of_bell(size: int, count: int) -> None:
    made = partitions(size)
    assert len(set(made)) == count
    assert all(sorted(i for block in p for i in block) == list(range(size)) for p in made)


def test_the_laplacian_alone_needs_no_single_second_derivative() -> None:
    assert len(Channels.closed([Laplacian((0, 1, 2, 3, 4))])) == 7


def test_jets_of_fixed_functions_are_those_of_the_points_and_derivatives_asked_for() -> None:
    """They are made once for the same points, and made again for others."""
    made = []

    def cubes(x: torch.Tensor) -> torch.Tensor:
        made.append(len(x))
        return x[:, :1] ** 3

    layer = FunctionsLayer(pde.Functions(cubes))
    points = torch.rand(5, 2, dtype=torch.float64)
    for where, wanted in (
        (points, (0,)),
        (points.clone(), (0,)),
        (points + 1, (0,)),
        (points, (0, 0)),
        (points[:3], (0,)),
    ):
        channels = Channels.closed([wanted])
        jet = layer.run(channels.of_inputs(where), {}, channels).jet
        x = where[:, :1]
        torch.testing.assert_close(jet[channels.index(())], x**3)
        torch.testing.assert_close(jet[channels.index(wanted)], 3 * x**2 if wanted == (0,) else 6 * x)
    before = len(made)
    layer.run(channels.of_inputs(points[:3]), {}, channels)
    assert len(made) == before
