"""The basis of a curve: columns z_1(x, theta), ..., z_m(x, theta) and their exact derivatives in theta.

Two ways lead to the derivatives, both by automatic differentiation:

    the engine's   J v for one parameter after the other (`network.derivatives.autodiff`): right for any basis
    by sample      if row i of the columns depends on x_i alone, one backward pass per column differentiates all rows,
                   each with separate parameters; five times as fast on a few hundred samples

A basis counts as one "by sample" if its derivatives are right in a random combination of the rows at the start of the fit
and at its end: with u'J = grad u'z for a random u, the sum over rows cannot hide that rows depend on each other.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.network.derivatives.autodiff import linearize_by_autodiff

Columns = Callable[..., Sequence[Tensor | float] | Tensor]
AGREE = 1e-9  # relative difference of sums of derivatives that rounding explains


@dataclass(frozen=True)
class Basis:
    """Columns as a function of x and the parameters by name."""

    columns: Columns
    x: Tensor
    names: tuple[str, ...]
    by_sample: bool = False  # whether a row depends on its own x alone

    def at(self, values: Sequence[Tensor]) -> Tensor:
        """The columns as a matrix, (samples, m)."""
        with torch.no_grad():
            return self._matrix(values, self.x)

    def _list(self, values: Sequence[Tensor], x: Tensor) -> list[Tensor | float]:
        named = dict(zip(self.names, values, strict=True))
        try:
            made = self.columns(x, **named)
        except (TypeError, RuntimeError) as error:
            message = (
                f"the basis failed with {type(error).__name__}: {error}; it is called with x as a tensor and "
                f"the parameters {', '.join(self.names)} as tensors, so use torch functions (torch.exp, not numpy.exp)"
            )
            raise type(error)(message) from error
        return list(made.unbind(1)) if isinstance(made, Tensor) and made.ndim == 2 else list(made)

    def _matrix(self, values: Sequence[Tensor], x: Tensor) -> Tensor:
        return torch.stack([as_column(c, j, len(x)) for j, c in enumerate(self._list(values, x))], 1)

    def jacobian(self, values: Sequence[Tensor]) -> Tensor:
        """The derivative of the columns in every parameter, (samples, m, parameters)."""
        return self._by_sample(values) if self.by_sample else self.exact_jacobian(values)

    def exact_jacobian(self, values: Sequence[Tensor]) -> Tensor:
        """Derivative for any basis: the engine's products, one for each parameter."""
        names = self.names
        params = dict(zip(names, values, strict=True))
        linear = linearize_by_autodiff(
            lambda p, x: self._matrix([p[name] for name in names], x),
            lambda p: nullcontext(),
            params,
            self.x,
            lambda v: dict(zip(names, v.unbind(), strict=True)),
            lambda p: torch.stack([p[name] for name in names]),
        )
        units = torch.eye(len(names), dtype=self.x.dtype)
        return torch.stack([linear.jvp(unit) for unit in units], 2)

    def _by_sample(self, values: Sequence[Tensor]) -> Tensor:
        n = len(self.x)
        own = [value.detach().expand(n).clone().requires_grad_() for value in values]
        with torch.enable_grad():
            columns = self._list(own, self.x)
            J = self.x.new_zeros(n, len(columns), len(own))
            for j, column in enumerate(columns):
                if not (isinstance(column, Tensor) and column.requires_grad):
                    continue
                for k, g in enumerate(torch.autograd.grad(column.sum(), own, retain_graph=True, allow_unused=True)):
                    if g is not None:
                        J[:, j, k] = g
        return J

    def tried(self, values: Sequence[Tensor]) -> Basis:
        """Return this basis with the fast derivatives if they are right here."""
        fast = Basis(self.columns, self.x, self.names, by_sample=True)
        try:
            return fast if fast.agrees(values) else self
        except (RuntimeError, TypeError, ValueError, IndexError):  # it takes no parameters of the shape of x
            return self

    def agrees(self, values: Sequence[Tensor]) -> bool:
        """Check the fast derivatives: u'J against the gradient of u'z, for random u."""
        if not self.by_sample:
            return True
        J = self._by_sample(values)
        u = torch.rand(len(self.x), generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
        leaves = [value.detach().clone().requires_grad_() for value in values]
        with torch.enable_grad():
            for j, column in enumerate(self._list(leaves, self.x)):
                if not (isinstance(column, Tensor) and column.requires_grad):
                    if J[:, j].any():
                        return False
                    continue
                grads = torch.autograd.grad((u * column).sum(), leaves, retain_graph=True, allow_unused=True)
                true = torch.stack([u.new_zeros(()) if g is None else g for g in grads])
                if ((u @ J[:, j] - true).abs() > AGREE * (u @ J[:, j].abs())).any():
                    return False
        return True

    def on(self, x: Tensor) -> Basis:
        """Return the basis at other x."""
        return Basis(self.columns, x, self.names, self.by_sample)


def as_column(column: Tensor | float, j: int, n: int) -> Tensor:
    """One value per sample; a number stands for a constant column."""
    if isinstance(column, numbers.Real):
        return torch.full((n,), float(column), dtype=torch.float64)
    if not isinstance(column, Tensor):
        raise TypeError(
            f"column {j} of the basis is a {type(column).__name__}; return numbers or tensors (by torch functions, not numpy's)"
        )
    if column.ndim == 0:
        return column.to(torch.float64).expand(n)
    if column.shape != (n,):
        raise ValueError(
            f"column {j} of the basis has shape {tuple(column.shape)}; it needs one value per sample, ({n},)"
        )
    return column.to(torch.float64)
