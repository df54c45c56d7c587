"""Cheap steps as long as they pay, then exact ones.

Far from a minimum a quasi-Newton step gains as much as an exact one for a fraction of the time. So does, for losses other than
least squares, a step from a Krylov space, where the matrix takes longer to square than its rows take to make: on peaks it
takes half the time, and quasi-Newton steps before it gain nothing. They pay while they halve the objective within a number of
steps, the window, or, when there were fewer, are on the way to. For quasi-Newton steps that is the time of an exact one, or, in
a run with a budget for each level, its work (see `cheap_steps` in `gauss_newton_methods`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnvpro.methods.protocol import State, Trial
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound
from gnvpro.methods.trust_region import TrustRegionMethod

ENOUGH = 0.5  # times the objective


@dataclass(frozen=True)
class CheapSteps:
    """Steps to begin with."""

    begin: Callable[[ReducedPoint], TrustRegionMethod]
    window: int  # steps in which they should halve the objective
    first: int = 1  # steps before anything can be said about them


BeginExact = Callable[
    [ReducedPoint, Tensor | None], TrustRegionMethod
]  # at a point; where its matrices began, if known


class QuickStart:
    """What `solver="auto"` takes where a dense step can be had."""

    def __init__(self, cheap: CheapSteps, begin_exact: BeginExact, point: ReducedPoint) -> None:
        self.cheap, self.begin_exact, self.exact = cheap, begin_exact, False
        self.current = cheap.begin(point)
        self.values = [point.value]  # of the cheap steps, as many as matter

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
        return self.current.bound if self.exact else None

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
        if trial is None and not self.exact:
            self._change()
            if self.next_passes > self.current.settings.passes_left():
                self.current.region.status = Status.WORK_SPENT
                return None
            trial = self.current.iterate()
        if not self.exact and not self._pay():
            self._change()
        return trial

    def _pay(self) -> bool:
        self.values = [*self.values[-self.cheap.window :], self.point.value]
        steps = len(self.values) - 1
        return steps < self.cheap.first or self.values[-1] <= ENOUGH ** (steps / self.cheap.window) * self.values[0]

    def _change(self) -> None:
        self.exact, self.current = True, self.begin_exact(self.point, None)

    def state(self) -> State:
        """That of the steps at hand."""
        return {**self.current.state(), "exact": self.exact, "values": self.values}

    def resume(self, state: State) -> None:
        """Go on with the same kind of steps."""
        self.exact, self.values = state["exact"], state["values"]
        if self.exact:
            self.current = self.begin_exact(self.point, state.get("begun_at"))
        self.current.resume(state)
