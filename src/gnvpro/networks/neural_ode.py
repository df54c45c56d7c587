"""Neural ODE with an antisymmetric right-hand side, integrated by RK4.

    u(0) = tanh(K_in y + b_in),    u' = tanh(A(t) u + b(t)),    A = K - K^T - gamma I,    t in [0, final_time]

K and b are given on the depth + 1 nodes of `depth` equal steps h; at mid-steps they are averages of the two neighbours.
The eigenvalues of A have real part -gamma, so the flow neither explodes nor forgets. One step, with A_0, A_m, A_1 at
its beginning, middle and end:

    k1 = tanh(A_0 u + b_0)              u2 = u + h/2 k1
    k2 = tanh(A_m u2 + b_m)             u3 = u + h/2 k2
    k3 = tanh(A_m u3 + b_m)             u4 = u + h k3
    k4 = tanh(A_1 u4 + b_1)             u <- u + h/6 (k1 + 2 k2 + 2 k3 + k4)

For the tangent, the last line is written u <- (u2 + 2 u3 + u4 - u) / 3 + h/6 k4, so that each k is used once, as a
product with its slope.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnvpro.networks.flow import Flow, Steps, TangentFlow


class NeuralODE(Flow):
    """Feature extractor: the state at `final_time` of an antisymmetric neural ODE.

    Args:
        n_inputs: count of numbers per sample; inputs have the shape (samples, n_inputs).
        width: width of the state; outputs have the shape (samples, width).
        depth: number of time steps.
        final_time: length of the time interval.
        gamma: damping; the real part of the eigenvalues of A(t) is -gamma.
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> net = nn.Sequential(NeuralODE(55, 8, depth=2), nn.Linear(8, 72))
    >>> net(torch.zeros(4, 55)).shape
    torch.Size([4, 72])
    """

    antisymmetric_parameters = ("K",)  # used only as K - K^T; see `gnvpro.network.subspace`

    def __init__(
        self,
        n_inputs: int,
        width: int,
        depth: int,
        final_time: float = 4.0,
        gamma: float = 1e-4,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(n_inputs, width, depth, final_time, depth + 1, device, dtype)
        self.gamma = gamma

    @torch.no_grad()
    def prolongated(self) -> NeuralODE:
        """Return the same ODE on twice as many steps, with linearly interpolated nodal weights."""
        # The meta device draws no random numbers, so prolongation does not change the random state.
        fine = NeuralODE(self.n_inputs, self.width, 2 * self.depth, self.final_time, self.gamma, device="meta")
        for name, p in self.named_parameters():
            value = interpolated(p) if name in self.nodal_parameters else p.clone()
            setattr(fine, name, nn.Parameter(value, requires_grad=p.requires_grad))
        return fine.train(self.training)

    def stages(self, K: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the four stages of every step."""
        A = K - K.mT
        A.diagonal(dim1=-2, dim2=-1).sub_(self.gamma)
        return node_to_stage(A), node_to_stage(b)

    def advance(self, u: Tensor, matrices: Tensor, biases: Tensor, steps: Steps) -> Tensor:
        """Advance u by RK4 steps."""
        h = self.time_step
        A, b = matrices.unbind(), biases[..., None].unbind()
        for j in range(0, len(A), 4):
            k1 = steps.activate(torch.addmm(b[j], A[j], u))
            u2 = steps.move(u, k1, h / 2)
            k2 = steps.activate(torch.addmm(b[j + 1], A[j + 1], u2))
            u3 = steps.move(u, k2, h / 2)
            k3 = steps.activate(torch.addmm(b[j + 2], A[j + 2], u3))
            u4 = steps.move(u, k3, h)
            k4 = steps.activate(torch.addmm(b[j + 3], A[j + 3], u4))
            u = steps.end_step(steps.move(u, torch.add(k1 + k4, k2 + k3, alpha=2), h / 6))
        return u

    def tape_weights(self) -> list[float]:
        """Weights of k1, ..., k4 in u2, u3, u4 and the next u."""
        h = self.time_step
        return [h / 2, h / 2, h, h / 6] * self.depth

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"{super().extra_repr()}, gamma={self.gamma:g}"


