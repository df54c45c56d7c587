"""Krylov steps with quasi-Newton steps in between, which start from what the last Krylov space learnt.

A Krylov space of rank r costs 2 r passes, a quasi-Newton step two (a trial and its gradient). The Ritz pairs (e_i, u_i) of
the last Krylov space tell the stiff directions of the curvature; limited-memory BFGS learns the rest from the steps taken.
Its inverse curvature H begins from

    H_0 = gamma [ U diag(1 / (e_i + lambda)) U' + (I - U U') / c ],        c = min e_i + lambda,     gamma = s'y / y'H_0 y

with lambda the damping of the Krylov step and (s, y) the last differences of x and of the gradient: gamma fits H_0 to the
curvature along the last step. The step goes along d = -H g; since d' H^-1 d = -g'd, the model promises for it

    predicted reduction of t d  =  -(t - t^2 / 2) g'd,             0 < t <= 1,

so this is a local model like the others, and the loop in `trust_region` stays as it is. `SearchRule` bounds Krylov steps by
a radius and quasi-Newton steps by t alone, which is 1 at first for each of them. The pairs outlive the Krylov space:
they are differences of true gradients, as good as new.

Legend: U -> vectors (rows), e_i -> values, lambda -> damping, (s, y) -> Pair, t -> fraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gnvpro.krylov import KrylovModel, damping_for
from gnvpro.step_rules import LocalModel, RadiusRule, Search, Step
from gnvpro.trust_region import Point

STEPS = 3  # quasi-Newton steps for each dimension of the Krylov space: a quarter of the passes make the spaces
PAIRS = 100  # that are remembered
SHORTEST = 1e-3  # fraction of a quasi-Newton step; where that is too long, the model is wrong


# -- the model


@dataclass(frozen=True)
class Ritz:
    """The curvature as a Krylov space saw it: U diag(e) U' + min(e) (I - U U')."""

    vectors: Tensor  # (rank, n), orthonormal rows
    values: Tensor  # (rank,), positive

    def inverse(self, v: Tensor) -> Tensor:
        """H_0 v with gamma = 1."""
        inside, rest = self.vectors @ v, self.values.min()
        return (inside / self.values - inside / rest) @ self.vectors + v / rest

    def damped(self, gradient: Tensor, length: float) -> Ritz:
        """With the damping under which the step from this space has the given length."""
        right = -(self.vectors @ gradient)
        damping = damping_for(self.values.cpu().numpy(), right.cpu().numpy(), length)
        return Ritz(self.vectors, self.values + damping)


def ritz_of(model: KrylovModel) -> Ritz:
    """The Ritz pairs of a Krylov model."""
    values, vectors = model.factors.ritz
    basis = model.factors.basis
    return Ritz(basis.new_tensor(vectors.T) @ basis[:-1], basis.new_tensor(values))


@dataclass(frozen=True)
class Pair:
    """A step and the change of the gradient along it."""

    s: Tensor
    y: Tensor
    product: float  # s'y

    @property
    def curved(self) -> bool:
        """Whether the curvature along the step is positive, as the update needs."""
        return self.product > 1e-10 * float(torch.linalg.vector_norm(self.s) * torch.linalg.vector_norm(self.y))


def pair_of(s: Tensor, y: Tensor) -> Pair:
    """The pair, with its product."""
    return Pair(s, y, float(s @ y))


def inverse_curvature(ritz: Ritz, pairs: Sequence[Pair], v: Tensor) -> Tensor:
    """H v by the two-loop recursion."""
    gamma = pairs[-1].product / float(pairs[-1].y @ ritz.inverse(pairs[-1].y)) if pairs else 1.0
    weights = []
    for pair in reversed(pairs):
        weights.append(float(pair.s @ v) / pair.product)
        v = v - weights[-1] * pair.y
    v = gamma * ritz.inverse(v)
    for pair, weight in zip(pairs, reversed(weights), strict=True):
        v = v + (weight - float(pair.y @ v) / pair.product) * pair.s
    return v


@dataclass(frozen=True)
class QuasiNewtonModel:
    """The model along one quasi-Newton direction."""

    direction: Tensor
    slope: float  # g'd, negative
    rank: int

    @property
    def first_radius(self) -> float:
        """No bound: the whole step is the first to try."""
        return math.inf

    def solve_within(self, radius: float) -> Step:
        """The direction, cut to the radius."""
        return self.along(min(1.0, radius / float(torch.linalg.vector_norm(self.direction))))

    def along(self, fraction: float) -> Step:
        """A fraction of the whole step."""
        d_x = fraction * self.direction
        predicted = -(fraction - 0.5 * fraction**2) * self.slope
        return Step(d_x, float(torch.linalg.vector_norm(d_x)), predicted, 1.0 / fraction - 1.0)


# -- the rule


@dataclass(frozen=True)
class SearchRule:
    """A radius for Krylov steps; for quasi-Newton steps a backtracking search that begins anew with each of them."""

    radius: RadiusRule = field(default_factory=RadiusRule)

    @property
    def accept_above(self) -> float:
        """The ratio above which a trial is accepted."""
        return self.radius.accept_above

    def propose(self, model: LocalModel, bound: Search | None) -> tuple[Step, Search]:
        """The step within the radius, or the fraction of it."""
        bound = bound or Search()
        if isinstance(model, QuasiNewtonModel):
            return model.along(bound.fraction), bound._replace(searching=True)
        step, radius = self.radius.propose(model, bound.radius)
        return step, Search(radius)

    def update(self, bound: Search, step_norm: float, ratio: float) -> Search:
        """The next radius; or the minimum of the parabola through the value, the slope and the trial."""
        if not bound.searching:
            assert bound.radius is not None
            return Search(self.radius.update(bound.radius, step_norm, ratio))
        if ratio > self.accept_above:
            return Search(bound.radius)
        t = bound.fraction
        if not math.isfinite(ratio):
            return Search(bound.radius, 0.1 * t)
        minimum = t / (2 - ratio * (2 - t))  # of -t + a t^2, which is -ratio (t - t^2 / 2) at the trial
        return Search(bound.radius, min(max(minimum, 0.1 * t), 0.5 * t))


# -- the builder


class KrylovBuilder(Protocol):
    """Builds the Krylov models of a run, within its budget."""

    def __call__(self, point: Point) -> KrylovModel:
        """A new model."""
        ...

    def build(self, point: Point) -> KrylovModel:
        """The model of before, built again."""
        ...

    def state(self) -> dict[str, Any]:
        """What `resume` needs."""
        ...

    def resume(self, state: dict[str, Any]) -> None:
        """Build again as before."""
        ...


class Hybrid:
    """Builds a Krylov model at every so many points, and quasi-Newton models in between."""

    def __init__(self, krylov: KrylovBuilder, may_build: Callable[[], bool]) -> None:
        self.krylov = krylov
        self.may_build = may_build  # whether the budget has room for a Krylov space and for steps that use it
        self.pairs: list[Pair] = []
        self.ritz: Ritz | None = None
        self.steps = 0  # quasi-Newton models since the last Krylov space
        self.before: tuple[Tensor, Tensor] | None = None  # x and gradient where the last model was built

    def __call__(self, point: Point) -> LocalModel:
        """The local model at a point that the last model's step has led to."""
        if self.before is not None and self.ritz is not None:
            x, gradient = self.before
            pair = pair_of(point.x - x, point.gradient() - gradient)
            if pair.curved:
                self.pairs = [*self.pairs, pair][-PAIRS:]
            if self.steps == 0:
                self.ritz = self.ritz.damped(gradient, float(torch.linalg.vector_norm(pair.s)))
            spent = self.steps >= STEPS * len(self.ritz.values)
            self.steps = 0 if spent and self.may_build() else self.steps + 1
        self.before = (point.x, point.gradient())
        return self._model(point, self.krylov)

    def renew(self, point: Point) -> LocalModel:
        """A Krylov model in the place of a quasi-Newton model that led nowhere."""
        self.steps = 0
        return self._model(point, self.krylov)

    def build(self, point: Point) -> LocalModel:
        """The model of before, built again."""
        return self._model(point, self.krylov.build)

    def _model(self, point: Point, build_krylov: Callable[[Point], KrylovModel]) -> LocalModel:
        if self.ritz is None or self.steps == 0:
            model = build_krylov(point)
            self.ritz = ritz_of(model) if model.rank else None
            return model
        direction = -inverse_curvature(self.ritz, self.pairs, point.gradient())
        slope = float(point.gradient() @ direction)
        return QuasiNewtonModel(direction, slope, len(self.ritz.values) + len(self.pairs))

    def state(self) -> dict[str, Any]:
        """What `resume` needs."""
        x, gradient = self.before or (None, None)
        return {
            **self.krylov.state(),
            "steps": self.steps,
            "before_x": x,
            "before_gradient": gradient,
            "ritz_vectors": self.ritz.vectors if self.ritz else None,
            "ritz_values": self.ritz.values if self.ritz else None,
            "s": torch.stack([pair.s for pair in self.pairs]) if self.pairs else None,
            "y": torch.stack([pair.y for pair in self.pairs]) if self.pairs else None,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Know again what was known."""
        self.krylov.resume(state)
        self.steps = state["steps"]
        self.before = None if state["before_x"] is None else (state["before_x"], state["before_gradient"])
        self.ritz = None if state["ritz_vectors"] is None else Ritz(state["ritz_vectors"], state["ritz_values"])
        self.pairs = [] if state["s"] is None else [pair_of(s, y) for s, y in zip(state["s"], state["y"], strict=True)]
