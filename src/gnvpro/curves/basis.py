"""The basis of a curve: columns z_1(x, theta), ..., z_m(x, theta) and their exact derivatives in theta.

A step needs the derivative of the fitted curves with their coefficients held, d (Z W) / d theta. Two ways lead to it:

    the engine's   J v for one parameter after the other (`network.derivatives.autodiff`): right for any basis
    by sample      if row i of the columns depends on x_i alone, one backward pass per curve, or per column if there are more
                   curves than columns, differentiates all rows, each with parameters of its own

A basis counts as one "by sample" if, with one parameter per row, it has the same columns, and no row depends on the
parameters of another: the derivative of u'z in the parameter of row i is u_i times that of 1'z, for random u. This is checked
at the start of the fit and at its end.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnvpro.curves.algebra import Array
from gnvpro.network.derivatives.autodiff import linearize_by_autodiff

Columns = Callable[..., Sequence[Tensor | float] | Tensor]
AGREE = 1e-9  # relative difference of derivatives that rounding explains
SAME = 1e-12  # relative difference of columns that rounding explains


@dataclass(frozen=True)
class Basis:
    """Columns as a function of x and the parameters by name."""

    columns: Columns
    x: Tensor
    names: tuple[str, ...]
    by_sample: bool = False  # whether a row depends on its own x alone

    def at(self, values: Array) -> Evaluated:
        """The columns at all parameters, in the order of their names."""
        return Evaluated(self, values)

    def called(self, values: Sequence[Tensor]) -> Tensor:
        """The columns as a matrix, (samples, m)."""
        named, version = dict(zip(self.names, values, strict=True)), self.x._version
        try:
            made = self.columns(self.x, **named)
        except (TypeError, RuntimeError) as error:
            message = (
                f"the basis failed with {type(error).__name__}: {error}; it is called with x as a tensor and "
                f"the parameters {', '.join(self.names)} as tensors, so use torch functions (torch.exp, not numpy.exp)"
            )
            raise type(error)(message) from error
        if self.x._version != version:
            raise ValueError(
                "the basis changes x in place; write x * k instead of x.mul_(k), and assign to no part of x"
            )
        n = len(self.x)
        return torch.stack([as_column(c, j, n) for j, c in enumerate(listed(made))], 1)

    def tried(self, values: Array) -> Evaluated:
        """The columns at these values, with the fast derivatives if they are right here."""
        plain = self.at(values)
        try:
            fast = replace(self, by_sample=True).at(values)
            return fast if fast.agrees(plain.Z) else plain
        except (RuntimeError, TypeError, ValueError, IndexError):  # it takes no parameters of the shape of x
            return plain

    def on(self, x: Tensor) -> Basis:
        """Return the basis at other x."""
        return replace(self, x=x)


class Evaluated:
    """The columns at some parameters, and their derivatives when asked for."""

    def __init__(self, basis: Basis, values: Array) -> None:
        self.basis, self.values = basis, values
        self._graph: tuple[list[Tensor], Tensor] | None = None
        self._dZ: Array | None = None
        self._moved: tuple[Array, Array] | None = None
        if basis.by_sample:
            self.Z = self.graph[1].detach().numpy()
        else:
            with torch.no_grad():
                self.Z = basis.called(torch.from_numpy(values).unbind()).numpy()

    @property
    def graph(self) -> tuple[list[Tensor], Tensor]:
        """One leaf per parameter with a value for every sample, and the columns made from them."""
        if self._graph is None:
            n = len(self.basis.x)
            leaves = [torch.from_numpy(np.full(n, value)).requires_grad_() for value in self.values]
            with torch.enable_grad():
                self._graph = leaves, self.basis.called(leaves)
        return self._graph

    def agrees(self, plain: Array) -> bool:
        """Check that rows depend on their own parameters alone, in random combinations of rows and columns."""
        finite = np.isfinite(plain).all() and np.isfinite(self.Z).all()
        if not finite or not np.all(abs(self.Z - plain) <= SAME * abs(plain).max(initial=0.0)):
            return False
        draw = np.random.default_rng(0)
        u, v = draw.uniform(0.5, 1.5, (len(plain), 1)), draw.uniform(0.5, 1.5, plain.shape[1])
        whole, part = self.pulled(np.broadcast_to(v, plain.shape)), self.pulled(u * v)
        return bool(np.all(abs(part - u * whole) <= AGREE * abs(whole).max(initial=0.0)))

    def right(self) -> bool:
        """Check the fast derivatives, if they are used, against the columns for one parameter for all rows."""
        return not self.basis.by_sample or self.agrees(replace(self.basis, by_sample=False).at(self.values).Z)

    def pulled(self, cotangent: Array) -> Array:
        """Derivative of the sum of `cotangent` times the columns in the parameters of each row, (n, parameters)."""
        leaves, columns = self.graph
        J = np.zeros((len(columns), len(leaves)))
        if columns.requires_grad:
            with torch.enable_grad():  # one number: PyTorch imports SymPy (1.5 s) to check the shape of a cotangent
                total = torch.dot(columns.reshape(-1), torch.from_numpy(np.array(cotangent).reshape(-1)))
            for k, g in enumerate(torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)):
                if g is not None:
                    J[:, k] = g.numpy()
        return J

    @property
    def dZ(self) -> Array:
        """The derivative of the columns in every parameter, (n, m, parameters)."""
        if self._dZ is None:
            n, m = self.Z.shape
            if not len(self.values):
                self._dZ = np.zeros((n, m, 0))
            elif self.basis.by_sample:
                units = [np.broadcast_to(unit, (n, m)) for unit in np.eye(m)]
                self._dZ = np.stack([self.pulled(unit) for unit in units], 1)
            else:
                self._dZ = exact_jacobian(self.basis, self.values)
        return self._dZ

    def moved(self, W: Array) -> Array:
        """The derivative of Z W in every parameter with W (m, r) held, (n, r, parameters)."""
        if self._moved is None or self._moved[0] is not W:
            self._moved = W, self._moved_by(W)
        return self._moved[1]

    def _moved_by(self, W: Array) -> Array:
        n, m = self.Z.shape
        if self._dZ is None and self.basis.by_sample and W.shape[1] <= max(1, m - 1) and len(self.values):
            parts = [self.pulled(np.broadcast_to(row, (n, m))) for row in W.T]
            return parts[0][:, None] if len(parts) == 1 else np.stack(parts, 1)
        return np.swapaxes(np.swapaxes(self.dZ, 1, 2) @ W, 1, 2)

    def free(self) -> None:
        """Forget the graph; it is made again if it is needed."""
        self._graph = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_graph": None}


def exact_jacobian(basis: Basis, values: Array) -> Array:
    """Derivative for any basis: the engine's products, one for each parameter."""
    names = basis.names
    params = dict(zip(names, torch.from_numpy(values).unbind(), strict=True))
    try:
        linear = linearize_by_autodiff(
            lambda p, x: basis.called([p[name] for name in names]),
            lambda p: nullcontext(),
            params,
            basis.x,
            lambda v: dict(zip(names, v.unbind(), strict=True)),
            lambda p: torch.stack([p[name] for name in names]),
        )
        units = torch.eye(len(names), dtype=torch.float64)
        return torch.stack([linear.jvp(unit) for unit in units], 2).numpy()
    except RuntimeError as error:
        if "inplace" in str(error):
            raise RuntimeError(IN_PLACE.format(error)) from error
        raise


