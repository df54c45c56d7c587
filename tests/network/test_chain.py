"""Every hand-written derivative against autodiff, over a table of networks and layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from gnvpro.network.derivatives.chain import linearize
from gnvpro.networks import MLP, ConvNet, NeuralODE, ResNet

F64 = torch.float64
TINY = 1e-13


class Doubler(nn.Module):
    """No rule, no `linearize`."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class OwnTanh(nn.Tanh):
    """Keeps the class of a layer with a rule, changes what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * torch.tanh(x)


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def conv(*args: int, **options: object) -> nn.Conv2d:
    return nn.Conv2d(*args, **options, dtype=F64)  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "neural ode": (lambda: NeuralODE(5, 4, depth=3, dtype=F64), (7, 5)),
    "neural ode, one step": (lambda: NeuralODE(5, 4, depth=1, final_time=1.0, dtype=F64), (7, 5)),
    "neural ode, K frozen": (lambda: frozen(NeuralODE(5, 4, depth=2, dtype=F64), "K"), (7, 5)),
    "neural ode, b frozen": (lambda: frozen(NeuralODE(5, 4, depth=2, dtype=F64), "b", "K_in"), (7, 5)),
    "neural ode, flow frozen": (lambda: frozen(NeuralODE(5, 4, depth=2, dtype=F64), "b", "K"), (7, 5)),
    "neural ode, opening frozen": (lambda: frozen(NeuralODE(5, 4, depth=2, dtype=F64), "b_in", "K_in"), (7, 5)),
    "neural ode after a layer": (
        lambda: nn.Sequential(nn.Linear(3, 5, dtype=F64), NeuralODE(5, 4, depth=2, dtype=F64)),
        (7, 3),
    ),
    "resnet": (lambda: ResNet(5, 4, depth=3, final_time=2.0, dtype=F64), (7, 5)),
    "resnet, K frozen": (lambda: frozen(ResNet(5, 4, depth=3, final_time=2.0, dtype=F64), "K", "b_in"), (7, 5)),
    "resnet, flow frozen": (lambda: frozen(ResNet(5, 4, depth=3, final_time=2.0, dtype=F64), "K", "b"), (7, 5)),
    "resnet after a layer": (
        lambda: nn.Sequential(nn.Linear(3, 5, dtype=F64), ResNet(5, 4, depth=2, final_time=2.0, dtype=F64)),
        (7, 3),
    ),
    "mlp": (lambda: MLP(3, [5, 4], dtype=F64), (7, 3)),
    "mlp with head": (lambda: MLP(3, [5, 4], nn.SiLU, n_outputs=2, dtype=F64), (7, 3)),
    "mlp, first layer frozen": (lambda: frozen(MLP(3, [5, 4], dtype=F64), "0.weight", "0.bias"), (7, 3)),
    "mlp, biases frozen": (lambda: frozen(MLP(3, [5, 4], dtype=F64), "0.bias", "2.bias"), (7, 3)),
    "mlp, weights frozen": (lambda: frozen(MLP(3, [5, 4], dtype=F64), "0.weight", "2.weight"), (7, 3)),
    "linear without bias": (lambda: nn.Linear(3, 4, bias=False, dtype=F64), (7, 3)),
    "linear on 3-D inputs": (
        lambda: nn.Sequential(nn.Linear(3, 4, dtype=F64), nn.Tanh(), nn.Linear(4, 2, dtype=F64)),
        (7, 5, 3),
    ),
    "convnet": (lambda: ConvNet(3, channels=(2, 3), dtype=F64), (2, 3, 32, 32)),
    "conv with stride, padding, dilation": (
        lambda: nn.Sequential(
            conv(2, 3, 3, padding=1), nn.Tanh(), conv(3, 2, (3, 2), stride=2, padding=(2, 1), dilation=2)
        ),
        (4, 2, 9, 8),
    ),
    "conv with groups": (
        lambda: nn.Sequential(conv(2, 4, 3, groups=2, padding="same"), nn.ReLU(), conv(4, 6, 3, groups=2, stride=2)),
        (4, 2, 8, 8),
    ),
    "conv, weights frozen": (
        lambda: frozen(nn.Sequential(conv(2, 3, 3), nn.ReLU(), conv(3, 2, 3)), "2.weight", "0.bias"),
        (4, 2, 7, 7),
    ),
    "average pool with overlap": (
        lambda: nn.Sequential(
            conv(2, 3, 3), nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.Flatten()
        ),
        (4, 2, 8, 8),
    ),
    "nested sequential": (
        lambda: nn.Sequential(
            nn.Identity(),
            nn.Sequential(nn.Linear(3, 4, dtype=F64), nn.Sequential(nn.Sigmoid(), nn.Dropout(0.5))),
            nn.Sequential(nn.Linear(4, 2, dtype=F64)),
        ),
        (7, 3),
    ),
} | {
    f"{type(f).__name__} activation": (
        lambda f=f: nn.Sequential(nn.Linear(3, 4, dtype=F64), f, nn.Linear(4, 2, dtype=F64)),  # type: ignore[misc]
        (7, 3),
    )
    for f in (
        nn.Tanh(),
        nn.Sigmoid(),
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.1, inplace=True),
        nn.ELU(),
        nn.SiLU(inplace=True),
        nn.GELU(),
        nn.Softplus(),
    )
}


class Case:
    """A module, other values for its trainable parameters, inputs, and what autodiff says there."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        build, shape = CASES[name]
        self.module = build().eval()
        self.params = {
            key: p.detach() + 0.1 * torch.randn_like(p) for key, p in self.module.named_parameters() if p.requires_grad
        }
        self.inputs = torch.randn(shape, dtype=F64)
        made = linearize(self.module, self.params, self.inputs)
        assert made is not None
        self.made = made
        self.d_params = {key: torch.randn_like(p) for key, p in self.params.items()}
        self.d_inputs = torch.randn_like(self.inputs)
        self.cotangent = torch.randn_like(made.output)

    def call(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(self.module, params, (inputs,))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def gap(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).norm() / b.norm().clamp(min=1e-300))


