"""The trust-region loop as steps from state to state, for any kind of local model.

    state   position of the loop: x, the start of its head, the bound, and the memory of the models                 `LoopState`
    cache   the evaluated point and its local model                                                        `LoopPoint`
    models  how to model the objective around a point: made by a solver for one problem                     `Models`

A model is planned once, from the current budget, and the plan goes into the state. A model dropped from the
cache is therefore built again with the same bits, even though the budget has changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, MethodState, iterate_at
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound, LocalModel, RadiusRule, StepRule
from gnvpro.minimize.trust_region import StepReport, try_step
from gnvpro.objectives.full import FullPoint
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.state import State

P = TypeVar("P", ReducedPoint, FullPoint)


@dataclass(frozen=True, kw_only=True)
class LoopState(MethodState):
    """The state of the trust-region loop, at its last accepted point."""

    x: Tensor
    start: WarmStart | None = None  # of the elimination at x
    has_gradient: bool = False
    has_model: bool = False
    below_rounding: int = 0
    memory: State | None = None  # memory of the models, which the current one was built from


class Models(ABC, Generic[P]):
    """Local models of a solver on one problem."""

    name: str
    rule: StepRule = RadiusRule()
    trial_passes: float = 2.0  # passes of a trial and the gradient after it
    model_passes: float = 2.0  # passes of the cheapest model
    shows_damping: ClassVar[bool] = False  # whether records show the damping of a step

    def own(self, bound: Bound | None) -> Bound | None:
        """The bound that another method left, if it is one for these steps."""
        return bound

    @abstractmethod
    def planned(self, memory: Any, point: P, budget: Budget) -> State:
        """Return the memory for the next model, given the budget."""

    @abstractmethod
    def build(self, memory: Any, point: P) -> LocalModel:
        """The model that was planned; called again for the same memory and point, it returns the same bits."""

    def learnt(self, memory: Any, model: Any) -> State:
        """Return the memory of a new model."""
        remembered: State = memory
        return remembered

    def instead(self, memory: Any, bound: Bound | None, budget: Budget) -> State | None:
        """Return the plan for another model at the same point, if the current one makes no progress."""
        return None

    def gradient(self, loop: Loop[P], state: LoopState, at: LoopPoint[P]) -> tuple[LoopState, Tensor | None]:
        """The gradient at the point of a state; None if the budget does not last for it."""
        if not state.has_gradient and loop.budget.passes_left < 1:
            return state, None
        gradient = at.point.gradient()
        return (state if state.has_gradient else replace(state, has_gradient=True)), gradient


@dataclass
class LoopPoint(Generic[P]):
    """The evaluated point of a state, and its local model once there is one, with the memory that it was built from."""

    point: P
    model: LocalModel | None = None
    memory: State | None = None


class Loop(Generic[P]):
    """The loop during one call: all that it needs, and nothing that it remembers."""

    least_passes: ClassVar[float] = 4.0  # a Krylov space of one dimension, the trial and its gradient

    def __init__(self, objective: Any, models: Models[P], budget: Budget, cache: Cache) -> None:
        self.objective, self.budget, self.cache = objective, budget, cache
        self.models: Models[P] = models

    def first(self, point: P, bound: Bound | None, memory: State | None = None, below_rounding: int = 0) -> LoopState:
        """The state at a point, before any step."""
        state = state_at(point, bound, memory, below_rounding)
        self.cache.keep("at", LoopPoint(point), state.iterate)
        return state

    def step(self, state: LoopState) -> tuple[LoopState, StepReport | Status]:
        """One trial, and the gradient at the point that it led to."""
        state, outcome = self.trial(state)
        return (state, outcome) if isinstance(outcome, Status) else (self.measured(state), outcome)

    def trial(self, state: LoopState) -> tuple[LoopState, StepReport | Status]:
        """One trial step."""
        at = self.at(state)
        state, model = self.model(state, at)
        models: Models[P] = self.models
        done = try_step(self.objective, model, models.rule, at.point, state.bound, state.below_rounding)
        if isinstance(done, Status):
            return state, done
        report, bound, below = done.report, done.bound, done.below_rounding
        shown = report.damping if models.shows_damping else None
        report = replace(report, damping=shown, solver=models.name)
        if not report.accepted:
            return replace(state, bound=bound, below_rounding=below), report
        return self.first(done.point, bound, state.memory, below), report

    def measured(self, state: LoopState) -> LoopState:
        """The state with the norm of the gradient, if the budget lasts for it, and with the passes of the next step."""
        norm = state.gradient_norm
        if norm is None and state.iterate.theta.numel():
            state, gradient = self.models.gradient(self, state, self.at(state))
            norm = None if gradient is None else float(torch.linalg.vector_norm(gradient))
        passes = self.models.trial_passes + (0.0 if state.has_model else self.models.model_passes)
        return replace(state, gradient_norm=norm, next_passes=passes)

    def at(self, state: LoopState) -> LoopPoint[P]:
        """The evaluated point of a state."""
        return self.cache.recall("at", partial(self._again, state), state.iterate)

    def _again(self, state: LoopState) -> LoopPoint[P]:
        """Evaluate the point of a state again."""
        point: P = self.objective.start(state.x, state.start)
        if state.has_gradient:
            point.gradient()
        return LoopPoint(point)

    def model(self, state: LoopState, at: LoopPoint[P]) -> tuple[LoopState, LocalModel]:
        """The local model at the point of a state."""
        models: Models[P] = self.models
        memory = state.memory
        if state.has_model:
            other = models.instead(memory, state.bound, self.budget)
            if other is None:
                return state, self._present(memory, at)
            memory = other
        else:
            memory = models.planned(memory, at.point, self.budget)
        at.model = None  # which frees it before the next one is built
        model = models.build(memory, at.point)
        at.model, at.memory = model, models.learnt(memory, model)
        return replace(state, memory=at.memory, has_model=True, has_gradient=at.point.known_gradient is not None), model

    def _present(self, memory: State | None, at: LoopPoint[P]) -> LocalModel:
        """The model that a state has, built again if it was dropped."""
        if at.model is None or at.memory is not memory:
            at.model, at.memory = self.cache.again(lambda: self.models.build(memory, at.point)), memory
        return at.model


def state_at(
    point: ReducedPoint | FullPoint, bound: Bound | None, memory: State | None, below_rounding: int = 0
) -> LoopState:
    """The state at a point, before any step from it."""
    return LoopState(
        iterate=iterate_at(point),
        x=point.x,
        start=point.start,
        bound=bound,
        memory=memory,
        has_gradient=point.known_gradient is not None,
        below_rounding=below_rounding,
    )