IN_PLACE = (
    "the basis changes a tensor in place (a method such as mul_, or an assignment to a part): {}; write it without"
)


def listed(made: Any) -> list[Any]:
    """The columns of what a basis returned."""
    if isinstance(made, Tensor) and made.ndim == 2:
        return list(made.unbind(1))
    if isinstance(made, Tensor | np.ndarray | numbers.Real | str | dict) or not hasattr(made, "__iter__"):
        shape = f" of shape {tuple(made.shape)}" if hasattr(made, "shape") else ""
        raise TypeError(
            f"the basis must return a list of columns, such as [column, 1.0]; got {type(made).__name__}{shape}"
        )
    columns = list(made)
    if not columns:
        raise ValueError("the basis returned no column; return a list of columns, such as [column, 1.0]")
    return columns


def as_column(column: Tensor | float, j: int, n: int) -> Tensor:
    """One value per sample; a number stands for a constant column."""
    if isinstance(column, Tensor):
        if column.shape == (n,) and column.dtype is torch.float64:
            return column
        if column.is_complex():
            raise TypeError(f"column {j} of the basis is complex; return its real and imaginary parts as two columns")
        if column.ndim == 0:
            return column.to(torch.float64).expand(n)
        if column.shape != (n,):
            raise ValueError(
                f"column {j} of the basis has shape {tuple(column.shape)}; it needs one value per sample, ({n},)"
            )
        return column.to(torch.float64)
    if isinstance(column, numbers.Real):
        return torch.full((n,), float(column), dtype=torch.float64)
    raise TypeError(
        f"column {j} of the basis is a {type(column).__name__}; return numbers or tensors (by torch functions, not numpy's)"
    )
