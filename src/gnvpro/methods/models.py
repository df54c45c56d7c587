"""Local models of the solvers, made when the trust-region loop needs them.

KrylovModels        a Krylov space at every point                                      reduced or full objective
QuasiNewtonModels   quasi-Newton directions, Krylov spaces in between                  reduced
DenseModels         the whole matrix, or almost the whole from a part of the samples   reduced
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from gnvpro.methods.loop import Loop, LoopPoint, LoopState, Models, P
from gnvpro.methods.protocol import Budget
from gnvpro.minimize.dense_model import DenseModel, scaled_metric, straight
from gnvpro.minimize.krylov import KrylovModel, krylov_model
from gnvpro.minimize.line_model import SHORTEST_FRACTION, SearchRule
from gnvpro.minimize.part_model import ITERATIONS, PartModel
from gnvpro.minimize.quasi_newton import Learnt
from gnvpro.minimize.step_rules import Bound, Damping, LineSearchBound, LocalModel, NielsenRule, RadiusRule
from gnvpro.network.subspace import choose_subspace
from gnvpro.objectives.gauss_newton_matrix import MatrixBuilder
from gnvpro.objectives.geodesic import Geodesic
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.state import State

if TYPE_CHECKING:
    from gnvpro.methods.step_solvers import Dense


@dataclass(frozen=True)
class SpaceMemory(State):
    """The dimension that the Krylov space at the point may have, and what earlier spaces and steps taught."""

    cap: int = 0
    known: Learnt = Learnt()  # noqa: RUF009 - it is frozen


def affordable_rank(max_rank: int, budget: Budget) -> int:
    """The largest dimension of a Krylov space that leaves room for the trial and its gradient."""
    return max(1, int(min(max_rank, budget.products_left)))


class KrylovModels(Models[P]):
    """A Krylov space at every point, no larger than work and seconds leave room for."""

    def __init__(self, name: str, max_rank: int, rtol: float, damped: str = "model") -> None:
        self.name, self.max_rank, self.rtol, self.damped = name, max_rank, rtol, damped

    def planned(self, memory: SpaceMemory, point: P, budget: Budget) -> SpaceMemory:
        """The dimension that the budget allows."""
        return SpaceMemory(affordable_rank(self.max_rank, budget))

    def build(self, memory: SpaceMemory, point: P) -> LocalModel:
        """The model on the Krylov space."""
        return krylov_model(point, memory.cap, self.rtol, self.damped)


class QuasiNewtonModels(Models[ReducedPoint]):
    """Quasi-Newton directions, and Krylov spaces if the budget has room for them."""

    rule = SearchRule()

    def __init__(self, name: str, max_rank: int, rtol: float) -> None:
        self.name, self.max_rank, self.rtol = name, max_rank, rtol

    def rank(self, budget: Budget) -> int:
        """The dimension of a space that is built now."""
        return affordable_rank(self.max_rank, budget)

    def may_build(self, due: int, budget: Budget) -> bool:
        """Return whether the budget covers a Krylov space and as many passes again for steps that use it."""
        return budget.passes_left > 4 * self.max_rank

    def planned(self, memory: SpaceMemory, point: ReducedPoint, budget: Budget) -> SpaceMemory:
        """Return whether the next model uses a Krylov space, and its dimension."""
        known = memory.known.at(point, lambda due: self.may_build(due, budget))
        cap = self.rank(budget) if known.asks_for_space else memory.cap
        return SpaceMemory(cap, known)

    def build(self, memory: SpaceMemory, point: ReducedPoint) -> LocalModel:
        """The model on the Krylov space, or along the quasi-Newton direction."""
        if memory.known.asks_for_space:
            return krylov_model(point, memory.cap, self.rtol)
        return memory.known.line_model(point)

    def learnt(self, memory: SpaceMemory, model: LocalModel) -> SpaceMemory:
        """The Ritz pairs of a new space."""
        return replace(memory, known=memory.known.with_space(model)) if isinstance(model, KrylovModel) else memory

    def instead(self, memory: SpaceMemory, bound: Bound | None, budget: Budget) -> SpaceMemory | None:
        """A Krylov space in the place of a quasi-Newton direction that only leads up."""
        too_short = isinstance(bound, LineSearchBound) and bound.fraction < SHORTEST_FRACTION
        if not too_short or memory.known.asks_for_space:
            return None
        return SpaceMemory(self.rank(budget), replace(memory.known, steps=0))


@dataclass(frozen=True)
class DenseMemory(State):
    """Theta where the loop began, which decides on the subspace of all matrices, and its first damping."""

    begun_at: Tensor
    first_damping: float = 1.0  # times the usual one


class DenseModels(Models[ReducedPoint]):
    """The whole matrix, with which the gradient comes; or the matrix of a part of the samples."""

    shows_damping = True

    def __init__(self, dense: Dense, problem: Problem, memory: DenseMemory, part: Problem | None) -> None:
        penalty = problem.theta_penalty.hessian(memory.begun_at)
        subspace = choose_subspace(problem.network.directions, memory.begun_at, penalty)
        many = subspace.count > dense.most_with_radius
        settings = dense.resolved(problem.misfit.identity_hessian, many)
        inside = subspace.reduce(subspace.reduce(penalty).T)
        self.name, self.part, self.scaling = dense.name, part, settings.scaling or 0.0
        self.objective = problem.reduced
        self.matrices = MatrixBuilder(subspace, inside, bool(settings.residual_term), dense.kept_bytes(problem))
        self.damps = settings.step_control == "damping"
        self.rule = NielsenRule(first=1e-3 * memory.first_damping) if self.damps else RadiusRule()
        self.geodesic = bool(settings.geodesic)
        self.trial_passes = 1.0 + self.geodesic  # and the probe of the geodesic correction
        self.model_passes = self.matrices.passes(problem)
        if part is not None:  # and the gradient of all samples, products with their curvature
            self.model_passes = 2 + 2 * ITERATIONS + 3 * self.geodesic

    def own(self, bound: Bound | None) -> Bound | None:
        """A bound of this kind of steps, or none."""
        return bound if isinstance(bound, Damping) == self.damps else None

    def planned(self, memory: DenseMemory, point: ReducedPoint, budget: Budget) -> DenseMemory:
        """All matrices are made alike."""
        return memory

    def build(self, memory: DenseMemory, point: ReducedPoint) -> LocalModel:
        """The model with the matrix at the point."""
        part, matrices = self.part, self.matrices
        made = matrices.build(point) if part is None else matrices.build_of_part(point, part)
        reduce, expand = made.subspace.reduce, made.subspace.expand
        metric = scaled_metric(made.subspace.parameter_means(made.matrix.diagonal()), self.scaling)
        bend = Geodesic(self.objective, point, made).bend if self.geodesic else straight
        known = made.matrix, reduce(made.gradient), metric, expand, bend
        product = made.product
        return DenseModel(*known) if product is None else PartModel(*known, lambda y: reduce(product(expand(y))))

    def gradient(
        self, loop: Loop[ReducedPoint], state: LoopState, at: LoopPoint[ReducedPoint]
    ) -> tuple[LoopState, Tensor | None]:
        """The gradient, which comes with the matrix."""
        if not state.has_model and self.model_passes > loop.budget.passes_left:
            return state, None
        state, model = loop.model(state, at)
        return state, model.gradient