def dot(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    assert a.keys() == b.keys()
    return sum((torch.sum(a[key] * b[key]) for key in a), start=torch.zeros(()))


def test_output_is_what_the_module_computes(case: Case) -> None:
    assert gap(case.made.output, case.call(case.params, case.inputs)) <= 1e-15  # sums in another order


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch.func.jvp
@pytest.mark.parametrize("moving", [True, False])
def test_jvp_agrees_with_autodiff(case: Case, moving: bool) -> None:
    tangents = (case.d_params, case.d_inputs if moving else torch.zeros_like(case.inputs))
    _, expected = torch.func.jvp(case.call, (case.params, case.inputs), tangents)
    assert gap(case.made.jvp(case.d_params, case.d_inputs if moving else None), expected) < TINY


@pytest.mark.parametrize("moving", [True, False])
def test_vjp_agrees_with_autodiff(case: Case, moving: bool) -> None:
    _, pull = torch.func.vjp(case.call, case.params, case.inputs)
    gradients, d_inputs = pull(case.cotangent)
    ours, our_inputs = case.made.vjp(case.cotangent, moving)
    assert ours.keys() == case.params.keys()
    for key, gradient in gradients.items():
        assert gap(ours[key], gradient) < TINY, key
    if moving:
        assert our_inputs is not None
        assert gap(our_inputs, d_inputs) < TINY
    else:
        assert our_inputs is None


def test_vjp_is_the_transpose_of_jvp(case: Case) -> None:
    d_output = case.made.jvp(case.d_params, case.d_inputs)
    gradients, d_inputs = case.made.vjp(case.cotangent, True)
    assert d_inputs is not None
    left = torch.sum(d_output * case.cotangent)
    right = dot(gradients, case.d_params) + torch.sum(d_inputs * case.d_inputs)
    assert abs(left - right) <= 1e-13 * d_output.norm() * case.cotangent.norm()


@pytest.mark.parametrize("moving", [True, False])
def test_jacobian_agrees_with_autodiff_sample_by_sample(case: Case, moving: bool) -> None:
    m, n = 3, len(case.inputs)
    seeds = torch.randn(m, *case.made.output.shape, dtype=F64)

    def seeded(params: dict[str, Tensor], x: Tensor, seed: Tensor) -> Tensor:
        return (seed * case.call(params, x[None])[0]).flatten(1).sum(1)

    rows, d_inputs = vmap(jacrev(seeded, argnums=(0, 1)), in_dims=(None, 0, 1))(case.params, case.inputs, seeds)
    ours, our_inputs = case.made.jacobian(seeds, moving)
    assert ours.keys() == case.params.keys()
    for key, row in rows.items():
        assert gap(ours[key], row.reshape(n, m, -1).permute(2, 1, 0)) < TINY, key
    if moving:
        assert our_inputs is not None
        assert gap(our_inputs, d_inputs.transpose(0, 1)) < TINY
    else:
        assert our_inputs is None


def test_products_leave_the_linearization_as_it_was(case: Case) -> None:
    first = case.made.jvp(case.d_params, case.d_inputs), case.made.vjp(case.cotangent, False)[0]
    case.made.jacobian(case.cotangent[None], True)
    assert torch.equal(case.made.jvp(case.d_params, case.d_inputs), first[0])
    for key, gradient in case.made.vjp(case.cotangent, False)[0].items():
        assert torch.equal(gradient, first[1][key])


def test_products_leave_their_arguments_as_they_were(case: Case) -> None:
    before = case.d_inputs.clone(), case.cotangent.clone()
    case.made.jvp(case.d_params, case.d_inputs)
    case.made.vjp(case.cotangent, True)
    case.made.jacobian(case.cotangent[None], True)
    assert torch.equal(case.d_inputs, before[0])
    assert torch.equal(case.cotangent, before[1])


def test_single_precision_convnet_agrees_with_autograd() -> None:
    torch.manual_seed(0)
    net = ConvNet()
    inputs, cotangent = torch.randn(3, 3, 32, 32), torch.randn(3, 10)
    made = linearize(net, {name: p.detach() for name, p in net.named_parameters()}, inputs)
    assert made is not None
    output = net(inputs)
    assert gap(made.output, output.detach()) < 1e-5
    gradients, _ = made.vjp(cotangent, False)
    for (name, _), gradient in zip(
        net.named_parameters(), torch.autograd.grad(output, list(net.parameters()), cotangent), strict=True
    ):
        assert gap(gradients[name], gradient) < 1e-5, name
    d_params = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    d_output = made.jvp(d_params, None)
    scale = d_output.norm() * cotangent.norm()
    assert abs(torch.sum(d_output * cotangent) - dot(gradients, d_params)) <= 1e-5 * scale


def test_single_precision_stays_single() -> None:
    net = nn.Sequential(NeuralODE(5, 4, depth=2), nn.Linear(4, 3), nn.ReLU())
    params = {name: p.detach() for name, p in net.named_parameters()}
    made = linearize(net, params, torch.randn(6, 5))
    assert made is not None
    assert made.output.dtype == made.jvp(params, None).dtype == torch.float32
    for rows, _ in (made.vjp(torch.randn(6, 3), False), made.jacobian(torch.randn(2, 6, 3), False)):
        assert {row.dtype for row in rows.values()} == {torch.float32}


def test_a_network_of_constants_does_not_move() -> None:
    net = nn.Sequential(nn.Linear(3, 2, dtype=F64), nn.Tanh())
    made = linearize(net, {}, torch.randn(4, 3, dtype=F64))
    assert made is not None
    assert torch.equal(made.jvp({}, None), torch.zeros(4, 2, dtype=F64))
    assert made.vjp(torch.ones(4, 2, dtype=F64), False) == ({}, None)


def hooked() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return layer


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize(
    "module",
    [
        Doubler(),
        nn.Sequential(nn.Linear(3, 3), Doubler()),
        nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))),
        OwnTanh(),
        nn.Flatten(0),
        hooked(),
        tied(),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    ],
    ids=["unknown", "unknown last", "unknown nested", "own forward", "flatten samples", "hook", "tied", "parametrized"],
)
def test_a_module_without_rule_gives_none(module: nn.Module) -> None:
    params = {name: p.detach() for name, p in module.named_parameters()}
    assert linearize(module, params, torch.randn(4, 3)) is None


def test_circular_padding_gives_none() -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    assert linearize(layer, {}, torch.randn(2, 1, 5, 5)) is None
