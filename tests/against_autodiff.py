"""Checks of a hand-written derivative against torch.func, one function per claim: parametrise a table of cases by `CHECKS`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from checks import F64
from checks import relative as gap
from gnvpro.network.derivatives.blocks import OuterBlock
from gnvpro.network.derivatives.chain import linearize
from gnvpro.network.derivatives.linearization import Block

TINY = 1e-13
Build = tuple[Callable[[], nn.Module], tuple[int, ...]]  # a module, and the shape of its inputs


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def multiplied_out(rows: Block | list[OuterBlock]) -> Tensor:
    if isinstance(rows, list):
        return torch.cat([block.dense() for block in rows])
    return rows.dense() if isinstance(rows, OuterBlock) else rows


class Case:
    """A module, other values for its trainable parameters, inputs, and its linearisation there."""

    def __init__(self, build: Build) -> None:
        torch.manual_seed(0)
        make, shape = build
        self.module = make().to(F64).eval()
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


def dot(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    assert a.keys() == b.keys()
    return sum((torch.sum(a[key] * b[key]) for key in a), start=torch.zeros(()))


def output_is_what_the_module_computes(case: Case) -> None:
    assert gap(case.made.output, case.call(case.params, case.inputs)) <= 1e-15  # sums in another order


def jvp(case: Case) -> None:
    for d_inputs in (case.d_inputs, None):
        tangents = (case.d_params, torch.zeros_like(case.inputs) if d_inputs is None else d_inputs)
        _, expected = torch.func.jvp(case.call, (case.params, case.inputs), tangents)
        d_output = case.made.jvp(case.d_params, d_inputs)
        assert d_output.shape == expected.shape
        assert gap(d_output, expected) < TINY


def vjp(case: Case) -> None:
    gradients, d_inputs = torch.func.vjp(case.call, case.params, case.inputs)[1](case.cotangent)
    for wanted in (True, False):
        ours, our_inputs = case.made.vjp(case.cotangent, wanted)
        assert ours.keys() == case.params.keys()
        for key, gradient in gradients.items():
            assert ours[key].shape == gradient.shape
            assert gap(ours[key], gradient) < TINY, key
        assert (our_inputs is not None) == wanted
        assert our_inputs is None or gap(our_inputs, d_inputs) < TINY


def vjp_is_the_transpose_of_jvp(case: Case) -> None:
    d_output = case.made.jvp(case.d_params, case.d_inputs)
    gradients, d_inputs = case.made.vjp(case.cotangent, True)
    assert d_inputs is not None
    left = torch.sum(d_output * case.cotangent)
    right = dot(gradients, case.d_params) + torch.sum(d_inputs * case.d_inputs)
    assert abs(left - right) <= 1e-13 * d_output.norm() * case.cotangent.norm()


def jacobian_sample_by_sample(case: Case) -> None:
    m, n = 3, len(case.inputs)
    seeds = torch.randn(m, *case.made.output.shape, dtype=F64)

    def seeded(params: dict[str, Tensor], x: Tensor, seed: Tensor) -> Tensor:
        return (seed * case.call(params, x[None])[0]).flatten(1).sum(1)

    rows, d_inputs = vmap(jacrev(seeded, argnums=(0, 1)), in_dims=(None, 0, 1))(case.params, case.inputs, seeds)
    for wanted in (True, False):
        ours, our_inputs = case.made.jacobian(seeds, wanted)
        assert ours.keys() == case.params.keys()
        for key, row in rows.items():
            assert gap(multiplied_out(ours[key]), row.reshape(n, m, -1).permute(2, 1, 0)) < TINY, key
        assert (our_inputs is not None) == wanted
        assert our_inputs is None or gap(our_inputs, d_inputs.transpose(0, 1)) < TINY


def products_change_neither_the_linearization_nor_their_arguments(case: Case) -> None:
    before = case.d_inputs.clone(), case.cotangent.clone()
    first = case.made.jvp(case.d_params, case.d_inputs), case.made.vjp(case.cotangent, True)[0]
    case.made.jacobian(case.cotangent[None], True)
    assert torch.equal(case.made.jvp(case.d_params, case.d_inputs), first[0])
    for key, gradient in case.made.vjp(case.cotangent, True)[0].items():
        assert torch.equal(gradient, first[1][key])
    assert torch.equal(case.d_inputs, before[0])
    assert torch.equal(case.cotangent, before[1])


CHECKS = [
    output_is_what_the_module_computes,
    jvp,
    vjp,
    vjp_is_the_transpose_of_jvp,
    jacobian_sample_by_sample,
    products_change_neither_the_linearization_nor_their_arguments,
]
