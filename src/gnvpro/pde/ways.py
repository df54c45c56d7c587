"""Two ways to treat the head where the equations are not linear, and the choice between them.

    together     theta and W move together, both damped: far from a solution, where Newton's linearisation promises too much
    eliminated   W follows theta: close to a solution, where the head is large and a damped one would hardly move

A run goes together until Phi is a small share of what it is for the field zero, then with the head eliminated. Where no step is
left on one way the other is tried. Linear equations are always solved with the head eliminated.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gnvpro.pde.objective import EquationObjective, JointObjective, Meter, ReducedObjective
from gnvpro.pde.system import System

HEADS = ("auto", "eliminated", "together")
CLOSE = 1e-4  # share of Phi of the field zero


@dataclass
class Ways:
    """How the head is treated now."""

    together: bool
    free: bool  # to change
    stuck_at: float | None = None  # Phi where no step was left

    @staticmethod
    def choose(linear: bool, head: str) -> Ways:
        """For equations that are linear or not, and what the user asked for."""
        return Ways(not linear and head != "eliminated", not linear and head == "auto")

    def objective(self, system: System, penalty: float, meter: Meter) -> EquationObjective:
        """What is minimised."""
        return (JointObjective if self.together else ReducedObjective)(system, penalty, meter)

    def solver(self, linear: bool) -> str:
        """Its name in the history."""
        return "rows" if linear else "joint rows" if self.together else "newton rows"

    def look(self, value: float, of_zero: float) -> bool:
        """Whether the head is eliminated from now on; Phi here, and of the field zero."""
        if not (self.free and self.together and value < CLOSE * of_zero):
            return False
        self.together = False
        return True

    def stuck(self, value: float) -> bool:
        """No step is left on this way: whether to try the other, which is of no use where it was stuck before."""
        if not self.free or self.stuck_at == value:
            return False
        self.together, self.stuck_at = not self.together, value
        return True

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)
