"""Regressors made of several parts: networks for some of the targets each, and a linear model.

    features(x)  =  [ features of network 1, features of network 2, ..., columns of the linear model ]
    output k     =  head_k' features(x) + bias_k                            zero for parts that do not count for target k

The result is still features and a linear head. The spread of a target (its posterior variance over the variance of the noise)
is the mean of the spreads of the networks that count for it, else the linear model's; it is 1 / sum of weights for the mean of
all rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro.head.eliminator import append_bias_column
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior
from gnvpro.sklearn.linear import LinearSpread

COLUMNS = "columns"  # name of the part with the linear model's columns
Sources = tuple[tuple[str, int, float], ...]  # names of parts, columns of their spread, and weights that add up to one
Posterior = JointPosterior | HeadPosterior


class SideBySide(nn.Module):
    """The outputs of several modules of the same inputs, side by side."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, inputs: Tensor) -> Tensor:
        """One group of columns for each part."""
        return torch.cat([part(inputs) for part in self.parts.values()], 1)


@dataclass(frozen=True)
class PartPosteriors:
    """The posterior of each part, and which one each target takes its spread from."""

    posteriors: Mapping[str, Posterior]  # by the name of the part
    linear: LinearSpread | None
    sources: tuple[Sources, ...]  # for each target; a part "" is the mean alone
    total: float  # sum of the weights

    def spread(self, module: nn.Module, inputs: Tensor) -> Tensor:
        """Return the spread for each row and target; `module` is the whole regressor."""
        chains = module.get_submodule("features.parts")
        found = {"": inputs.new_full((len(inputs), 1), 1 / self.total)}
        for name in {name for target in self.sources for name, _, _ in target if name}:
            if name == COLUMNS and self.linear is not None:
                found[name] = self.linear.of(chains.get_submodule(name)(inputs))
            else:
                found[name] = spread_of_chain(self.posteriors[name], chains.get_submodule(name), inputs)
        columns = [sum(share * found[name][:, k] for name, k, share in target) for target in self.sources]
        return torch.stack(columns, 1)  # type: ignore[arg-type]  # a target has at least one source


def spread_of_chain(posterior: Posterior, chain: nn.Module, inputs: Tensor) -> Tensor:
    """The spread of a network from its layers up to the head: scalings, and features as the last one."""
    *scalings, (_, features) = chain.named_children()
    scaled = nn.Sequential(OrderedDict(scalings))(inputs)
    if isinstance(posterior, HeadPosterior):
        return posterior.spread(append_bias_column(features(scaled), True))
    head = nn.Linear(features(scaled[:1]).shape[1], 1).to(scaled)
    return posterior.spread(nn.Sequential(OrderedDict(features=features, head=head)), scaled)
