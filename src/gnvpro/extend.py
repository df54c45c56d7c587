"""Protocols and values for methods, solvers, eliminators, losses and listeners of your own.

Loss                                            what a loss computes
Listener, History, Record                       what a listener gets
Method, Start, Budget, State                    a way to train, and what it starts from
Running, StepReport                             a method under way
Solver, ModelSolver, LocalModel, Step           what makes the steps of GNvpro
ReducedPoint                                    the reduced objective at one theta
Eliminator, HeadFit, WarmStart, LinearOperator  what eliminates the head
Inspection                                      what `gnvpro.inspect` returns
"""

from gnvpro.head.eliminator import Eliminator, HeadFit, WarmStart
from gnvpro.linalg.operators import LinearOperator
from gnvpro.methods.protocol import Budget, Method, Running, Solver, Start, State
from gnvpro.methods.solvers import ModelSolver
from gnvpro.minimize.step_rules import LocalModel, Step
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.losses import Loss
from gnvpro.training.history import History, Record
from gnvpro.training.inspection import Inspection
from gnvpro.training.listeners import Listener

__all__ = [
    "Budget",
    "Eliminator",
    "HeadFit",
    "History",
    "Inspection",
    "LinearOperator",
    "Listener",
    "LocalModel",
    "Loss",
    "Method",
    "ModelSolver",
    "Record",
    "ReducedPoint",
    "Running",
    "Solver",
    "Start",
    "State",
    "Step",
    "StepReport",
    "WarmStart",
]
