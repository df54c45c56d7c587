"""Linear operators between spaces of tensors, given by their action and the action of their transpose.

    mv : domain -> codomain        rmv : codomain -> domain        <A x, y> = <x, A' y>

Both spaces are tensor shapes, so a tangent has the same shape as in the formulas (features are a matrix, W is a
matrix, theta is a vector), and no code needs `vec` or a Kronecker product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LinearOperator:
    """A linear map given by its action on a tensor, forwards (`mv`) and transposed (`rmv`).

    Args:
        domain: shape of the tensors that `mv` accepts.
        codomain: shape of the tensors that `mv` returns.
        mv: returns the product with a tensor.
        rmv: returns the product of the transpose with a tensor.

    >>> difference = LinearOperator((2,), (1,), lambda x: x[1:] - x[:1], lambda y: torch.cat([-y, y]))
    >>> (difference.T @ difference).dense()
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """

    domain: Shape
    codomain: Shape
    mv: Callable[[Tensor], Tensor]
    rmv: Callable[[Tensor], Tensor]

    @property
    def T(self) -> LinearOperator:
        """The transpose."""
        return LinearOperator(self.codomain, self.domain, self.rmv, self.mv)

    def __matmul__(self, other: LinearOperator) -> LinearOperator:
        return LinearOperator(
            other.domain, self.codomain, lambda x: self.mv(other.mv(x)), lambda y: other.rmv(self.rmv(y))
        )

    def __add__(self, other: LinearOperator) -> LinearOperator:
        return LinearOperator(
            self.domain, self.codomain, lambda x: self.mv(x) + other.mv(x), lambda y: self.rmv(y) + other.rmv(y)
        )

    def __rmul__(self, scale: float) -> LinearOperator:
        return LinearOperator(self.domain, self.codomain, lambda x: scale * self.mv(x), lambda y: scale * self.rmv(y))

    def dense(self) -> Tensor:
        """Return the matrix of the operator on flattened tensors, built column by column; for small problems and tests."""
        n = torch.Size(self.domain).numel()
        basis = torch.eye(n, dtype=torch.float64)
        return torch.stack([self.mv(basis[j].reshape(self.domain)).reshape(-1) for j in range(n)], dim=1)


def symmetric(shape: Shape, mv: Callable[[Tensor], Tensor]) -> LinearOperator:
    """Return a symmetric operator on one space."""
    return LinearOperator(shape, shape, mv, mv)


def identity(shape: Shape) -> LinearOperator:
    """Return the identity on one space."""
    return symmetric(shape, lambda x: x)
