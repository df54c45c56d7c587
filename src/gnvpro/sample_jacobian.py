"""The Jacobian of every sample's features, for networks without formulas of their own: vmap over a backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Params = dict[str, Tensor]


def vmapped_jacobian(run: Callable[[Params, Tensor], Tensor], params: Params, inputs: Tensor, seeds: Tensor) -> Params:
    """(numel, m, n) by parameter, from seeds (m, n, n_features): what `Linearization.jacobian` gives."""

    def of_one(sample: Tensor, own_seeds: Tensor) -> Params:
        _, pull = torch.func.vjp(lambda p: run(p, sample[None])[0], params)
        return torch.func.vmap(pull)(own_seeds)[0]

    rows = torch.func.vmap(of_one)(inputs, seeds.transpose(0, 1))
    m, n = seeds.shape[:2]
    return {name: value.detach().reshape(n, m, -1).permute(2, 1, 0) for name, value in rows.items()}
