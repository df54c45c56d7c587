"""ADAM in coordinates in which the gradient's entries are uncorrelated.

ADAM divides each entry of the mean gradient by its root mean square, which is right if entries vary independently. The entries
of a layer's matrix G do not: rows share their input, columns their cotangent. Two running averages measure that,

    L = mean G G'  =  U diag(l) U',        R = mean G' G  =  V diag(r) V'

and ADAM runs on U' G V instead of G (the eigenvectors are also Shampoo's; running ADAM between
them is called SOAP). The eigenvectors follow L and R by one orthogonal iteration every few steps,

    U  <-  orthogonal factor of L U

If eigenvalues of L are nearly zero (a batch may have fewer directions than a layer), rounding errors would choose among
their eigenvectors, and ADAM would take other steps. A small diagonal of different entries added to L chooses instead:

    L + D,        D = DISTINCT * mean(diag L) * diag(1, ..., m) / m

`shortest`, for runs whose first steps count: the mean averages a twentieth of the steps so far, but at least this many, until
it has the memory that `betas` give it. Gradients turn quickly at the beginning, and a long memory lags behind.

Parameters with more than two axes are matrices of their first axis against the others. An axis longer than `max_side`,
and every vector, is not rotated; without rotations this is ADAM. A kernel of a convolution may be four times as long: it
is used at many positions, so its gradient costs far more than its rotation.

Legend: L, R -> state "left", "right"; U, V -> "left_vectors", "right_vectors".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnvpro.arguments import check_count, check_number

SIDES = ("left", "right")
KERNEL = 4  # a convolution's longest rotated axis over `max_side`
GROWTH = 20  # steps so far over the steps in a growing mean's memory
DISTINCT = 1e-5  # size of D over the mean eigenvalue


class RotatedAdam(torch.optim.Optimizer):
    """ADAM in the eigenvectors of each matrix's running second moments.

    Args:
        params: parameters, or groups of them.
        lr: the largest change of an entry, in rotated coordinates, is about this.
        betas: the memory of the mean gradient and of the second moments.
        eps: added to root mean squares.
        every: steps between two updates of the eigenvectors.
        max_side: the longest axis that is rotated; of a convolution's kernel, four times as long.

    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    >>> optimizer = RotatedAdam([w], lr=0.1)
    >>> for _ in range(10):
    ...     optimizer.zero_grad()
    ...     w.square().sum().backward()
    ...     optimizer.step()
    >>> bool(w.square().sum() < 2.5)  # from 5
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-10,
        every: int = 10,
        max_side: int = 256,
    ) -> None:
        check_number("lr", lr, 0.0)
        for name, beta in zip(("betas[0]", "betas[1]"), betas, strict=True):
            if check_number(name, beta, 0.0) >= 1:
                raise ValueError(f"{name} must be below 1, got {beta!r}")
        check_number("eps", eps, 0.0)
        check_count("every", every, 1)
        check_count("max_side", max_side, 0)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "every": every, "max_side": max_side})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; the very first only learns the coordinates."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            kernel = Rotated(group["betas"], group["eps"], group["every"], group["max_side"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kernel.step(parameter, parameter.grad, self.state[parameter], group["lr"])
        return loss


@dataclass(frozen=True)
class Rotated:
    """The settings of a step, and the step: kernels that need no `torch.optim`."""

    betas: tuple[float, float] = (0.95, 0.95)
    eps: float = 1e-10
    every: int = 10
    max_side: int = 256
    shortest: int | None = None  # steps in the first mean; None: as many as later

    def step(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], lr: float) -> None:
        """Change the parameter and the state; an empty state learns its coordinates and leaves the parameter."""
        gradient = gradient.to(
            torch.promote_types(gradient.dtype, torch.float32)
        )  # moments need more than half precision
        G = gradient.reshape(len(gradient), -1) if gradient.dim() > 1 else gradient
        if not state:
            state.update(_first_state(G, self.max_side * (KERNEL if gradient.dim() > 2 else 1)))
            return
        state["step"] += 1
        (beta1, beta2), step = self.betas, state["step"]
        new = (1 - beta1) / (
            1 - beta1**step
        )  # ADAM's mean, which begins at zero, divided by what its weights add up to
        state["mean"].lerp_(G, max(new, min(1 / self.shortest, GROWTH / step)) if self.shortest else new)
        rotated = _rotated(G, state)
        square = state["square"].mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
        size = (square / (1 - beta2**step)).sqrt_().add_(self.eps)
        direction = _rotated_back(_rotated(state["mean"], state).div_(size), state)
        parameter.sub_(direction.reshape(parameter.shape), alpha=lr)
        renew = step % self.every == 0
        for side in SIDES:
            if side in state:
                A = G if side == "left" else G.T
                moment = state[side].mul_(beta2).addmm_(A, A.T, alpha=1 - beta2)
                if renew:
                    state[f"{side}_vectors"] = _orthogonal(_distinct(moment) @ state[f"{side}_vectors"])


def _first_state(G: Tensor, max_side: int) -> dict[str, Any]:
    state: dict[str, Any] = {"step": 0, "mean": torch.zeros_like(G), "square": torch.zeros_like(G)}
    if G.dim() > 1:
        for side, length, moment in zip(SIDES, G.shape, (lambda: G @ G.T, lambda: G.T @ G), strict=True):
            if 1 < length <= max_side:
                state[side] = moment()
                vectors = torch.linalg.eigh(_distinct(state[side].double()))[1]
                state[f"{side}_vectors"] = vectors.flip(1).to(G.dtype)
    return state


def _distinct(moment: Tensor) -> Tensor:
    """L + D."""
    count = len(moment)
    steps = torch.arange(1, count + 1, dtype=moment.dtype, device=moment.device) / count
    return moment + (DISTINCT * moment.diagonal().mean() * steps).diag()


def _rotated(G: Tensor, state: dict[str, Any]) -> Tensor:
    """U' G V."""
    if "left" in state:
        G = state["left_vectors"].T @ G
    return G @ state["right_vectors"] if "right" in state else G.clone()


def _rotated_back(G: Tensor, state: dict[str, Any]) -> Tensor:
    """U G V'."""
    if "left" in state:
        G = state["left_vectors"] @ G
    return G @ state["right_vectors"].T if "right" in state else G


def _orthogonal(A: Tensor) -> Tensor:
    return torch.linalg.qr(A)[0]
