"""Two ways to treat the head of nonlinear equations, and the choice between them.

    together     theta and W move together, both damped: far from a solution, because Newton's linearisation is too optimistic
    eliminated   W follows theta: close to a solution, where the head is large and a damped one would hardly move

A run moves both together until Phi is a small share of its value for the zero field, then eliminates the head. If
one way finds no step, the other is tried. Linear equations are always solved with the head eliminated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnvpro.network.work import WorkMeter
from gnvpro.pde.field_objective import EliminatedObjective, EquationObjective, JointObjective
from gnvpro.pde.system import System
from gnvpro.state import State

HEADS = ("auto", "eliminated", "together")
CLOSE = 1e-4  # share of Phi of the zero field


@dataclass(frozen=True)
class Ways(State):
    """The current treatment of the head."""

    together: bool
    free: bool  # True if it may change
    stuck_at: float | None = None  # Phi at which one way found no step

    @staticmethod
    def choose(linear: bool, head: str, near: bool = False) -> Ways:
        """Choose for linear or nonlinear equations, the user's setting, and a start that is near a solution or not."""
        together = head == "together" or (head == "auto" and not near)
        return Ways(not linear and together, not linear and head == "auto")

    def objective(self, system: System, penalty: float, meter: WorkMeter) -> EquationObjective:
        """Return the objective to minimise."""
        return (JointObjective if self.together else EliminatedObjective)(system, penalty, meter)

    def solver(self, linear: bool) -> str:
        """Return its name in the history."""
        return "rows" if linear else "joint rows" if self.together else "newton rows"

    def closer(self, value: float, of_zero: float) -> Ways | None:
        """Return the new treatment if the head should be eliminated from now on, given Phi now and of the zero field."""
        if not (self.free and self.together and value < CLOSE * of_zero):
            return None
        return replace(self, together=False)

    def other(self, value: float) -> Ways | None:
        """Return the other way after this one found no step; None if it was stuck here, too."""
        if not self.free or self.stuck_at == value:
            return None
        return replace(self, together=not self.together, stuck_at=value)
