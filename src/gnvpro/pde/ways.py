"""Two ways to treat the head where the equations are not linear, and the choice between them.

    together     theta and W move together, both damped: far from a solution, where Newton's linearisation promises too much
    eliminated   W follows theta: close to a solution, where the head is large and a damped one would hardly move

A run begins together. At every look it writes down by what factor Phi fell since the last one; where that is less than
`ENOUGH`, and less than what the other way gained last, it goes on the other way. Linear equations are always solved with the
head eliminated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from gnvpro.pde.core import Damping
from gnvpro.pde.objective import EquationObjective, JointObjective, Meter, ReducedObjective
from gnvpro.pde.system import System

HEADS = ("auto", "eliminated", "together")
ENOUGH = 2.0  # the factor by which Phi falls between two looks that is not worth a change


@dataclass
class Ways:
    """How the head is treated now, and what both ways gained last."""

    together: bool
    free: bool  # to change
    before: float = math.inf  # Phi when this phase began
    gained: dict[bool, float] = field(default_factory=dict)  # by `together`
    damping: dict[bool, list[float]] = field(default_factory=dict)

    @staticmethod
    def choose(linear: bool, head: str) -> Ways:
        """For equations that are linear or not, and what the user asked for."""
        return Ways(not linear and head == "together", not linear and head == "auto")

    def objective(self, system: System, penalty: float, meter: Meter) -> EquationObjective:
        """What is minimised."""
        return (JointObjective if self.together else ReducedObjective)(system, penalty, meter)

    def solver(self, linear: bool) -> str:
        """Its name in the history."""
        return "rows" if linear else "joint rows" if self.together else "newton rows"

    def bound(self) -> Damping | None:
        """The damping that this way ended with last."""
        return Damping(*self.damping[self.together]) if self.together in self.damping else None

    def look(self, value: float, bound: Damping | None) -> bool:
        """Whether to go on the other way; Phi and the damping are what this way came to."""
        if bound is not None:
            self.damping[self.together] = list(bound)
        gained = self.before / value if value > 0 else math.inf
        self.gained[self.together] = gained
        if not self.free or gained >= ENOUGH or gained >= self.gained.get(not self.together, math.inf):
            return False
        self.together = not self.together
        return True

    def stuck(self) -> bool:
        """No step is left on this way: whether there is another one."""
        self.gained[self.together] = 0.0
        if not self.free or self.gained.get(not self.together) == 0.0:
            return False
        self.together = not self.together
        return True

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)
