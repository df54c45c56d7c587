"""Methods that still hold their own state, as steps from state to state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Iterate, MethodState, Running, iterate_at
from gnvpro.minimize.status import Status
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem


@dataclass(frozen=True, kw_only=True)
class LiveState(MethodState):
    """Holds the result of `Running.state`."""

    content: dict[str, Any]
    seed: int


def live_state(problem: Problem, running: Running, cache: Cache, seed: int) -> LiveState:
    """Return the state of a running method."""
    point = running.point
    made = LiveState(
        iterate=point if isinstance(point, Iterate) else iterate_at(point),
        gradient_norm=running.gradient_norm() if problem.network.n_theta else None,
        next_passes=running.next_passes,
        bound=running.bound,
        settles=running.settles,
        content=running.state(),
        seed=seed,
    )
    cache.keep("running", running, made)
    return made


def live_step(
    problem: Problem, state: LiveState, cache: Cache, again: Callable[[], Running]
) -> tuple[LiveState, StepReport | Status]:
    """One iteration of a running method."""
    running = cache.recall("running", again, state)
    report = running.iterate()
    if report is None:
        return state, running.status
    return live_state(problem, running, cache, state.seed), report
