"""Krylov steps with quasi-Newton steps in between, which start from the curvature in the last Krylov space.

A Krylov space of rank r costs 2 r passes, a quasi-Newton step two (a trial and its gradient). The Ritz pairs (e_i,
u_i) of the last Krylov space contain the stiff directions of the curvature; limited-memory BFGS learns the rest from
the steps taken. Its inverse curvature H starts from

    H_0 = gamma [ U diag(1 / (e_i + lambda)) U' + (I - U U') / c ],        c = min e_i + lambda,     gamma = s'y / y'H_0 y

with lambda the damping of the Krylov step and (s, y) the last differences of x and of the gradient: gamma fits H_0
to the curvature along the last step. The step goes along d = -H g (see `line_model`). The pairs are kept when a new
Krylov space is built, because they are differences of true gradients and stay valid.

Legend: U -> vectors (rows), e_i -> values, lambda -> damping, (s, y) -> rows of S and Y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from gnvpro.linalg.secular import damping_for
from gnvpro.minimize.krylov import KrylovModel
from gnvpro.minimize.line_model import LineModel
from gnvpro.minimize.trust_region import Point
from gnvpro.state import State

# Quasi-Newton steps for each dimension of the Krylov space: a quarter of the passes build the spaces.
STEPS_PER_DIMENSION = 3
MAX_PAIRS = 100  # pairs in memory
MAX_GROWTH = 4.0  # of a quasi-Newton step relative to the previous step; the first ones rest on few differences


# -- the model


@dataclass(frozen=True)
class Ritz(State):
    """The curvature in a Krylov space: U diag(e) U' + min(e) (I - U U')."""

    vectors: Tensor  # (rank, n), orthonormal rows
    values: Tensor  # (rank,), positive

    @cached_property
    def _rest(self) -> tuple[Tensor, Tensor]:
        """Return 1 / min(e), and the difference of 1 / e from it."""
        least = 1 / self.values.min()
        return least, 1 / self.values - least

    def inverse(self, v: Tensor) -> Tensor:
        """Return H_0 v with gamma = 1."""
        least, beyond = self._rest
        return torch.addmv(least * v, self.vectors.T, beyond * (self.vectors @ v))

    def damped(self, gradient: Tensor, length: float) -> Ritz:
        """Return these pairs with the damping for which the step from this space has the given length."""
        right = -(self.vectors @ gradient)
        damping = damping_for(self.values.cpu().numpy(), right.cpu().numpy(), length)
        return Ritz(self.vectors, self.values + damping)


def ritz_of(model: KrylovModel) -> Ritz:
    """Return the Ritz pairs of a Krylov model."""
    values, vectors = model.factors.ritz
    basis = model.factors.basis
    return Ritz(basis.new_tensor(vectors.T) @ basis[:-1], basis.new_tensor(values))


@dataclass(frozen=True)
class Pairs(State):
    """The last steps and the changes of the gradient along them, oldest first."""

    S: Tensor  # (k, n)
    Y: Tensor  # (k, n)
    R: Tensor  # (k, k), upper triangle of S Y'

    @staticmethod
    def none(x: Tensor) -> Pairs:
        """Return no pairs, for variables of the shape of x."""
        return Pairs(x.new_zeros(0, len(x)), x.new_zeros(0, len(x)), x.new_zeros(0, 0))

    def with_pair(self, s: Tensor, y: Tensor, most: int) -> Pairs:
        """Add one pair and drop the oldest beyond `most`; return self if the curvature along s is not positive."""
        if not float(s @ y) > 1e-10 * float(torch.linalg.vector_norm(s) * torch.linalg.vector_norm(y)):
            return self
        first = max(0, len(self.S) + 1 - most)
        S, Y = torch.cat([self.S[first:], s[None]]), torch.cat([self.Y[first:], y[None]])
        R = torch.nn.functional.pad(self.R[first:, first:], (0, 1, 0, 1))
        R[:, -1] = S @ y
        return Pairs(S, Y, R)

    def inverse_curvature(self, ritz: Ritz, v: Tensor) -> Tensor:
        """Return H v by the two-loop recursion, each loop written as the triangular system that it solves."""
        if not len(self.S):
            return ritz.inverse(v)
        gamma = self.R[-1, -1] / (self.Y[-1] @ ritz.inverse(self.Y[-1]))
        weights = torch.linalg.solve_triangular(self.R, (self.S @ v)[:, None], upper=True)[:, 0]
        inside = gamma * ritz.inverse(v - weights @ self.Y)
        rest = self.R.diagonal() * weights - self.Y @ inside
        return inside + torch.linalg.solve_triangular(self.R.T, rest[:, None], upper=False)[:, 0] @ self.S


# -- memory between steps


@dataclass(frozen=True)
class Learnt(State):
    """Information from earlier models and steps that determines the model at the last accepted point."""

    ritz: Ritz | None = None
    pairs: Pairs | None = None
    steps: int = 0  # quasi-Newton models since the last Krylov space
    due: int = 0  # times a space was due, built or not
    longest: float = inf  # longest allowed quasi-Newton step
    before_x: Tensor | None = None  # x and gradient at which the last model was built
    before_gradient: Tensor | None = None

    def at(self, point: Point, may_build: Callable[[int], bool]) -> Learnt:
        """Return the information at a point that the last model's step reached.

        A Krylov space that is due is built if `may_build` allows it, given how often one was due.
        """
        gradient = point.gradient()
        known = replace(self, before_x=point.x, before_gradient=gradient)
        if self.before_x is None or self.before_gradient is None or self.ritz is None:
            return known
        s, y = point.x - self.before_x, gradient - self.before_gradient
        length, ritz = float(torch.linalg.vector_norm(s)), self.ritz
        if length > 0:  # a step may be lost in the rounding of x
            ritz = ritz if self.steps else ritz.damped(self.before_gradient, length)
            pairs = (self.pairs or Pairs.none(s)).with_pair(s, y, MAX_PAIRS)
            known = replace(known, ritz=ritz, pairs=pairs, longest=MAX_GROWTH * length)
        spent = self.steps >= STEPS_PER_DIMENSION * len(ritz.values)
        due = self.due + spent
        return replace(known, due=due, steps=0 if spent and may_build(due) else self.steps + 1)

    @property
    def asks_for_space(self) -> bool:
        """Return True if the next model needs a new Krylov space."""
        return self.ritz is None or self.steps == 0

    def line_model(self, point: Point) -> LineModel:
        """Return the quasi-Newton model at the point."""
        assert self.ritz is not None
        pairs, gradient = self.pairs or Pairs.none(point.x), point.gradient()
        direction = -pairs.inverse_curvature(self.ritz, gradient)
        length = float(torch.linalg.vector_norm(direction))
        # the direction of a tiny gradient may have length zero
        most = 1.0 if length <= self.longest else self.longest / length
        return LineModel(gradient, direction, len(self.ritz.values) + len(pairs.S), most)

    def with_space(self, model: KrylovModel) -> Learnt:
        """Return this information with the Ritz pairs of a new Krylov space."""
        return replace(self, ritz=ritz_of(model) if model.rank else None)
