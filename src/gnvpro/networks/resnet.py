"""Residual network: forward Euler steps of u' = tanh(K u + b), one pair K_j, b_j a step.

u_0 = tanh(K_in y + b_in),    u_{j+1} = u_j + h tanh(K_j u_j + b_j),    h = final_time / depth
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnvpro.networks.flow import Flow, TangentFlow


class ResNet(Flow):
    """Residual feature extractor with tanh layers of one width.

    >>> ResNet(2, width=4, depth=8, final_time=5.0)(torch.zeros(3, 2)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        n_inputs: int,
        width: int,
        depth: int,
        final_time: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(n_inputs, width, depth, final_time, depth, device, dtype)

    def stages(self, K: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """One stage a step, with the weights of its node."""
        return K, b

    def advance(self, u: Tensor, matrices: Tensor, biases: Tensor, record: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Euler steps."""
        h = self.time_step
        for M, b in zip(matrices.unbind(), biases[..., None].unbind(), strict=True):
            k = torch.tanh(torch.addmm(b, M, u))
            record.append((u, k))
            u = torch.add(u, k, alpha=h)
        return u

    def tangent(self, states: list[Tensor], activations: list[Tensor], matrices: Tensor) -> TangentFlow:
        """Derivative of the Euler steps."""
        return TangentEuler(states, activations, matrices, matrices.new_full((self.depth,), self.time_step))


class TangentEuler(TangentFlow):
    """Derivative of the Euler steps; the slopes carry the factor h."""

    def push(self, d_states: Tensor, drive: Tensor | None) -> Tensor:
        """du <- du + h s (K du + drive)."""
        if drive is None:
            drive = torch.zeros_like(self.slopes)
        for M, s, x in zip(self.matrices.unbind(), self.slopes.unbind(), drive.unbind(), strict=True):
            d_states = torch.addcmul(d_states, s, x.addmm_(M, d_states))
        return d_states

    def pull(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """g = h s cotangent; cotangent <- cotangent + K' g."""
        width, m, n = cotangent.shape
        g = cotangent.new_empty(len(self.slopes), width, m, n)
        flat = cotangent.view(width, m * n)
        for j in reversed(range(len(g))):
            torch.mul(self.slopes[j, :, None], flat.view(width, m, n), out=g[j])
            flat = torch.addmm(flat, self.matrices[j].T, g[j].view(width, m * n))
        return g, flat.view(width, m, n)

    def stage_weights(self, d_nodes: Tensor) -> Tensor:
        """Stages are nodes."""
        return d_nodes

    def node_weights(self, d_stages: Tensor) -> Tensor:
        """Stages are nodes."""
        return d_stages

    def node_jacobians(self, g: Tensor) -> Tensor:
        """All outer products g u' in one multiplication."""
        return g[:, :, None] * self.states[:, None, :-1, None]

    def bias_jacobians(self, g: Tensor) -> Tensor:
        """The stage cotangents themselves."""
        return g
