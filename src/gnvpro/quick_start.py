"""Quasi-Newton steps as long as they pay, then exact ones.

Far from a minimum they gain as much for a fraction of the time. They pay while those in the time of one exact step
(`solvers.exact_price`) halve the objective, or, when there were fewer, are on the way to.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gnvpro.methods import State, Trial
from gnvpro.objective import ReducedPoint
from gnvpro.status import Status
from gnvpro.step_rules import Bound
from gnvpro.trust_region_methods import DenseMethod, HybridMethod

FIRST_STEPS = 5  # of quasi-Newton, before anything can be said about them
ENOUGH = 0.5  # times the objective, after quasi-Newton steps in the time of an exact one


class QuickStart:
    """What `solver="auto"` takes where a dense step can be had."""

    def __init__(self, quick: HybridMethod, exact: Callable[..., DenseMethod], price: float) -> None:
        self.current: HybridMethod | DenseMethod = quick
        self.exact = exact
        self.window = max(FIRST_STEPS, math.ceil(price / 2))  # a step is a trial and the gradient after it
        self.values: list[float] = [quick.point.value]  # as many as matter

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.current.status

    @property
    def point(self) -> ReducedPoint:
        """The last accepted model."""
        return self.current.region.point

    @property
    def bound(self) -> Bound | None:
        """The damping, once there were exact steps."""
        return None if isinstance(self.current, HybridMethod) else self.current.bound

    @property
    def next_passes(self) -> int:
        """Those of the next step, of either kind."""
        return self.current.next_passes

    def gradient_norm(self) -> float | None:
        """The norm of the gradient."""
        return self.current.gradient_norm()

    def iterate(self) -> Trial | None:
        """One trial step."""
        if isinstance(self.current, HybridMethod):
            trial = self.current.iterate()
            self.values = [*self.values[-self.window :], self.point.value]
            steps = len(self.values) - 1
            pays = steps < FIRST_STEPS or self.values[-1] <= ENOUGH ** (steps / self.window) * self.values[0]
            if trial is None or not pays:
                self.current = self.exact(self.point)
            if trial is not None:
                return trial
        return self.current.iterate()

    def state(self) -> State:
        """That of the steps at hand."""
        return {**self.current.state(), "quick": isinstance(self.current, HybridMethod), "values": self.values}

    def resume(self, state: State) -> None:
        """Go on with the same kind of steps."""
        self.values = state["values"]
        if not state["quick"]:
            self.current = self.exact(self.point, state["begun_at"])
        self.current.resume(state)
