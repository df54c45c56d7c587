"""Features at one theta and their derivatives by automatic differentiation, for networks without formulas.

vjp        J' u, a backward pass
jvp        J v: J' u is linear in u, so differentiating it once more along v costs about another backward pass
jacobian   the seeded Jacobian of every sample: vmap, over samples, of m backward passes
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gnvpro.network.derivatives.linearization import FeatureLinearization, Rows
from gnvpro.samples.several import Batch, Several, arguments_of

Params = dict[str, Tensor]


def linearize_by_autodiff(
    run: Callable[[Params, Any], Tensor],
    at: Callable[[Params], AbstractContextManager[None]],
    params: Params,
    inputs: Batch,
    split: Callable[[Tensor], Params],
    join: Callable[[Params], Tensor],
) -> FeatureLinearization:
    """Return the features `run(params, inputs)` and their derivatives; `split` and `join` convert theta to params and
    back.

    Checkpoints and adjoints run the model again in a backward pass, so it takes place with the model `at` the same
    params.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    variables = tuple(leaves.values())
    with torch.enable_grad():
        rows = run(leaves, inputs)
    transposed: list[tuple[Tensor, tuple[Tensor, ...]]] = []

    def pull_back(cotangent: Tensor, keep: bool) -> tuple[Tensor, ...]:
        with torch.enable_grad():  # of a number: for tensors torch imports sympy, which takes a second
            product = (rows * cotangent).sum()
        with at(leaves):
            return torch.autograd.grad(
                product,
                variables,
                retain_graph=True,
                create_graph=keep,
                allow_unused=True,
                materialize_grads=True,
            )

    def jvp(d_theta: Tensor) -> Tensor:
        if not rows.requires_grad:
            return torch.zeros_like(rows)
        if not transposed:
            with torch.enable_grad():
                dummy = torch.zeros_like(rows).requires_grad_()
                transposed.append((dummy, pull_back(dummy, True)))
        dummy, pulled = transposed[0]
        used = [(g, v) for g, v in zip(pulled, split(d_theta).values(), strict=True) if g.requires_grad]
        if not used:
            return torch.zeros_like(rows)
        with at(leaves):
            return torch.autograd.grad([g for g, _ in used], dummy, [v for _, v in used], retain_graph=True)[0]

    def vjp(d_rows: Tensor) -> Tensor:
        if not rows.requires_grad:
            return join({})
        return join(dict(zip(leaves, pull_back(d_rows, False), strict=True)))

    def jacobian(seeds: Tensor) -> Iterator[tuple[slice, Rows]]:
        yield slice(None), sample_jacobian(run, params, inputs, seeds)

    return FeatureLinearization(rows.detach(), jvp, vjp, jacobian, depends=rows.requires_grad)


def sample_jacobian(run: Callable[[Params, Any], Tensor], params: Params, inputs: Batch, seeds: Tensor) -> Rows:
    """Return (numel, m, n) by parameter, from seeds (m, n, n_features)."""

    def of_one(sample: Any, own_seeds: Tensor) -> Params:
        alone = sample[0][0][None] if isinstance(inputs, Tensor) else Several(*sample)[None]
        pull = torch.func.vjp(lambda p: run(p, alone)[0], params)[1]
        return torch.func.vmap(pull)(own_seeds)[0]

    with warnings.catch_warnings():
        # the user cannot avoid these warnings: recurrent layers, for example, have no batched kernel
        warnings.filterwarnings("ignore", message="There is a performance drop")
        rows = torch.func.vmap(of_one)(arguments_of(inputs), seeds.transpose(0, 1))
    m, n = seeds.shape[:2]
    return {name: value.detach().reshape(n, m, -1).permute(2, 1, 0) for name, value in rows.items()}
