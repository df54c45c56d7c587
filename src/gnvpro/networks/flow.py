"""Shared parts of NeuralODE and ResNet: an opening layer, then a flow through time, and the derivative of both.

    u(0) = tanh(K_in y + b_in),    then stages i = 0, 1, ... of the form    k_i = tanh(M_i u_i + b_i)

The stage states u_i are linear combinations of earlier u's and k's. A tangent and a cotangent pass through the same
stages with tanh replaced by the slope 1 - k_i^2:

    tangent     dk_i = s_i * (M_i du_i + dM_i u_i + db_i)
    cotangent   g_i  = s_i * (cotangent of k_i),   d/dM_i = g_i u_i^T,  d/db_i = g_i,   and M_i^T g_i flows back to u_i

So states, slopes and matrices are stored once, when linearising. The weight parts are batched over many stages, as
[dM_i, db_i] @ [u_i; 1] or its transpose, before or after the sweep through time, which then needs only two small
operations per stage.

Legend: arrays are feature-major, (width, samples), because the matrices are small and the samples many, and because
per-sample Jacobians (parameter, seed, sample) then grow along their last axis.
    states   (stages, width + 1, n)   u_i, and a row of ones for the bias
    slopes   (stages, width, n)       s_i times the weight with which k_i enters the next state
    matrices (stages, width, width)   M_i
    drive    (stages, width, n)       dM_i u_i + db_i
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gnvpro.network.derivatives.blocks import OuterBlock
from gnvpro.network.derivatives.linearization import Rows

# Stages are swept in blocks of at most this many bytes, so cotangents of m seeds are never stored for all stages at
# once.
BLOCK_BYTES = 2**20


class Steps:
    """The two operations of a flow."""

    def activate(self, x: Tensor) -> Tensor:
        """Return k = tanh(x)."""
        return torch.tanh(x)

    def move(self, u: Tensor, k: Tensor, weight: float) -> Tensor:
        """Return the next state, u + weight k."""
        return torch.add(u, k, alpha=weight)

    def end_step(self, u: Tensor) -> Tensor:
        """Return the state after a step."""
        return u


class Tape(Steps):
    """Steps that store states and slopes for the derivative.

    `weights` are the factors with which activations enter the next state. Activations occupy the slopes' memory
    until their step ends.
    """

    def __init__(self, u: Tensor, weights: list[float], stages_per_step: int) -> None:
        width, n = u.shape
        self.states = u.new_empty(len(weights) + 1, width + 1, n)  # the last is the output
        self.states[:, width] = 1
        self.slopes = u.new_empty(len(weights), width, n)
        self._minus = u.new_tensor(weights).neg_()[:, None, None]
        self._u, self._k = self.states[:, :width].unbind(), self.slopes.unbind()
        self._u[0].copy_(u)
        self._stages_per_step, self._stage = stages_per_step, 0

    def activate(self, x: Tensor) -> Tensor:
        """Store the activation in place of the slope."""
        return torch.tanh(x, out=self._k[self._stage])

    def move(self, u: Tensor, k: Tensor, weight: float) -> Tensor:
        """Store the next state; the stage is complete."""
        self._stage += 1
        return torch.add(u, k, alpha=weight, out=self._u[self._stage])

    def end_step(self, u: Tensor) -> Tensor:
        """Replace the activations of the step by weight times 1 - k^2."""
        done = slice(self._stage - self._stages_per_step, self._stage)
        self.slopes[done].square_().sub_(1).mul_(self._minus[done])
        return u


class TangentFlow(ABC):
    """Derivative of a flow u(0) -> u(final_time), feature-major."""

    stages_per_step: ClassVar[int]

    def __init__(self, tape: Tape, matrices: Tensor) -> None:
        self.states, self.slopes, self.matrices = tape.states[:-1], tape.slopes, matrices

    def push(self, d_states: Tensor, d_nodes: Tensor | None) -> Tensor:
        """Return the tangent (width, n) at the final time, from the initial one and nodal [dK, db]."""
        weights = None if d_nodes is None else self.stage_weights(d_nodes)
        for block in self.blocks(1):
            states, slopes = self.states[block], self.slopes[block]
            drive = torch.zeros_like(slopes) if weights is None else torch.bmm(weights[block], states)
            d_states = self.push_block(block, d_states, drive)
        return d_states

    def pull(self, cotangent: Tensor, collect: Callable[[slice, Tensor], None]) -> Tensor:
        """Return the initial cotangent (width, m, n); `collect` receives the stage cotangents, block by block."""
        width, m, n = cotangent.shape
        for block in reversed(self.blocks(m)):
            g = cotangent.new_empty(block.stop - block.start, width, m, n)
            cotangent = self.pull_block(block, cotangent, g)
            collect(block, g)
        return cotangent

    def pull_weights(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodal [dK, db] and the initial cotangent, summed over samples; transpose of `push`."""
        d_stages = self.matrices.new_empty(len(self.matrices), len(cotangent), len(cotangent) + 1)

        def collect(block: slice, g: Tensor) -> None:
            torch.bmm(g[:, :, 0], self.states[block].mT, out=d_stages[block])

        pulled = self.pull(cotangent[:, None], collect)
        return self.node_weights(d_stages), pulled[:, 0]

    def blocks(self, m: int) -> list[slice]:
        """Yield blocks of whole steps, in order, for m cotangents per sample."""
        stages, width, n = self.slopes.shape
        step = self.stages_per_step
        steps = max(1, BLOCK_BYTES // (step * width * m * n * self.slopes.element_size()))
        return [slice(i, min(i + steps * step, stages)) for i in range(0, stages, steps * step)]

    @abstractmethod
    def push_block(self, block: slice, d_states: Tensor, drive: Tensor) -> Tensor:
        """Propagate the tangent through the steps of a block; overwrites `drive`."""

    @abstractmethod
    def pull_block(self, block: slice, cotangent: Tensor, g: Tensor) -> Tensor:
        """Propagate the cotangent back through the steps of a block; fills the stage cotangents `g`."""

    @abstractmethod
    def stage_weights(self, d_nodes: Tensor) -> Tensor:
        """Return [dM, db] (stages, width, width + 1) from nodal [dK, db]."""

    @abstractmethod
    def node_weights(self, d_stages: Tensor) -> Tensor:
        """Transpose of `stage_weights`."""

    @abstractmethod
    def jacobians(self, cotangent: Tensor) -> tuple[Tensor | list[OuterBlock], Tensor, Tensor]:
        """Return per-sample derivatives in K and b, (numel, m, n), and the initial cotangent."""


@dataclass(frozen=True)
class FlowLinearization:
    """Output of a flow network and its derivative at a point; see `gnvpro.network.derivatives.linearization.Linearization`."""

    output: Tensor
    shapes: Mapping[str, torch.Size]
    inputs: Tensor  # (n, n_inputs)
    K_in: Tensor
    opening_slope: Tensor  # (width, n)
    flow: TangentFlow

    @torch.no_grad()
    def jvp(self, d_params: Mapping[str, Tensor], d_inputs: Tensor | None) -> Tensor:
        """Return the directional derivative of the output."""
        d_states = None
        if "K_in" in d_params:
            d_states = d_params["K_in"] @ self.inputs.T
        if d_inputs is not None:
            flowing = self.K_in @ d_inputs.reshape(self.inputs.shape).T
            d_states = flowing if d_states is None else d_states.add_(flowing)
        if "b_in" in d_params:
            d_bias = d_params["b_in"][:, None]
            d_states = d_bias.expand_as(self.opening_slope).clone() if d_states is None else d_states.add_(d_bias)
        d_states = torch.zeros_like(self.opening_slope) if d_states is None else d_states.mul_(self.opening_slope)
        d_states = self.flow.push(d_states, self._d_nodes(d_params))
        return d_states.T.reshape(self.output.shape)

    def _d_nodes(self, d_params: Mapping[str, Tensor]) -> Tensor | None:
        dK, db = d_params.get("K"), d_params.get("b")
        if dK is None:
            if db is None:
                return None
            dK = db.new_zeros(*db.shape, db.shape[-1])
        elif db is None:
            db = dK.new_zeros(dK.shape[:-1])
        return torch.cat((dK, db[..., None]), dim=-1)

    @torch.no_grad()
    def vjp(self, cotangent: Tensor, want_inputs: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Transpose of `jvp`."""
        width = self.K_in.shape[0]
        d_nodes, pulled = self.flow.pull_weights(cotangent.reshape(-1, width).T.contiguous())
        gradients = {"K": d_nodes[..., :width], "b": d_nodes[..., width]}
        g_in = pulled * self.opening_slope
        if "K_in" in self.shapes:
            gradients["K_in"] = g_in @ self.inputs
        if "b_in" in self.shapes:
            gradients["b_in"] = g_in.sum(1)
        d_inputs = (g_in.T @ self.K_in).reshape(*self.output.shape[:-1], -1) if want_inputs else None
        return {name: gradients[name] for name in self.shapes}, d_inputs

    @torch.no_grad()
    def jacobian(self, seeds: Tensor, want_inputs: bool) -> tuple[Rows, Tensor | None]:
        """Return per-sample derivatives of m cotangents per sample; the opening layer is linear, so K_in has outer
        products.
        """
        in_K, in_b, pulled = self.flow.jacobians(seeds.permute(2, 0, 1).contiguous())
        g_in = pulled * self.opening_slope[:, None]
        rows = {"K": in_K, "b": in_b, "K_in": OuterBlock(g_in, self.inputs.T.contiguous()), "b_in": g_in}
        d_inputs = (self.K_in.T @ g_in.flatten(1)).view(-1, *g_in.shape[1:]).permute(1, 2, 0) if want_inputs else None
        return {name: rows[name] for name in self.shapes}, d_inputs


class Flow(nn.Module, ABC):
    """An opening layer tanh(K_in y + b_in), then `depth` steps through [0, final_time] with weights K, b on nodes."""

    nodal_parameters: ClassVar[tuple[str, ...]] = ("K", "b")

    def __init__(
        self,
        n_inputs: int,
        width: int,
        depth: int,
        final_time: float,
        n_nodes: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        if min(n_inputs, width, depth) < 1:
            raise ValueError(f"n_inputs, width and depth must be at least 1, got {n_inputs}, {width}, {depth}")
        super().__init__()
        self.n_inputs, self.width, self.depth, self.final_time = n_inputs, width, depth, final_time
        self.K_in = nn.Parameter(torch.empty(width, n_inputs, device=device, dtype=dtype))
        self.b_in = nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        self.K = nn.Parameter(torch.empty(n_nodes, width, width, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(n_nodes, width, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw K_in and K from N(0, 2 / fan_in), K once for all times; biases are zero."""
        self.K_in.normal_(std=(2 / self.n_inputs) ** 0.5)
        self.K[0].normal_(std=(2 / self.width) ** 0.5)
        self.K[1:] = self.K[0]
        self.b_in.zero_()
        self.b.zero_()

    @property
    def time_step(self) -> float:
        """Length of one step, final_time / depth."""
        return self.final_time / self.depth

    @abstractmethod
    def stages(self, K: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return matrices (stages, width, width) and biases (stages, width) of the stages, from the nodal weights."""

    @abstractmethod
    def advance(self, u: Tensor, matrices: Tensor, biases: Tensor, steps: Steps) -> Tensor:
        """Carry u (width, n) to the final time."""

    @abstractmethod
    def tape_weights(self) -> list[float]:
        """Weight of each stage's activation in the next state."""

    tangent: ClassVar[type[TangentFlow]]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (..., width) of inputs (..., n_inputs)."""
        u = _open(inputs.reshape(-1, self.n_inputs), self.K_in, self.b_in)
        u = self.advance(u, *self.stages(self.K, self.b), Steps())
        return u.T.reshape(*inputs.shape[:-1], self.width)

    @torch.no_grad()
    def linearize(self, params: Mapping[str, Tensor], inputs: Tensor) -> FlowLinearization | None:
        """Return output and derivative at the given parameter values; see `gnvpro.network.derivatives.chain`."""
        if inputs.dim() != 2:
            return None
        own = {name: p.detach() for name, p in self.named_parameters()}
        values = {name: params.get(name, p) for name, p in own.items()}
        u = _open(inputs, values["K_in"], values["b_in"])
        matrices, biases = self.stages(values["K"], values["b"])
        tape = Tape(u, self.tape_weights(), self.tangent.stages_per_step)
        final = self.advance(u, matrices, biases, tape)
        return FlowLinearization(
            output=final.T.reshape(*inputs.shape[:-1], self.width),
            shapes={name: p.shape for name, p in params.items()},
            inputs=inputs,
            K_in=values["K_in"],
            opening_slope=1 - u * u,
            flow=self.tangent(tape, matrices),
        )

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"n_inputs={self.n_inputs}, width={self.width}, depth={self.depth}, final_time={self.final_time:g}"


def _open(inputs: Tensor, K_in: Tensor, b_in: Tensor) -> Tensor:
    """Opening layer tanh(K_in y + b_in), feature-major."""
    return torch.tanh(torch.addmm(b_in[:, None], K_in, inputs.T))