class TangentRK4(TangentFlow):
    """Derivative of the RK4 steps; the slopes carry h/2, h/2, h and h/6."""

    stages_per_step = 4

    def push_block(self, block: slice, d_states: Tensor, drive: Tensor) -> Tensor:
        """Propagate the tangent through the steps."""
        A, s, x = self.matrices[block].unbind(), self.slopes[block].unbind(), drive.unbind()
        d1 = d_states
        for j in range(0, len(A), 4):
            d2 = torch.addcmul(d1, s[j], x[j].addmm_(A[j], d1))
            d3 = torch.addcmul(d1, s[j + 1], x[j + 1].addmm_(A[j + 1], d2))
            d4 = torch.addcmul(d1, s[j + 2], x[j + 2].addmm_(A[j + 2], d3))
            last = x[j + 3].addmm_(A[j + 3], d4)
            # (d2 + 2 d3 + d4 - d1) / 3 as averages, in place
            d1 = d2.lerp_(d4, 0.5).lerp_(d3, 0.5).lerp_(d1, -1 / 3).addcmul_(s[j + 3], last)
        return d1

    def pull_block(self, block: slice, cotangent: Tensor, g: Tensor) -> Tensor:
        """Propagate the cotangent back through the steps."""
        A, s = self.matrices[block].mT.unbind(), self.slopes[block, :, None].unbind()
        shaped, f = g.unbind(), g.flatten(2).unbind()
        c = cotangent.flatten(1)
        for j in reversed(range(0, len(A), 4)):
            torch.mul(s[j + 3], c.view_as(cotangent), out=shaped[j + 3])
            c3 = torch.addmm(c, A[j + 3], f[j + 3], beta=1 / 3)
            torch.mul(s[j + 2], c3.view_as(cotangent), out=shaped[j + 2])
            c2 = torch.addmm(c, A[j + 2], f[j + 2], beta=2 / 3)
            torch.mul(s[j + 1], c2.view_as(cotangent), out=shaped[j + 1])
            c1 = torch.addmm(c, A[j + 1], f[j + 1], beta=1 / 3)
            torch.mul(s[j], c1.view_as(cotangent), out=shaped[j])
            # c + A' g over the four stages; c1, c2 and c3 already contain three of the products
            c = c1.add_(c2).add_(c3).sub_(c, alpha=1 / 3).addmm_(A[j], f[j])
        return c.view_as(cotangent)

    def stage_weights(self, d_nodes: Tensor) -> Tensor:
        """Take the skew part of dK, then map nodes to stages."""
        skew = d_nodes.clone()
        skew[..., :-1].sub_(d_nodes[..., :-1].mT)
        return node_to_stage(skew)

    def node_weights(self, d_stages: Tensor) -> Tensor:
        """Map stages to nodes, then take the skew part of dK."""
        d_nodes = stage_to_node(d_stages)
        dA = d_nodes[..., :-1].clone()
        d_nodes[..., :-1].sub_(dA.mT)
        return d_nodes

    def jacobians(self, cotangent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Skew parts of the outer products g u' of the six stages around each node."""
        width, m, n = cotangent.shape
        nodes = len(self.slopes) // 4 + 1
        in_K, in_b = cotangent.new_empty(nodes, width, width, m, n), cotangent.new_zeros(nodes, width, m, n)
        # Going backwards, a node is complete after the step that ends there; `end` accumulates it until then.
        end = cotangent.new_zeros(width, width, m, n)
        begin, middle = torch.empty_like(end), torch.empty_like(end)

        def collect(block: slice, g: Tensor) -> None:
            nonlocal begin, end
            left, right = g[:, :, None].unbind(), self.states[block, None, :-1, None].unbind()
            for j in reversed(range(0, len(g), 4)):
                step = (block.start + j) // 4
                torch.mul(left[j], right[j], out=begin)
                torch.mul(left[j + 1], right[j + 1], out=middle).addcmul_(left[j + 2], right[j + 2])
                begin.add_(middle, alpha=0.5)
                end.addcmul_(left[j + 3], right[j + 3]).add_(middle, alpha=0.5)
                torch.sub(end, end.transpose(0, 1), out=in_K[step + 1])
                begin, end = end, begin
                both = torch.add(g[j + 1], g[j + 2]).div_(2)
                in_b[step].add_(both).add_(g[j])
                in_b[step + 1].add_(both).add_(g[j + 3])

        pulled = self.pull(cotangent, collect)
        torch.sub(end, end.transpose(0, 1), out=in_K[0])
        return in_K.view(-1, m, n), in_b.view(-1, m, n), pulled


NeuralODE.tangent = TangentRK4


def node_to_stage(nodes: Tensor) -> Tensor:
    """Return values at the stages of every step: start, middle, middle, end."""
    middle = torch.lerp(nodes[:-1], nodes[1:], 0.5)
    return torch.stack((nodes[:-1], middle, middle, nodes[1:]), dim=1).flatten(0, 1)


def stage_to_node(stages: Tensor) -> Tensor:
    """Apply the transpose of `node_to_stage`."""
    first, second, third, fourth = stages.reshape(-1, 4, *stages.shape[1:]).unbind(1)
    middle = (second + third).div_(2)
    nodes = stages.new_zeros(len(middle) + 1, *stages.shape[1:])
    torch.add(first, middle, out=nodes[:-1])
    nodes[1:] += middle.add_(fourth)
    return nodes


def interpolated(nodes: Tensor) -> Tensor:
    """Interpolate nodal values linearly on twice as many intervals."""
    fine = nodes.new_empty(2 * len(nodes) - 1, *nodes.shape[1:])
    fine[0::2] = nodes
    fine[1::2] = torch.lerp(nodes[:-1], nodes[1:], 0.5)
    return fine
