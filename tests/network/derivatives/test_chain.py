"""Chains of layers: the chain rule against autodiff, and which modules have no formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from against_autodiff import CHECKS, Build, Case, dot, frozen, multiplied_out
from checks import F64
from checks import relative as gap
from gnvpro.network.derivatives.chain import linearize
from gnvpro.networks import MLP, ConvNet, NeuralODE


class Doubler(nn.Module):
    """No rule, no `linearize`."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Waves(nn.Module):
    """sin(x K'), with a `linearize` that has no outer products."""

    def __init__(self, n_inputs: int, width: int) -> None:
        super().__init__()
        self.K = nn.Parameter(torch.randn(width, n_inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.K.T)

    def linearize(self, params: dict[str, Tensor], inputs: Tensor) -> LinearWaves:
        phase = inputs @ params["K"].T
        return LinearWaves(torch.sin(phase), torch.cos(phase), inputs, params["K"])


@dataclass
class LinearWaves:
    output: Tensor
    slope: Tensor
    inputs: Tensor
    K: Tensor

    def jvp(self, d_params: dict[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        d = self.inputs @ d_params["K"].T
        return self.slope * (d if d_inputs is None else d + d_inputs @ self.K.T)

    def vjp(self, cotangent: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        g = self.slope * cotangent
        return {"K": g.T @ self.inputs}, g @ self.K if want_inputs else None

    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        g = self.slope * seeds
        rows = torch.einsum("mno,ni->oimn", g, self.inputs).reshape(-1, *g.shape[:2])
        return {"K": rows}, g @ self.K if want_inputs else None


CASES: dict[str, Build] = {
    "mlp": (lambda: MLP(3, [5, 4]), (7, 3)),
    "mlp with head": (lambda: MLP(3, [5, 4], nn.SiLU, n_outputs=2), (7, 3)),
    "mlp, first layer frozen": (lambda: frozen(MLP(3, [5, 4]), "0.weight", "0.bias"), (7, 3)),
    "mlp, biases frozen": (lambda: frozen(MLP(3, [5, 4]), "0.bias", "2.bias"), (7, 3)),
    "mlp, weights frozen": (lambda: frozen(MLP(3, [5, 4]), "0.weight", "2.weight"), (7, 3)),
    "convnet": (lambda: ConvNet(3, channels=(2, 3)), (2, 3, 32, 32)),
    "module with a linearize of its own": (lambda: Waves(3, 4), (7, 3)),
    "such a module in a chain": (lambda: nn.Sequential(nn.Linear(3, 4), Waves(4, 4), nn.Linear(4, 2)), (7, 3)),
    "nested sequential": (
        lambda: nn.Sequential(
            nn.Identity(),
            nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Sigmoid(), nn.Dropout(0.5))),
            nn.Sequential(nn.Linear(4, 2)),
        ),
        (7, 3),
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inside torch.func.jvp
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_against_autodiff(name: str, check: Callable[[Case], None]) -> None:
    check(Case(CASES[name]))


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
    net = nn.Sequential(NeuralODE(5, 4, depth=2), nn.Linear(4, 3), nn.LayerNorm(3), nn.BatchNorm1d(3), nn.ReLU()).eval()
    params = {name: p.detach() for name, p in net.named_parameters()}
    made = linearize(net, params, torch.randn(6, 5))
    assert made is not None
    assert made.output.dtype == made.jvp(params, None).dtype == torch.float32
    for rows, _ in (made.vjp(torch.randn(6, 3), False), made.jacobian(torch.randn(2, 6, 3), False)):
        assert {multiplied_out(row).dtype for row in rows.values()} == {torch.float32}


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
        nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.GroupNorm(1, 3))),
        hooked(),
        tied(),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    ],
    ids=["unknown", "unknown last", "unknown nested", "hook", "tied", "parametrized"],
)
def test_a_module_without_rule_gives_none(module: nn.Module) -> None:
    params = {name: p.detach() for name, p in module.named_parameters()}
    assert linearize(module, params, torch.randn(4, 3)) is None
