"""Checks of derivatives: the order of a Taylor remainder, the adjoint gap, and dense matrices written out naively.

The dense reference shares none of gnvpro's formulas. It differentiates Phi(theta, W), evaluated by running the user's
model with torch's own losses, by torch.func: no features, no column of ones, no inverse that is applied in pieces.

    d W / d theta = -(d^2 Phi / dW^2)^-1 d^2 Phi / dW d theta            as matrices
    J             = d X / d theta + d X / dW  dW / d theta
    Gauss-Newton  = J' H J + a1 B'B + a2 (dW/d theta)' dW/d theta
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from gnvpro.linalg.operators import LinearOperator

F64 = torch.float64


def taylor_order(
    remainder: Callable[[float], float], steps: Sequence[float] | None = None, floor: float = 1e-13
) -> float:
    """The order p of remainder(h) = O(h^p), from the smallest steps whose remainder stands clear of rounding error."""
    steps = [2.0**-k for k in range(1, 14)] if steps is None else steps
    errors = [(h, remainder(h)) for h in steps]
    clear = [(h, e) for h, e in errors if e > floor]
    assert len(clear) >= 3, f"too few remainders above {floor}: {errors}"
    (h0, e0), (h1, e1) = clear[-3], clear[-1]
    return math.log(e0 / e1) / math.log(h0 / h1)


def adjoint_gap(A: LinearOperator, seed: int = 0) -> float:
    """|<A x, y> - <x, A' y>| relative to |A x| |y|, the worst of a few random pairs."""
    generator = torch.Generator().manual_seed(seed)
    worst = 0.0
    for _ in range(3):
        x = torch.randn(A.domain, dtype=F64, generator=generator)
        y = torch.randn(A.codomain, dtype=F64, generator=generator)
        Ax, Ay = A.mv(x), A.rmv(y)
        gap = abs(float((Ax * y).sum() - (x * Ay).sum()))
        worst = max(worst, gap / max(float(Ax.norm() * y.norm()), float(x.norm() * Ay.norm()), 1e-300))
    return worst


def against_dense(A: LinearOperator, matrix: Tensor) -> float:
    """The relative difference of an operator and a matrix on flattened tensors, forwards and transposed."""
    scale = float(matrix.abs().max()) or 1.0
    forward = (A.dense() - matrix).abs().max()
    backward = (A.T.dense() - matrix.T).abs().max()
    return float(torch.maximum(forward, backward)) / scale


def relative(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|."""
    return float((a - b).norm() / b.norm().clamp_min(1e-300))


def randomized(net: nn.Module, scale: float = 0.5) -> nn.Module:
    """The network with new random values of all parameters."""
    torch.manual_seed(1)
    for p in net.parameters():
        nn.init.normal_(p, std=scale)
    return net


@dataclass(frozen=True)
class Dense:
    """Phi(theta, W) of a small problem and all its derivatives as matrices."""

    model: nn.Module
    head: str
    inputs: Tensor
    loss: Callable[[Tensor], Tensor]  # the mean loss as a function of the model's own output
    theta_penalty: float
    B: Tensor | None
    head_penalty: float
    theta: Tensor
    W: Tensor

    def outputs(self, theta: Tensor, W: Tensor) -> Tensor:
        """The model's own output at theta and W."""
        head = self.model.get_submodule(self.head)
        prefix = f"{self.head}." if self.head else ""
        weight = head.get_parameter("weight")
        features = weight.shape[1]
        values = {prefix + "weight": W[:, :features].reshape(weight.shape)}
        if head.bias is not None:
            values[prefix + "bias"] = W[:, features]
        start = 0
        for name, p in self.model.named_parameters():
            if name not in values and p.requires_grad:
                values[name] = theta[start : start + p.numel()].reshape(p.shape)
                start += p.numel()
        values = {name: value.to(weight.dtype) for name, value in values.items()}
        return functional_call(self.model, values, (self.inputs,)).to(F64)

    def phi(self, theta: Tensor, W: Tensor) -> Tensor:
        """The objective."""
        Bt = theta if self.B is None else self.B @ theta
        return (
            self.loss(self.outputs(theta, W))
            + 0.5 * self.theta_penalty * (Bt**2).sum()
            + 0.5 * self.head_penalty * (W**2).sum()
        )

    @cached_property
    def gradient_W(self) -> Tensor:
        """d Phi / dW."""
        return jacrev(self.phi, 1)(self.theta, self.W)

    @cached_property
    def hessian_W(self) -> Tensor:
        """d^2 Phi / dW^2 as a matrix."""
        n = self.W.numel()
        return jacrev(jacrev(self.phi, 1), 1)(self.theta, self.W).reshape(n, n)

    @cached_property
    def head_jacobian(self) -> Tensor:
        """d W / d theta by implicit differentiation with full matrices."""
        mixed = jacrev(jacrev(self.phi, 1), 0)(self.theta, self.W).reshape(self.W.numel(), -1)
        return -torch.linalg.solve(self.hessian_W, mixed)

    @cached_property
    def partial_jacobians(self) -> tuple[Tensor, Tensor]:
        """d X / d theta and d X / d W, each with the other fixed, X flattened as the model returns it."""
        n = self.outputs(self.theta, self.W).numel()
        in_theta, in_W = jacrev(self.outputs, (0, 1))(self.theta, self.W)
        return in_theta.reshape(n, -1), in_W.reshape(n, -1)

    @cached_property
    def reduced_jacobian(self) -> Tensor:
        """d X / d theta with W following."""
        in_theta, in_W = self.partial_jacobians
        return in_theta + in_W @ self.head_jacobian

    @cached_property
    def gradient(self) -> Tensor:
        """d Phi / d theta at fixed W."""
        return jacrev(self.phi, 0)(self.theta, self.W)

    @cached_property
    def loss_hessian(self) -> Tensor:
        """The Hessian of the mean loss in the flattened outputs, with all its zeros."""
        X = self.outputs(self.theta, self.W)
        return jacrev(jacrev(lambda x: self.loss(x.reshape(X.shape))))(X.reshape(-1))

    @property
    def penalty_hessian(self) -> Tensor:
        """a1 B'B."""
        B = torch.eye(self.theta.numel(), dtype=F64) if self.B is None else self.B
        return self.theta_penalty * B.T @ B

    @cached_property
    def gauss_newton(self) -> Tensor:
        """The Gauss-Newton matrix of the reduced objective."""
        J, JW = self.reduced_jacobian, self.head_jacobian
        return J.T @ self.loss_hessian @ J + self.penalty_hessian + self.head_penalty * JW.T @ JW

    @cached_property
    def full_gauss_newton(self) -> Tensor:
        """The joint Gauss-Newton matrix of the full objective in (theta, vec W)."""
        J = torch.cat(self.partial_jacobians, 1)
        ridge = self.head_penalty * torch.eye(self.W.numel(), dtype=F64)
        return J.T @ self.loss_hessian @ J + torch.block_diag(self.penalty_hessian, ridge)
