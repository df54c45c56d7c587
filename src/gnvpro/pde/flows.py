"""Jets through ResNet and NeuralODE: the steps of `gnvpro.networks`, carrying all derivatives in x.

    u <- tanh(K_in x + b_in),     then stages   k = tanh(M u + b)   combined to steps

    Euler   u + h k                                          M, b at the step's node
    RK4     u + h/6 (k1 + 2 k2 + 2 k3 + k4)                  M = K - K' - gamma I, averages of two nodes in the middle

A jet is linear in its channels except for tanh, so steps combine jets as they combine states. Backward, every stage
gives the cotangent of its matrix; shared parts - nodes, and K in K - K' - are summed at the end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.networks import NeuralODE, ResNet
from gnvpro.networks.flow import Flow
from gnvpro.networks.neural_ode import stage_to_node
from gnvpro.pde.activations import derivatives_of
from gnvpro.pde.jet_layers import Collect, Params
from gnvpro.pde.jets import ActivatedJet, Channels

_TANH = derivatives_of(torch.nn.Tanh())
PARAMETERS = ("K_in", "b_in", "K", "b")


@dataclass(frozen=True)
class Stage:
    """tanh(M X + b) on a jet, and its backward pass."""

    X: Tensor
    M: Tensor
    activated: ActivatedJet

    @staticmethod
    def of(X: Tensor, M: Tensor, b: Tensor, channels: Channels) -> Stage:
        """Run one stage."""
        assert _TANH is not None
        H = X @ M.T
        H[0] += b
        return Stage(X, M, ActivatedJet.of(H, _TANH, channels))

    @property
    def k(self) -> Tensor:
        """The jet after the stage."""
        return self.activated.output

    def pull(self, G: Tensor, collect: Collect) -> tuple[Tensor, Tensor, Tensor]:
        """Return the collected parts for M and b, and the cotangent of X."""
        pulled = self.activated.pull(G)
        return collect.of_weight(pulled, self.X), collect.of_bias(pulled), pulled @ self.M


@dataclass(frozen=True)
class FlowLayer:
    """A ResNet or NeuralODE as a layer."""

    flow: Flow
    prefix: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its parameters."""
        return tuple(self.prefix + name for name in PARAMETERS)

    def run(self, X: Tensor, values: Params, channels: Channels) -> FlowPass:
        """Run the opening layer, then the steps."""
        K_in, b_in, K, b = (values[name] for name in self.names)
        matrices, biases = self.flow.stages(K, b)
        stages = [Stage.of(X, K_in, b_in, channels)]
        u, h, four = stages[0].k, self.flow.time_step, isinstance(self.flow, NeuralODE)
        weights = (h / 2, h / 2, h) if four else ()
        per_step = len(weights) + 1
        for first in range(0, len(matrices), per_step):
            state, ks = u, []
            for j in range(per_step):
                stages.append(Stage.of(state, matrices[first + j], biases[first + j], channels))
                ks.append(stages[-1].k)
                if j < len(weights):
                    state = torch.add(u, ks[j], alpha=weights[j])
            u = u + h / 6 * (ks[0] + 2 * (ks[1] + ks[2]) + ks[3]) if four else torch.add(u, ks[0], alpha=h)
        return FlowPass(u, tuple(stages), self)


@dataclass(frozen=True)
class FlowPass:
    """The stages, the opening layer first."""

    jet: Tensor
    stages: tuple[Stage, ...]
    layer: FlowLayer

    def pull(self, G: Tensor, collect: Collect, wanted: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Go backward through the steps."""
        opening, *stages = self.stages
        flow, h = self.layer.flow, self.layer.flow.time_step
        in_M: list[Tensor] = []
        in_b: list[Tensor] = []

        def back(stage: Stage, g: Tensor) -> Tensor:
            weight, bias, pulled = stage.pull(g, collect)
            in_M.append(weight)
            in_b.append(bias)
            return pulled

        if isinstance(flow, ResNet):
            for stage in reversed(stages):
                G = G + back(stage, h * G)
        else:
            for first in reversed(range(0, len(stages), 4)):
                g4 = back(stages[first + 3], h / 6 * G)
                g3 = back(stages[first + 2], h / 3 * G + h * g4)
                g2 = back(stages[first + 1], h / 3 * G + h / 2 * g3)
                g1 = back(stages[first], h / 6 * G + h / 2 * g2)
                G = G + g1 + g2 + g3 + g4
        in_opening, in_bias, pulled = opening.pull(G, collect)
        in_K, in_nodes = self._nodes(torch.stack(in_M[::-1]), torch.stack(in_b[::-1]))
        made = dict(zip(self.layer.names, (in_opening, in_bias, in_K, in_nodes), strict=True))
        return {name: rows for name, rows in made.items() if name in wanted}, pulled

    def _nodes(self, in_M: Tensor, in_b: Tensor) -> tuple[Tensor, Tensor]:
        """Map stages to nodes; nodes come after the points if there are rows."""
        if isinstance(self.layer.flow, NeuralODE):
            in_M, in_b = stage_to_node(in_M), stage_to_node(in_b)
            in_M = in_M - in_M.mT
        points = in_b.dim() == 3
        return (in_M.transpose(0, 1), in_b.transpose(0, 1)) if points else (in_M, in_b)
