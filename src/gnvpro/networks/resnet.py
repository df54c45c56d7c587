"""Residual network: forward Euler steps of u' = tanh(K u + b), one pair K_j, b_j per step.

u_0 = tanh(K_in y + b_in),    u_{j+1} = u_j + h tanh(K_j u_j + b_j),    h = final_time / depth
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnvpro.network.derivatives.blocks import OuterBlock
from gnvpro.networks.flow import Flow, Steps, TangentFlow


class ResNet(Flow):
    """Residual feature extractor with tanh layers of one width.

    Args:
        n_inputs: count of numbers per sample; inputs have the shape (samples, n_inputs).
        width: width of the state; outputs have the shape (samples, width).
        depth: number of time steps.
        final_time: length of the time interval.
        device: device of the parameters.
        dtype: dtype of the parameters.

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
        """Return one stage per step, with the weights of its node."""
        return K, b

    def advance(self, u: Tensor, matrices: Tensor, biases: Tensor, steps: Steps) -> Tensor:
        """Advance u by Euler steps."""
        for M, b in zip(matrices.unbind(), biases[..., None].unbind(), strict=True):
            k = steps.activate(torch.addmm(b, M, u))
            u = steps.end_step(steps.move(u, k, self.time_step))
        return u

    def tape_weights(self) -> list[float]:
        """The time step."""
        return [self.time_step] * self.depth


class TangentEuler(TangentFlow):
    """Derivative of the Euler steps; the slopes carry the factor h."""

    stages_per_step = 1

    def push_block(self, block: slice, d_states: Tensor, drive: Tensor) -> Tensor:
        """Propagate the tangent: du <- du + h s (K du + drive)."""
        for M, s, x in zip(self.matrices[block].unbind(), self.slopes[block].unbind(), drive.unbind(), strict=True):
            d_states = torch.addcmul(d_states, s, x.addmm_(M, d_states))
        return d_states

    def pull_block(self, block: slice, cotangent: Tensor, g: Tensor) -> Tensor:
        """Propagate the cotangent: g = h s c; c <- c + K' g."""
        c = cotangent.flatten(1)
        matrices, slopes = self.matrices[block].mT, self.slopes[block, :, None]
        for j in reversed(range(len(g))):
            torch.mul(slopes[j], c.view_as(g[j]), out=g[j])
            c = torch.addmm(c, matrices[j], g[j].flatten(1))
        return c.view_as(cotangent)

    def stage_weights(self, d_nodes: Tensor) -> Tensor:
        """Return the nodes; stages are nodes."""
        return d_nodes

    def node_weights(self, d_stages: Tensor) -> Tensor:
        """Return the stages; stages are nodes."""
        return d_stages

    def jacobians(self, cotangent: Tensor) -> tuple[list[OuterBlock], Tensor, Tensor]:
        """Return outer products g u', one matrix per stage, and the stage cotangents themselves."""
        in_b = cotangent.new_empty(len(self.slopes), *cotangent.shape)

        def collect(block: slice, g: Tensor) -> None:
            in_b[block] = g

        pulled = self.pull(cotangent, collect)
        in_K = [OuterBlock(g, u) for g, u in zip(in_b, self.states[:, :-1], strict=True)]
        return in_K, in_b.flatten(0, 1), pulled


ResNet.tangent = TangentEuler
