"""Cheap steps as long as they pay, then better ones.

Far from a minimum a quasi-Newton step gains as much as an exact one for a fraction of the time. So does, for losses other than
least squares, a step from a Krylov space, where the matrix takes longer to square than its rows take to make: on peaks it
takes half the time. Each kind pays while it halves the objective within a number of steps, its window, or, when there were
fewer, is on the way to. That of the quasi-Newton steps is the time of an exact one, or its work (see `stages` in
`gauss_newton_methods`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gnvpro.methods import State, Trial
from gnvpro.objective import ReducedPoint
from gnvpro.status import Status
from gnvpro.step_rules import Bound
from gnvpro.trust_region_methods import TrustRegionMethod

ENOUGH = 0.5  # times the objective


@dataclass(frozen=True)
class Stage:
    """Steps of one kind."""

    begin: Callable[[ReducedPoint, Tensor | None], TrustRegionMethod]  # at a point; where its matrices began, if known
    window: int = 1  # steps in which they should halve the objective; of the last stage it does not matter
    first: int = 0  # steps before anything can be said about them


class QuickStart:
    """What `solver="auto"` takes where a dense step can be had: stages, from cheap steps to good ones."""

    def __init__(self, stages: Sequence[Stage], point: ReducedPoint) -> None:
        self.stages, self.stage = stages, 0
        self.current = stages[0].begin(point, None)
        self.values = [point.value]  # as many as matter

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.current.status

    @property
    def point(self) -> ReducedPoint:
        """The last accepted model."""
        point = self.current.point
        assert isinstance(point, ReducedPoint)
        return point

    @property
    def bound(self) -> Bound | None:
        """That of the exact steps, once there were some."""
        return self.current.bound if self.stage + 1 == len(self.stages) else None

    @property
    def next_passes(self) -> int:
        """Those of the next step, of either kind."""
        return self.current.next_passes

    def gradient_norm(self) -> float | None:
        """The norm of the gradient."""
        return self.current.gradient_norm()

    def iterate(self) -> Trial | None:
        """One trial step."""
        trial = self.current.iterate()
        while trial is None and self.stage + 1 < len(self.stages):
            self._next_stage()
            if self.next_passes > self.current.settings.passes_left():
                self.current.region.status = Status.WORK_SPENT
                return None
            trial = self.current.iterate()
        if not self._pays():
            self._next_stage()
        return trial

    def _pays(self) -> bool:
        stage, last = self.stages[self.stage], self.stage + 1 == len(self.stages)
        self.values = [*self.values[-stage.window :], self.point.value]
        steps = len(self.values) - 1
        return last or steps < stage.first or self.values[-1] <= ENOUGH ** (steps / stage.window) * self.values[0]

    def _next_stage(self) -> None:
        self.stage += 1
        self.current = self.stages[self.stage].begin(self.point, None)
        self.values = [self.point.value]

    def state(self) -> State:
        """That of the steps at hand."""
        return {**self.current.state(), "stage": self.stage, "values": self.values}

    def resume(self, state: State) -> None:
        """Go on with the same kind of steps."""
        self.stage, self.values = state["stage"], state["values"]
        if self.stage:
            self.current = self.stages[self.stage].begin(self.point, state.get("begun_at"))
        self.current.resume(state)
