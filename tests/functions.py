"""Smooth functions of a few variables, for the loop and its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.linalg.operators import LinearOperator, symmetric


@dataclass(frozen=True)
class FunctionPoint:
    """A smooth function at a point, its Hessian made positive by taking absolute eigenvalues."""

    function: Function
    x: Tensor
    value: float
    has_gradient = True

    def free(self) -> None:
        pass

    def gradient(self) -> Tensor:
        return torch.func.jacrev(self.function.f)(self.x)

    def curvature(self) -> LinearOperator:
        self.function.curvatures.append(self.x)
        H = torch.func.jacrev(torch.func.jacrev(self.function.f))(self.x)
        values, vectors = torch.linalg.eigh(H)
        H = vectors @ torch.diag(values.abs()) @ vectors.T

        def mv(v: Tensor) -> Tensor:
            self.function.products += 1
            return H @ v

        return symmetric(tuple(self.x.shape), mv)


class Function:
    """A function that counts its calls."""

    epsilon = 2e-15

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f, self.products, self.evaluations = f, 0, 0
        self.curvatures: list[Tensor] = []
        self.near: list[FunctionPoint | None] = []

    def at(self, x: Tensor, near: FunctionPoint | None) -> FunctionPoint:
        self.evaluations += 1
        self.near.append(near)
        return FunctionPoint(self, x, float(self.f(x)))


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
